"""The audit's statistics and its journal; what it measures is tested through the command line."""

import json
from dataclasses import replace

import numpy as np
import pytest

from autoresearch.agent import audit
from autoresearch.agent.audit import SEEDS, _Auditor
from autoresearch.agent.lab import Run
from autoresearch.agent.loop import search
from autoresearch.core import audits, interval
from autoresearch.core.audits import Audited, Audits, Subject, compare, compare_excess, counted, next_arm
from autoresearch.core.contract import Result
from autoresearch.core.dataset import Dataset
from autoresearch.core.errors import AutoresearchError, DataError
from autoresearch.core.interval import Interval
from autoresearch.core.noise import fresh_seed
from autoresearch.core.runs import SavedRun
from autoresearch.report.audit import along, conclusion, document, text

BASELINE, INCUMBENT = 0, 7


def made(
    n: int, val: float | None, test: float | None = None, suspect: str = "", other: float | None = None
) -> Audited:
    status = "ok" if val is not None else "crash"
    scores = {} if val is None else {"test_bpb": val + 0.1 if test is None else test}
    if other is not None:
        scores["text_bpb"] = other
    return Audited(n, Result(status=status, val_bpb=val, suspect=suspect), scores)


def shape(measured: list[Audited]) -> str:
    return "".join("BI"[one.n > 0] for one in measured)


# Order


@pytest.mark.parametrize(("repeats", "order"), [(2, "BIIB"), (3, "BIIBBI"), (6, "BIIBBIIBBIIB")])
def test_the_two_are_interleaved(repeats, order):
    measured = []
    while (arm := next_arm(measured, repeats)) is not None:
        measured.append(made((BASELINE, INCUMBENT)[arm], 1.0))
    assert shape(measured) == order
    assert next_arm(measured, repeats + 1) == (repeats % 2)


def test_a_suspect_measurement_is_made_again_once_and_a_failure_until_it_works():
    clean, suspect, failed = made(BASELINE, 1.0), made(BASELINE, 5.0, suspect="slept"), made(BASELINE, None)
    assert next_arm([suspect], 2) == next_arm([failed], 2) == next_arm([failed, failed], 2) == 0
    assert next_arm([clean], 2) == next_arm([suspect, clean], 2) == next_arm([failed, clean], 2) == 1
    assert counted([suspect, clean]) == [clean]
    assert counted([suspect, suspect]) == [suspect], "the repeat counts, suspect or not"
    assert counted([suspect, failed, suspect, clean]) == [suspect, clean]


# Coverage


def simulated(rng, seed_of=lambda k: k, drift: float = 0.0, order=None) -> Interval:
    """An audit on a machine whose scores grow by `drift` a measurement; the true gain is 1."""
    spread, errors, measured = {BASELINE: 1.0, INCUMBENT: 2.0}, {}, []
    salt = int(rng.integers(2**31))
    while (arm := next_arm(measured, 6)) is not None:
        k = len(measured)
        n = (BASELINE, INCUMBENT)[arm if order is None else order(k)]
        seed = fresh_seed(salt, SEEDS, seed_of(k))
        error = errors.setdefault(seed, float(rng.normal()))
        measured.append(made(n, (2.0 if n == BASELINE else 1.0) + spread[n] * error + drift * k))
    return compare(measured, "val").gain


def coverage(**faults) -> float:
    rng = np.random.default_rng(11)
    found = [simulated(rng, **faults) for _ in range(1000)]
    return sum(gain.low <= 1.0 <= gain.high for gain in found) / len(found)


def test_the_interval_covers_the_true_gain_in_95_of_100_audits():
    assert 0.93 <= coverage() <= 0.97


def test_a_normal_quantile_would_be_noticed(monkeypatch):
    monkeypatch.setattr(interval, "t_quantile", lambda p, dof: 1.959964)
    assert coverage() < 0.93


def test_a_shared_seed_would_be_noticed():
    assert coverage(seed_of=lambda k: 0) < 0.5


def test_a_drift_of_the_machine_favours_neither():
    assert 0.93 <= coverage(drift=0.2)
    assert coverage(drift=0.2, order=lambda k: k >= 6) < 0.93, "one after the other would be noticed"


# The journal


def events(*measured: Audited, incumbent: int = INCUMBENT, key: str = "key", text: str = "", first: int = 0):
    yield {"event": "audit", "incumbent": incumbent, "key": key, "text": text}
    for k, one in enumerate(measured, start=first):
        yield {"event": "started", "n": one.n, "k": k, "seed": k, "mark": "mark"}
        scores = dict(one.scores)
        yield {"event": "measured", "n": one.n, "k": k, "result": one.result.to_json(), "scores": scores}


def test_measurements_belong_to_what_was_audited():
    one, two, three = made(BASELINE, 1.0), made(BASELINE, 2.0), made(INCUMBENT, 3.0)
    journal = [*events(one), *events(two, text="abc", first=1), *events(three, first=2)]
    found = Audits.from_events([*journal, {"event": "of a later version"}], "the journal")
    assert found.measured == {Subject(7, "key", ""): [one, three], Subject(7, "key", "abc"): [two]}
    assert (found.count, found.unfinished) == (3, None)
    assert [result.val_bpb for result in found.results] == [1.0, 3.0, 2.0]
    cut_off = Audits.from_events(journal[:-1], "the journal")
    assert cut_off.unfinished == (2, 2, "mark")
    assert cut_off.count == 2


@pytest.mark.parametrize(
    "damage",
    [
        [{"event": "audit", "key": "k"}],
        [{"event": "measured", "n": 0, "k": 0, "result": {"status": "ok"}, "scores": {}}],
        [*list(events(made(0, 1.0)))[:2], {"event": "measured", "n": 0, "k": 5, "result": {}, "scores": {}}],
    ],
)
def test_a_journal_that_contradicts_itself_is_an_error(damage):
    with pytest.raises(DataError, match="the file contradicts itself"):
        Audits.from_events(damage, "the file")


def test_nothing_of_an_audit_reaches_a_proposer(lab_of, machine, listed, listener):
    """Neither the file beside the journal nor the routine test scores."""
    lab = lab_of(machine, max_experiments=3)
    secret = 1.2345678
    (lab.run.folder / "audits.jsonl").write_text(
        "\n".join(
            json.dumps(event) for event in events(made(BASELINE, secret, secret), made(INCUMBENT, secret, secret))
        )
    )
    measure = machine.measure
    machine.measure = lambda *given: replace(measure(*given), audit={"test_bpb": secret})
    proposer = listed(a=1.5, b=1.9, c=1.0)
    search(lab, proposer, listener)
    assert len(proposer.contexts) == 3
    assert str(secret) not in repr(proposer.contexts)
    assert str(secret) not in (lab.run.folder / "journal.jsonl").read_text()
    assert str(secret) in (lab.run.folder / "audit.jsonl").read_text(), "it was there to be seen"


# Measuring


@pytest.fixture
def auditor(lab_of, machine, listed, listener, monkeypatch):
    """Of a run with one keep, on a machine whose scores are told beforehand."""
    lab = lab_of(machine, max_experiments=1)
    search(lab, listed(a=1.5), listener)
    monkeypatch.setattr(Dataset, "rows", lambda self, split: np.zeros((20, 65), np.uint16))
    monkeypatch.setattr(Run, "executor", lambda self: machine)
    machine.measured.clear()
    return lambda: _Auditor(lab.run, None, listener)


def test_a_measurement_that_the_machine_spoiled_is_made_again(auditor, machine, monkeypatch):
    judged = []

    def suspicion(result, earlier):
        judged.append(len(earlier))
        return "the machine slept" if len(judged) == 2 else ""

    monkeypatch.setattr(audit, "suspicion", suspicion)
    first = auditor()
    first.measure(2)
    measured = first._audits.measured[first.subject]
    assert shape(measured) == "BIIIB"
    assert [one.result.suspect for one in counted(measured)] == [""] * 4
    assert judged == [2, 3, 4, 5, 6], "it is compared with everything measured before, the search's scores included"


def test_a_measurement_that_fails_twice_in_a_row_ends_the_audit_for_now(auditor, machine):
    machine.status = "timeout"
    with pytest.raises(AutoresearchError, match="the baseline could not be measured: timeout: as planned"):
        auditor().measure(2)
    assert len(machine.measured) == 2
    machine.status = "ok"
    again = auditor()
    again.measure(2)
    assert shape(counted(again._audits.measured[again.subject])) == "BIIB"
    assert len({seed for _, seed in machine.measured}) == 6, "no seed comes twice"


# What is told


def test_the_conclusion_says_what_the_interval_says():
    def told(claimed: float | None, low: float, high: float) -> str:
        return conclusion(claimed, Interval((low + high) / 2, low, high, 10))

    assert told(0.1, 0.07, 0.11) == (
        "the search's gain of 0.1000 bpb on val is real: 0.0900 ± 0.0200 bpb on held-out test text"
    )
    assert "is real but smaller than claimed: 0.0300 ± 0.0100" in told(0.1, 0.02, 0.04)
    assert "can't be told from noise: 0.0100 ± 0.0200" in told(0.1, -0.01, 0.03)
    assert "is worse than the baseline: -0.0300" in told(0.1, -0.04, -0.02)
    good = Interval(0.1, 0.09, 0.11, 10)
    assert conclusion(0.1, good, good).endswith("test text; on the other text it holds too: +0.1000 ± 0.0100 bpb")
    assert "on the other text it is a loss: -0.0500" in conclusion(0.1, good, Interval(-0.05, -0.06, -0.04, 10))
    assert "there is none to be told from noise: +0.0100" in conclusion(0.1, good, Interval(0.01, -0.01, 0.03, 10))
    assert told(None, 0.02, 0.04) == "the search's gain is real: 0.0300 ± 0.0100 bpb on held-out test text"


def test_the_excess_of_val_is_found_in_differences_of_the_same_weights():
    """Seeds move val and test together by 1; choosing by val bought 0.01 that test doesn't show."""
    rng = np.random.default_rng(3)
    measured = []
    for n, gain in ((BASELINE, 0.0), (INCUMBENT, 0.05)):
        for _ in range(6):
            common, own = rng.normal(), rng.normal(0, 0.001)
            measured.append(made(n, 2 + common - gain, 2.1 + common + own - (gain - 0.01 if n else 0)))
    excess = compare_excess(measured)
    assert excess.low < 0.01 < excess.high
    assert excess.half_width < 0.005
    assert compare(measured, "val").gain.half_width > 0.5


@pytest.fixture
def state(lab_of, machine, listed, listener, place) -> SavedRun:
    """A run with two keeps, whose test score follows val at a growing distance."""
    lab = lab_of(machine, spread=0.01, max_experiments=3)
    measure = machine.measure

    def with_gap(*given):
        measured = measure(*given)
        val = measured.result.val_bpb
        return replace(measured, audit={"test_bpb": val + 0.1 * (3 - val)})

    machine.measure = with_gap
    search(lab, listed(a=1.5, worse=1.9, b=1.0), listener)
    entries = [json.loads(line) for line in (lab.run.folder / "audit.jsonl").read_text().splitlines()]
    return SavedRun("tag", place.run_dir("tag"), place, lab.history, tuple(entries))


def test_the_gap_along_the_run(state):
    found = along(state)
    rows = {row["experiment"]: row for row in found["experiments"]}
    assert [row["kept"] for row in rows.values()] == [True, True, False, True]
    assert rows[0]["gap"] == pytest.approx(0.1)
    assert rows[3]["gap"] == pytest.approx(0.2)
    assert found["gap_change"] == pytest.approx(0.1)
    assert found["correlation"] == pytest.approx(1)
    assert along(replace(state, audit=()))["experiments"] == []


def test_the_document_and_its_text(state):
    incumbent = state.history.incumbent.number
    pairs = [(0, 2.0, 2.1, 3.0), (incumbent, 1.0, 1.2, 2.9), (incumbent, 1.01, 1.21, 3.1), (0, 2.01, 2.11, 3.0)]
    journal = events(*(made(n, v, t, other=o) for n, v, t, o in pairs), incumbent=incumbent, key="a", text="digest")
    (state.folder / "audits.jsonl").write_text("".join(json.dumps(event) + "\n" for event in journal))
    found = document(state, Subject(incumbent, "a", "digest"))
    assert found["same_machine"]
    assert found["texts"]["val"]["gain"]["bpb"] == pytest.approx(1.0)
    assert found["texts"]["test"]["gain"]["bpb"] == pytest.approx(0.9)
    assert found["val_gain_above_test_gain"]["bpb"] == pytest.approx(0.1)
    assert found["texts"]["text"]["incumbent"] == {
        "bpb": pytest.approx(3.0),
        "spread": pytest.approx(0.1414, abs=1e-3),
        "n": 2,
    }
    assert found["claimed_gain"] == pytest.approx(1.0, abs=0.01)
    assert "smaller than claimed" in found["conclusion"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    told = text(found)
    assert told.startswith(found["conclusion"])
    assert f"fewer than {audits.ENOUGH} measurements of each" in told
    assert "other text" in told
    elsewhere = {**found, "same_machine": False}
    assert "measured on another machine" in text(elsewhere)
    assert "measured on another machine" not in told


def test_nothing_kept_is_said_in_one_sentence(state):
    found = document(state, None)
    assert found["texts"] == {}
    assert text(found).startswith("nothing was kept")
