"""The page in a real browser, opened from a file: it loads, shows the right numbers, filters, and works on a phone.

Without Chromium these are skipped; where AUTORESEARCH_REQUIRE_CHROMIUM is set, as CI does, they fail then.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoresearch.report import page as report_page

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None:
        message = f"none of {', '.join(NAMES)} is installed, e.g. apt-get install chromium"
        if os.environ.get("AUTORESEARCH_REQUIRE_CHROMIUM"):
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page in the browser, with all that it said and asked for."""

    def __init__(self, tab) -> None:
        self.tab = tab
        self.errors: list[str] = []
        self.requests: list[str] = []
        tab.on("console", lambda message: self.errors.append(message.text) if message.type != "log" else None)
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))

    def text(self, selector: str) -> str:
        return self.tab.inner_text(selector)

    @property
    def rows(self) -> list[int]:
        """Numbers of the experiments in the table, in its order."""
        return [
            int(n) for n in self.tab.eval_on_selector_all("#experiments tbody tr", "all => all.map(r => r.dataset.n)")
        ]

    def becomes(self, rows: list[int], of: int) -> None:
        """Wait until the table holds these experiments, and says how many they are."""
        told = "[...document.querySelectorAll('#experiments tbody tr')].map(r => r.dataset.n).join()"
        self.tab.wait_for_function(f"rows => {told} === rows", arg=",".join(map(str, rows)))
        assert self.text("#count") == f"{len(rows)} of {of}"

    @property
    def points(self) -> dict[str, list[int]]:
        """Numbers of the experiments on the plot, by the names of the legend."""
        self.drawn()
        traces = "document.getElementById('progress').data.map(t => [t.name, t.customdata ?? []])"
        return {name: sorted(numbers) for name, numbers in self.tab.evaluate(traces) if numbers}

    def drawn(self) -> None:
        self.tab.wait_for_selector("#progress .main-svg .scatterlayer")

    def shows(self, count: str) -> None:
        """Wait until so many are told to pass the filters."""
        self.tab.wait_for_function("count => document.getElementById('count').textContent === count", arg=count)

    def background(self) -> tuple[float, float]:
        """Lightness of the page's ground and of its text, 0..1."""
        colours = self.tab.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        ground, text = (sum(map(int, re.findall(r"\d+", colour)[:3])) / 765 for colour in colours)
        return ground, text


@pytest.fixture
def open_page(chromium, tmp_path) -> Iterator[Callable]:
    """Open the page of a run, or one that is written already; at the end it must have been silent and alone."""
    opened: list[Opened] = []

    def open_one(saved, scheme: str = "light", **device) -> Opened:
        path = saved if isinstance(saved, Path) else report_page.write(saved, tmp_path)
        context = chromium.new_context(color_scheme=scheme, **(device or DESKTOP))
        found = Opened(context.new_page())
        opened.append(found)
        found.tab.goto(path.as_uri())
        return found

    yield open_one
    for found in opened:
        assert [request for request in found.requests if not request.startswith(("file:", "data:", "blob:"))] == []
        assert found.errors == []
        found.tab.context.close()


@contextmanager
def expected_errors(found: Opened, pattern: str) -> Iterator[None]:
    yield
    assert any(re.search(pattern, error) for error in found.errors), found.errors
    found.errors.clear()


@pytest.fixture
def searched(run, experiment):
    return run(
        experiment(0, "keep", 2.0, category="baseline"),
        experiment(1, "keep", 1.9, log_tail="step 1 loss 4"),
        experiment(2, "crash", None, parent=1, category="batch", hypothesis="a huge batch"),
        experiment(3, "discard", 1.95, parent=1, near_miss=True, suspect="the machine slept"),
        experiment(4, "discard", 9.0, parent=1, category="batch"),
        [*experiment(5, "keep", 1.85, parent=1), {"event": "withdrawn", "n": 5, "reason": "fresh seeds say 1.95"}],
        test={(0, 0): 2.05, (1, 0): 1.97},
    )


def test_numbers(open_page, searched):
    found = open_page(searched)
    assert found.text(".conclusion").startswith("val_bpb went from 2.0000 to 1.9000: a gain of 0.1000 ± 0.0")
    assert found.rows == [0, 1, 2, 3, 4, 5]
    assert found.points == {
        "baseline": [0], "kept": [1], "failed": [2], "discarded": [4], "near miss": [3],
        "withdrawn": [5], "suspect": [3],
    }  # fmt: skip
    cells = found.tab.eval_on_selector_all("tr[data-n='1'] td", "all => all.map(cell => cell.textContent)")
    assert cells[:6] == ["1", "keep", "1.9000", "−0.1000", "idea 1", "size"]
    assert "because 2" in found.text("tr[data-n='2']")
    low, high = found.tab.evaluate("document.getElementById('progress')._fullLayout.yaxis.range")
    assert 1.7 < low < 1.85 and 2 < high < 2.5, "a score of 9 doesn't flatten the others"
    symbols = dict(found.tab.evaluate("document.getElementById('progress').data.map(t => [t.name, t.marker?.symbol])"))
    assert symbols["discarded"] == ["triangle-up"] and symbols["near miss"] == ["diamond"]
    assert found.text("#categories tbody tr:first-child").split()[:2] == ["size", "0.1000"]


def test_filters(open_page, searched):
    found = open_page(searched)
    found.tab.select_option("[name=outcome]", "discard")
    found.becomes([3, 4], of=6)
    assert found.points == {"discarded": [4], "near miss": [3], "suspect": [3]}
    found.tab.select_option("[name=category]", "batch")
    found.becomes([4], of=6)
    found.tab.select_option("[name=outcome]", "")
    found.tab.fill("[name=text]", "HUGE")
    found.becomes([2], of=6)
    found.tab.select_option("[name=category]", "")
    found.tab.fill("[name=text]", "#5")
    found.becomes([5], of=6)
    found.tab.fill("[name=text]", "nothing like it")
    found.becomes([], of=6)
    assert found.points == {}
    found.tab.fill("[name=text]", "")
    found.becomes([0, 1, 2, 3, 4, 5], of=6)
    options = found.tab.eval_on_selector_all("[name=outcome] option", "all => all.map(option => option.textContent)")
    assert options[1:] == ["kept (1)", "discarded (2)", "failed (1)", "withdrawn (1)", "near misses (1)", "suspect (1)"]


def test_sorting(open_page, searched):
    found = open_page(searched)
    found.tab.click("[data-sort=score]")
    assert found.rows == [5, 1, 3, 0, 4, 2], "what has no score comes last"
    found.tab.click("[data-sort=score]")
    assert found.rows == [4, 0, 3, 1, 5, 2]


def test_one_experiment(open_page, long_run):
    saved = long_run(40)
    found = open_page(saved)
    found.tab.click("tr[data-n='7']")
    found.tab.wait_for_selector("dialog[open] .js-plotly-plot .main-svg")
    record = saved.history.experiments[7]
    assert found.text("#experiment-title") == f"#7 {record.hypothesis}".strip()
    removed, added = (found.tab.inner_text(f".diff .{kind} >> nth=0").rstrip("\n") for kind in ("removed", "added"))
    parent = saved.history.experiments[record.parent]
    assert removed[0] == "-" and removed[1:] in saved.source(parent).split("\n")
    assert added[0] == "+" and added[1:] in saved.source(record).split("\n")
    assert (
        found.tab.evaluate("getComputedStyle(document.querySelector('.diff .added')).backgroundColor")
        != "rgba(0, 0, 0, 0)"
    )
    curve = found.tab.evaluate("document.querySelector('dialog .js-plotly-plot').data[0].y.length")
    assert curve == len(record.results[0].loss_curve)
    assert record.results[0].log_tail.strip() == found.text(".log").strip()
    found.tab.click("dialog nav [aria-label=next]")
    found.tab.wait_for_function("document.getElementById('experiment-title').textContent.startsWith('#8 ')")
    found.tab.keyboard.press("Escape")
    found.tab.wait_for_selector("dialog[open]", state="detached")
    found.tab.click("tr[data-n='8']")  # the same one again
    found.tab.wait_for_selector("dialog[open]")


def test_hover_and_click_on_the_plot(open_page, searched):
    found = open_page(searched)
    found.drawn()
    kept = found.tab.locator("#progress .scatterlayer .trace").filter(has=found.tab.locator(".points path")).nth(4)
    box = kept.locator("path.point").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    found.tab.mouse.move(x, y)
    label = found.tab.wait_for_selector("#progress .hoverlayer .hovertext")
    assert "#1 keep 1.9000 bpb (−0.1000)" in label.text_content() and "idea 1" in label.text_content()
    found.tab.mouse.click(x, y)
    found.tab.wait_for_selector("dialog[open]")
    assert found.text("#experiment-title") == "#1 idea 1"


def test_a_phone(open_page, searched):
    found = open_page(searched, **PHONE)
    found.drawn()
    assert found.tab.evaluate("document.documentElement.scrollWidth") <= 390, "the page doesn't scroll sideways"
    link = found.tab.locator("tr[data-n='2']")
    link.scroll_into_view_if_needed()
    link.tap()
    found.tab.wait_for_selector("dialog[open]")
    assert found.text("#experiment-title") == "#2 a huge batch"
    box = found.tab.locator("dialog").bounding_box()
    assert (box["x"], box["width"]) == (0, 390)
    found.tab.locator("dialog nav button").tap()
    found.tab.wait_for_selector("dialog[open]", state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(open_page, searched, scheme):
    found = open_page(searched, scheme)
    found.drawn()

    def figure() -> float:
        colour = found.tab.evaluate("document.getElementById('progress')._fullLayout.paper_bgcolor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 765

    ground, text = found.background()
    assert (ground < 0.2 and text > 0.8) if scheme == "dark" else (ground > 0.8 and text < 0.2)
    assert figure() == pytest.approx(ground)
    found.tab.click("#theme")
    turned, text = found.background()
    assert (turned > 0.8 and text < 0.2) if scheme == "dark" else (turned < 0.2 and text > 0.8)
    found.tab.wait_for_function(
        "was => document.getElementById('progress')._fullLayout.paper_bgcolor !== was",
        arg="rgb(20, 23, 26)" if scheme == "dark" else "rgb(255, 255, 255)",
    )
    assert figure() == pytest.approx(turned)


def test_texts_of_others_do_nothing(open_page, long_run, hostile):
    saved = long_run(30, texts=hostile)
    found = open_page(saved)
    found.drawn()
    assert found.tab.title() == "long · autoresearch"
    assert hostile.replace("\u2028", "") in found.text("tr[data-n='3'] a").replace("\u2028", "")
    found.tab.click("tr[data-n='3']")
    found.tab.wait_for_selector("dialog[open] .log")
    assert "<img src=x" in found.text(".log") and "<img src=x" in found.text(".diff")
    assert found.tab.evaluate("document.querySelectorAll('img').length") == 0
    # The policy would stop a script that had been let in.
    with expected_errors(found, "Content Security Policy"):
        found.tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
        found.tab.wait_for_timeout(200)
    assert found.tab.title() == "long · autoresearch"


@pytest.mark.parametrize("count", [0, 1])
def test_few_experiments(open_page, run, experiment, count):
    found = open_page(run(*(experiment(n, "keep", 2.0) for n in range(count))))
    assert found.text(".conclusion").startswith("No gain yet" if count else "Nothing was measured yet.")
    if count:
        found.drawn()
        assert (found.rows, found.points) == ([0], {"baseline": [0]})
    else:
        assert found.tab.query_selector("#experiments") is None


@pytest.mark.parametrize("count", [700, 5000])
def test_long_runs(open_page, long_run, count):
    saved = long_run(count)
    found = open_page(saved)
    found.shows(f"{count + 1} of {count + 1}")
    kept = [n for n, record in saved.history.experiments.items() if record.kept and n]
    assert found.points["kept"] == kept
    assert sum(map(len, found.points.values())) - len(found.points.get("suspect", [])) == count + 1
    assert found.rows == list(range(100)), "the rest comes when it is asked for"
    found.tab.click("#more")
    assert found.rows == list(range(200))
    found.tab.select_option("[name=outcome]", "keep")
    found.shows(f"{len(kept)} of {count + 1}")
    assert found.rows == kept[:100]
    found.tab.select_option("[name=outcome]", "")
    found.tab.fill("[name=text]", f"#{count}")
    found.becomes([count], of=count + 1)
    found.tab.click(f"tr[data-n='{count}']")
    found.tab.wait_for_selector("dialog[open] .diff")
    assert found.text("#experiment-title").startswith(f"#{count} idea {count}")


def test_a_page_that_is_broken_is_noticed(open_page, searched, tmp_path):
    """What the fixture above looks for: a script that the policy refuses, and a request."""
    text = report_page.build(searched).replace(
        "</main>", '</main><script>alert(1)</script><img src="http://127.0.0.1:9/x">'
    )
    path = tmp_path / "broken.html"
    path.write_text(text)
    found = open_page(path)
    with expected_errors(found, "Content Security Policy"):
        found.tab.wait_for_timeout(200)
    assert "http://127.0.0.1:9/x" in found.requests
    found.requests.clear()
