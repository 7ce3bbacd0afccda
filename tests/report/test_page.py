"""The page of a run, read as a browser's parser reads it; tests/report/test_page_in_chromium.py opens it."""

import base64
import gzip
import json
import re

import pytest
from markupsafe import Markup

from autoresearch.core.errors import AutoresearchError
from autoresearch.report import page


class Read:
    """A built page."""

    def __init__(self, saved) -> None:
        self.text = page.build(saved)
        self.data = json.loads(self._script("data"))
        lines = gzip.decompress(base64.b64decode(self._script("details"))).decode().split("\n")
        self.details = [json.loads(line) for line in lines if line]
        self.rows = {row["n"]: row for row in self.data["rows"]}
        body = self.text[self.text.index("<main>") : self.text.index("</main>")]
        self.words = " ".join(Markup(body).striptags().split())

    def _script(self, name: str) -> str:
        return re.search(rf'<script type="[^"]*" id="{name}">([^<]*)</script>', self.text)[1]


def test_numbers(run, experiment):
    saved = run(
        experiment(0, "keep", 2.0),
        experiment(1, "keep", 1.9, log_tail="step 1"),
        experiment(2, "crash", None, parent=1),
        experiment(3, "discard", 1.95, parent=1, near_miss=True, suspect="the machine slept"),
        [*experiment(4, "keep", 1.8, parent=1), {"event": "withdrawn", "n": 4, "reason": "fresh seeds say 1.95"}],
        [{"event": "refused", "n": 5, "reason": "a duplicate of 1", "hypothesis": "the same again"}],
        [{"event": "failed", "n": 5, "kind": "outage", "reason": "no answer", "proposer": "claude"}],
        test={(0, 0): 2.05, (1, 0): 1.97, (3, 0): 2.01},
    )
    found = Read(saved)
    assert "val_bpb went from 2.0000 to 1.9000: a gain of 0.1000" in found.words
    assert "4 experiments: 1 kept, 2 discarded, 1 failed" in found.words, "the withdrawn one is discarded"
    assert "the same again: a duplicate of 1" in found.words
    assert "no proposal for #5 (claude): outage: no answer" in found.words
    assert [row["outcome"] for row in found.rows.values()] == ["baseline", "keep", "crash", "discard", "withdrawn"]
    assert found.rows[1]["gain"] == 0.1 and found.rows[2]["score"] is None
    assert found.rows[3]["marks"] == ["near miss", "suspect"]
    assert found.rows[4]["why"] == "fresh seeds say 1.95"
    assert found.data["progress"]["line"] == [[0, 2.0], [1, 1.9], [4, 1.9]]
    gap = {
        x: y for trace in found.data["figures"]["gap"]["traces"] for x, y in zip(trace["x"], trace["y"], strict=True)
    }
    assert gap == {0: 0.05, 1: 0.07, 3: 0.06}
    assert found.details[1]["results"][0]["curve"] == [[0.5, 1.0], [5.0, 4.0]]
    assert (found.details[1]["log"], found.details[1]["diff"]) == ("step 1", None), "no repository, no change to show"
    assert "cost" not in found.data["figures"] and "$" not in found.words


def test_costs(run, experiment):
    calls = [
        {"event": "call", "id": "a", "n": 1, "agent": "claude", "worst_usd": 1.0, "time": "2026-11-30T22:00:00+00:00"},
        {"event": "charged", "id": "a", "usd": 0.25},
    ]
    found = Read(run(experiment(0, "keep", 2.0), calls, experiment(1, "keep", 1.9)))
    assert found.data["figures"]["cost"]["traces"][0]["y"] == [0.0, 0.25]
    assert "$0.25 for calls, $0.25 per kept change" in found.words and "claude $0.25" in found.words


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_experiments(run, experiment, count):
    found = Read(run(*(experiment(n, "keep", 2.0) for n in range(count))))
    assert len(found.rows) == len(found.details) == count
    assert ("Nothing was measured yet." in found.words) == (count == 0)


def test_all_failed(run, experiment):
    found = Read(run(*(experiment(n, "timeout", None) for n in range(3))))
    assert "The baseline failed" in found.words
    assert {edge for _, _, edge in found.data["progress"]["points"]} == {"bottom"}


def test_scores_of_another_key_are_marked(run, experiment):
    found = Read(
        run(experiment(0, "keep", 2.0), experiment(1, "discard", 2.1), [{"event": "resumed", "comparability_key": "b"}])
    )
    assert found.rows[1]["marks"] == ["not comparable"]
    assert found.data["progress"]["points"] == [] and found.data["progress"]["elsewhere"] == [0, 1]
    assert "2 of the scores were measured under other conditions" in found.words


def test_a_long_run(long_run):
    saved = long_run(700)
    found = Read(saved)
    counts = saved.history.counts
    assert f"700 experiments: {counts.kept} kept, {counts.discarded} discarded, {counts.failed} failed" in found.words
    assert len(found.rows) == len(found.details) == 701
    for n in (1, 350, 700):
        parent = saved.history.experiments[n].parent
        before, after = saved.source(saved.history.experiments[parent]), saved.source(saved.history.experiments[n])
        for line in found.details[n]["diff"].split("\n"):
            assert line[0] == "@" or line[1:] in (after if line[0] == "+" else before).split("\n")
        assert sum(line[0] == "+" for line in found.details[n]["diff"].split("\n")) >= 1
    assert {"gap", "pace", "cost"} <= found.data["figures"].keys()


def test_texts_of_others(long_run, hostile):
    saved = long_run(30, texts=hostile)
    found = Read(saved)
    assert (
        hostile in found.rows[3]["what"] and hostile in found.details[3]["diff"] and hostile in found.details[3]["log"]
    )
    assert "<img" not in found.text
    assert found.text.count("</script>") == 5, "three of data, two of code"


def test_the_audit_is_told(run, experiment):
    saved = run(experiment(0, "keep", 2.0), experiment(1, "keep", 1.9))
    events = [{"event": "audit", "incumbent": 1, "key": "a", "text": "", "rows": 0}]
    assert "Audit" not in Read(saved).words
    for k in range(4):
        n, score = (0, 2.0) if k in (0, 3) else (1, 1.9)
        result = {"status": "ok", "val_bpb": score + k / 1000, "comparability_key": "a"}
        events.append({"event": "started", "n": n, "k": k, "seed": k, "mark": ""})
        events.append({"event": "measured", "n": n, "k": k, "result": result, "scores": {"test_bpb": score + k / 900}})
        (saved.folder / "audits.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        assert ("Audit: the search's gain of 0.1000 bpb on val is real" in Read(saved).words) == (k == 3)


def test_writing(run, experiment):
    saved = run(experiment(0, "keep", 2.0))
    path = page.write(saved, saved.folder)
    assert path == saved.folder / "report.html" and path.read_text().startswith("<!doctype html>")
    with pytest.raises(AutoresearchError, match=r"can't write .*report\.html"):
        page.write(saved, saved.folder / "nowhere")
    assert [file.name for file in saved.folder.iterdir()] == ["report.html"]
