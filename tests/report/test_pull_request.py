"""What is handed over: a commit for each keep that stands, with its numbers, and a text that tells the rest too."""

import json
import os
import subprocess

import pytest

from autoresearch.core.errors import AutoresearchError
from autoresearch.core.history import History
from autoresearch.core.runs import SavedRun
from autoresearch.core.workspace import Workspace
from autoresearch.report.pull_request import finalize

SETTINGS = {
    "backend": "null",
    "preset": "tinystories/smoke",
    "rules": {"spread": 0.01, "spread_dof": 4.0},
    "task": {"train_seconds": 30.0},
}
RUN = {
    **{"event": "run", "time": "2026-03-08T10:00:00+00:00", "tag": "mar8", "comparability_key": "a-key"},
    **{"settings": SETTINGS, "device": {"name": "a processor"}},
}


@pytest.fixture(autouse=True)
def config(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("GIT_") or name == "EMAIL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def git(workspace: Workspace, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=workspace.directory, capture_output=True, text=True, check=True)
    return done.stdout.removesuffix("\n")


class Maker:
    """Writes a run, experiment after experiment, each made from the latest keep."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace, self.events, self._n = workspace, [RUN], 0
        self._parent, self._commit = None, None
        self.tried("keep", 2.0, "DEPTH = 0\n", "baseline")

    def tried(self, verdict: str, score: float | None, text: str, hypothesis: str, **decided) -> int:
        n = self._n
        self._n += 1
        blob = self.workspace.write_blob(text)
        message = f"experiment {n}"
        commit = (
            self.workspace.commit_candidate("mar8", n, blob, self._commit, message)
            if n
            else self.workspace.baseline("mar8")
        )
        result = {"status": "ok" if score is not None else verdict, "val_bpb": score, "comparability_key": "a-key"}
        value = {"value": score, "value_n": 2} if verdict == "keep" else {}
        proposed = {"n": n, "blob": blob, "hypothesis": hypothesis, "normalized_hash": str(n), "parent": self._parent}
        self.events += [
            {"event": "proposed", **proposed, "proposer": "optimizer" if n else "", "category": "size"},
            {"event": "committed", "n": n, "commit": commit},
            {"event": "started", "n": n, "k": 0, "seed": n},
            {"event": "measured", "n": n, "k": 0, "result": result},
            {
                **{"event": "decided", "n": n, "verdict": verdict, "val_bpb": score, "reason": "", **value, **decided},
                "time": f"2026-03-08T11:{n:02d}:00+00:00",
            },
        ]
        if verdict == "keep":
            self._parent, self._commit = n, commit
        return n

    def withdraw(self, n: int, to: int) -> None:
        self.events.append({"event": "withdrawn", "n": n, "reason": "fresh seeds: no better"})
        self._parent = to
        self._commit = next(e["commit"] for e in self.events if e["event"] == "committed" and e["n"] == to)

    @property
    def saved(self) -> SavedRun:
        folder = self.workspace.run_dir("mar8")
        return SavedRun("mar8", folder, self.workspace, History.from_events(self.events))


@pytest.fixture
def maker(tmp_path) -> Maker:
    return Maker(Workspace.create(tmp_path / "lab", {"train.py": "DEPTH = 0\n"}))


@pytest.fixture
def run(maker) -> Maker:
    """Five keeps that stand, one that was withdrawn in between, a discard, failures, a near miss."""
    for n in (1, 2):
        maker.tried("keep", 2.0 - n / 10, f"DEPTH = {n}\n", f"depth {n}")
    withdrawn = maker.tried("keep", 1.75, "DEPTH = 30\n", "a lucky one")
    maker.withdraw(withdrawn, to=2)
    maker.tried("discard", 1.81, "DEPTH = 40\n", "too deep", near_miss=True)
    for _ in range(2):
        maker.tried("crash", None, "DEPTH = 50\n", "deeper still", reason="no room for @zoe in #12 <b>")
    for n in (7, 8, 9):
        maker.tried("keep", 2.0 - n / 10, f"DEPTH = {n}\n", f"depth {n}")
    return maker


def test_a_commit_for_each_keep_that_stands(run):
    found = finalize(run.saved)
    lab = run.workspace
    assert [commit["experiments"] for commit in found["commits"]] == [[1], [2], [7], [8], [9]]
    assert found["branch"] == "autoresearch-mar8"
    assert found["created"]
    assert lab.read("autoresearch-mar8") == lab.read(run.saved.history.incumbent.commit) == "DEPTH = 9\n"
    versions = [lab.read(f"autoresearch-mar8~{back}") for back in range(5, -1, -1)]
    assert versions == [f"DEPTH = {n}\n" for n in (0, 1, 2, 7, 8, 9)]
    assert git(lab, "log", "--format=%s", "autoresearch-mar8", "-5").splitlines() == [
        f"depth {n}" for n in (9, 8, 7, 2, 1)
    ]
    assert git(lab, "log", "-1", "--format=%b%aI", "autoresearch-mar8~2").splitlines() == [
        "val_bpb 1.8000 → 1.3000 (-0.5000), n 2 and 2",
        "experiment 7 of run mar8, by optimizer, size",
        "spread between seeds 0.0100 (stated prior)",
        "comparability key a-key",
        "2026-03-08T11:07:00+00:00",
    ]
    again = finalize(run.saved)
    assert (again["created"], again["commit"]) == (False, found["commit"])
    json.dumps(found, allow_nan=False)


def test_squashed_it_is_one_commit_with_the_same_file(run):
    found = finalize(run.saved, squash=True, branch="one")
    lab = run.workspace
    assert [commit["experiments"] for commit in found["commits"]] == [[1, 2, 7, 8, 9]]
    assert git(lab, "rev-parse", "one^") == found["base"]
    assert lab.read("one") == "DEPTH = 9\n"
    message = git(lab, "log", "-1", "--format=%B", "one")
    assert message.startswith("autoresearch mar8: val_bpb 2.0000 → 1.1000 (-0.9000) by 5 kept changes\n\n- depth 1: ")
    assert "- depth 7: val_bpb 1.8000 → 1.3000 (-0.5000)\n" in message


def test_the_text_tells_the_result_what_was_kept_and_what_failed(run):
    found = finalize(run.saved)
    text = found["text"]
    assert text.startswith("# autoresearch mar8: val\\_bpb 2.0000 → 1.1000 (-0.9000) by 5 kept changes\n")
    assert "| baseline | 2.0000 | 2 |\n| result (experiment 9) | 1.1000 | 2 |\n" in text
    # t with 4 degrees of freedom times 0.01 · √(1/2 + 1/2).
    assert "Gain of the search: 0.9000 bpb (45.00 %), 95 % interval 0.8722 to 0.9278, from its own scores" in text
    assert "Not audited" in text
    assert f"3. depth 7 ({found['commits'][2]['commit'][:10]}, experiment 7): val\\_bpb 1.8000 → 1.3000" in text
    parts = text.split("\n## ")
    titles = [part.splitlines()[0] for part in parts[1:]]
    assert titles == [
        "Kept changes",
        "Failures worth knowing",
        "Kept at first, then withdrawn",
        "Near misses: no gain that was borne out alone",
        "How it was measured",
    ]
    assert "2 × crash:\n\n- crash: deeper still: no room for @\u200bzoe in \\#\u200b12 \\<b\\>" in parts[2]
    assert parts[2].count("deeper still") == 1, "the same failure is told once"
    assert "experiment 3: a lucky one: fresh seeds: no better" in parts[3]
    assert "experiment 4: too deep: 1.8100 bpb" in parts[4]
    assert "9 experiments: 5 kept, 2 discarded, 2 failed" in parts[5]
    assert "30 s of training an experiment, null on a processor" in parts[5]


def test_an_audit_is_the_result(run):
    def measured(n: int, k: int, val: float) -> list[dict]:
        result = {"status": "ok", "val_bpb": val, "comparability_key": "a-key"}
        return [
            {"event": "started", "n": n, "k": k, "seed": k, "mark": ""},
            {"event": "measured", "n": n, "k": k, "result": result, "scores": {"test_bpb": val + 0.1}},
        ]

    audits = [{"event": "audit", "incumbent": 9, "key": "a-key", "text": ""}]
    for k, (n, val) in enumerate([(0, 2.01), (9, 1.11), (9, 1.12), (0, 2.02)]):
        audits += measured(n, k, val)
    lines = "".join(json.dumps(event) + "\n" for event in audits)
    (run.saved.folder / "audits.jsonl").write_text(lines)
    text = finalize(run.saved)["text"]
    assert "Audit with fresh seeds: the search's gain of 0.9000 bpb on val is real:" in text
    assert "- val: 2.0150 (n 2) → 1.1150 (n 2), gain 0.9000, 95 % interval 0.8696 to 0.9304\n" in text
    assert "- test, held out: 2.1150 (n 2) → 1.2150 (n 2)" in text
    assert "Not audited" not in text


def test_long_and_hostile_descriptions(maker):
    maker.tried("keep", 1.9, "DEPTH = 1\n", "a \x1b[31mred " + "long word " * 20)
    found = finalize(maker.saved)
    subject, _, body = git(maker.workspace, "log", "-1", "--format=%B", found["branch"]).partition("\n\n")
    assert len(subject) <= 72
    assert subject.endswith("…")
    assert body.startswith("a [31mred long word")
    assert "\x1b" not in found["text"] + subject + body


def test_a_keep_made_from_a_withdrawn_one_says_so(maker):
    maker.tried("keep", 1.9, "DEPTH = 1\n", "first")
    maker.tried("keep", 1.8, "DEPTH = 1\nWIDTH = 2\n", "second")
    maker.events.append({"event": "withdrawn", "n": 1, "reason": "no better"})
    found = finalize(maker.saved)
    body = git(maker.workspace, "log", "-1", "--format=%b", found["branch"])
    assert "with the change of experiment 1, from which it was made and which was withdrawn later" in body
    assert maker.workspace.read(found["branch"]) == "DEPTH = 1\nWIDTH = 2\n"


def test_a_baseline_from_another_machine_leaves_the_gain_open(maker):
    maker.tried("keep", 1.9, "DEPTH = 1\n", "first")
    maker.events.append({"event": "resumed", "comparability_key": "another"})
    text = finalize(maker.saved)["text"]
    assert "| baseline | measured on another machine | 2 |" in text
    assert "Gain of the search" not in text
    assert text.startswith("# autoresearch mar8: val\\_bpb 1.9000 by 1 kept change\n")


def test_a_gain_within_the_noise_is_called_so(maker):
    maker.tried("keep", 1.999, "DEPTH = 1\n", "a little")
    assert "can't be told from noise" in finalize(maker.saved)["text"]
    maker.tried("keep", 1.5, "DEPTH = 2\n", "a lot")
    assert "can't be told from noise" not in finalize(maker.saved, branch="again")["text"]


def test_nothing_kept_is_nothing_to_hand_over(maker):
    maker.tried("discard", 2.1, "DEPTH = 1\n", "no")
    with pytest.raises(AutoresearchError, match="has kept nothing yet"):
        finalize(maker.saved)
    assert git(maker.workspace, "branch", "--list", "autoresearch-mar8") == ""
