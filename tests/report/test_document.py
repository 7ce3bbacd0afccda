"""A page needs nothing but itself, runs its own scripts alone, and holds data as data."""

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from markupsafe import Markup

from autoresearch.core.errors import AutoresearchError
from autoresearch.report import document as page
from autoresearch.report.document import Figure, document, json_in_html


class Elements(HTMLParser):
    """Tags with their attributes, and the texts of scripts, as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script" and self.scripts:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", {}))

    def named(self, name: str) -> str:
        (text,) = [text for attributes, text in self.scripts if attributes.get("id") == name]
        return text

    @property
    def code(self) -> list[str]:
        return [text for attributes, text in self.scripts if "type" not in attributes]


def unpacked(packed: str) -> str:
    return gzip.decompress(base64.b64decode(packed)).decode()


FIGURE = Figure([{"x": [0], "y": [1.0]}], {})


def test_texts_of_others_stay_texts(hostile):
    figure = Figure([{"x": [0], "y": [1.0], "text": [hostile]}], {"title": hostile})
    data = {"rows": [hostile], hostile: 1, "surrogate": "\udc80"}
    made = document(hostile, Markup("<p>{}</p>").format(hostile), {"f": figure}, data, [hostile])
    found = Elements(made)
    assert not [tag for tag, _ in found.tags if tag in ("img", "b")]
    read = json.loads(found.named("data"))
    assert read == {"figures": {"f": figure._asdict()}, **data, "surrogate": "\udc80"}
    assert json.loads(unpacked(found.named("details"))) == hostile
    made.encode()
    # The same where nobody escapes, which the check must see.
    assert [tag for tag, _ in Elements(document("t", Markup(hostile))).tags if tag in ("img", "b")] == ["img", "b"]


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "]]>", "&lt;", "\u2028\u2029", "\udfff", "\x00"])
def test_json_in_a_script_element(text):
    written = json_in_html({"text": text})
    assert json.loads(written) == {"text": text}
    assert not set(written) & set("<>&\u2028\u2029\udfff\x00")


def test_the_policy_lets_the_pages_own_scripts_run_alone():
    found = Elements(document("t", Markup(""), {"f": FIGURE}, scripts=["report.js"]))
    (policy,) = [a["content"] for tag, a in found.tags if tag == "meta" and a.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    scripts = [*found.code, unpacked(found.named("plotly"))]
    assert len(found.code) == 2
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert rules["script-src"].split() == [f"'sha256-{one}'" for one in hashes]
    assert found.tags.index(("meta", {"http-equiv": "Content-Security-Policy", "content": policy})) < 5, (
        "before all else"
    )


def test_nothing_is_fetched():
    made = document("t", Markup(""), {"f": FIGURE}, scripts=["report.js"])
    sources = [a[name] for _, a in Elements(made).tags for name in ("src", "href", "srcset", "action") if a.get(name)]
    assert sources == ["data:,"]
    without_plotly = re.sub(r'id="plotly">[^<]*<', "", made)
    assert "://" not in without_plotly and "@import" not in made and "url(" not in without_plotly


def test_plotly_is_carried_where_something_is_drawn():
    assert len(document("t", Markup(""))) < 50_000
    assert "plotly.js v" in unpacked(Elements(document("t", Markup(""), {"f": FIGURE})).named("plotly"))[:200]


def test_without_the_extra(monkeypatch):
    monkeypatch.setattr(page, "find_spec", lambda name: None if name == "plotly" else object())
    page._environment.cache_clear()
    with pytest.raises(AutoresearchError, match="the page needs plotly") as caught:
        document("t", Markup(""))
    assert "pip install" in caught.value.hint and caught.value.exit_code == 1
    assert page.missing(("plotly", "jinja2")) == ["plotly"]
    page._environment.cache_clear()
