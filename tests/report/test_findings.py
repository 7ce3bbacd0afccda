"""What is concluded from a run's numbers, and when it is not."""

import pytest

from autoresearch.report import findings
from autoresearch.report.findings import by_category, conclude, pace
from autoresearch.report.trajectory import of_run


@pytest.fixture
def concluded(run, experiment):
    def conclude_on(*lives, audited="") -> findings.Conclusion:
        events = [experiment(n, *life) if isinstance(life, tuple) else life for n, life in enumerate(lives)]
        return conclude(of_run(run(*events)), audited)

    return conclude_on


def test_a_gain(concluded):
    found = concluded(("keep", 2.0), ("keep", 1.9), ("discard", 2.2, 1), ("keep", 1.6, 1))
    assert found.gained.startswith("val_bpb went from 2.0000 to 1.6000: a gain of 0.4000 ± 0.0")
    assert found.gained.endswith(" bpb, 20.0%.")
    assert found.mattered == "What mattered: #3 idea 3 (−0.3000, 75%); #1 idea 1 (−0.1000, 25%)."
    assert found.sure.startswith("95 % confidence, from the spread between seeds 0.0100 (stated prior)")
    assert "the baseline once, the best once" in found.sure and "Not audited" in found.sure
    assert found.audited == ""


def test_a_gain_within_the_noise_is_said_to_be_none(concluded):
    found = concluded(("keep", 2.0), ("keep", 1.999))
    assert found.sure.startswith("That can't be told from noise")
    assert "can't be told" not in concluded(("keep", 2.0), ("keep", 1.8)).sure


def test_what_the_audit_says_stands_beside_it(concluded):
    found = concluded(("keep", 2.0), ("keep", 1.6), audited="the gain is real")
    assert found.audited == "Audit: the gain is real."
    assert "audit" not in found.sure.lower()


@pytest.mark.parametrize(
    "lives, told",
    [
        ([], "Nothing was measured yet."),
        ([("crash", None)], "The baseline failed, so no change could be judged: crash: because 0"),
        ([("keep", 2.0)], "No gain yet: no change was tried. The baseline is 2.0000 bpb."),
        ([("keep", 2.0), ("discard", 2.1)], "No gain yet: the one change was not kept. The baseline is 2.0000 bpb."),
        ([("keep", 2.0), ("discard", 2.1), ("crash", None)], "No gain yet: none of 2 changes was kept."),
    ],
)
def test_no_gain(concluded, lives, told):
    found = concluded(*lives)
    assert found.gained.startswith(told)
    assert (found.mattered, found.sure) == ("", "")


def test_no_gain_is_told_across_machines(run, experiment):
    moved = [
        {"event": "resumed", "comparability_key": "b"},
        {"event": "started", "n": 1, "k": 1, "seed": 9},
        {"event": "measured", "n": 1, "k": 1, "result": {"status": "ok", "val_bpb": 0.7, "comparability_key": "b"}},
        {"event": "anchored", "n": 1, "value": 0.7, "value_n": 1},
    ]
    found = conclude(of_run(run(experiment(0, "keep", 2.0), experiment(1, "keep", 1.9), moved)))
    assert "scores 0.7000 bpb" in found.gained and "another machine" in found.gained
    assert "1.3" not in str(found)
    away = conclude(of_run(run(experiment(0, "keep", 2.0), [{"event": "resumed", "comparability_key": "b"}])))
    assert away.gained == "Nothing was measured on this machine yet."


def test_categories(run, experiment):
    rows = of_run(
        run(
            experiment(0, "keep", 2.0),
            experiment(1, "keep", 1.9, category="size"),
            experiment(2, "discard", 2.5, category="size", parent=1),
            [*experiment(3, "keep", 1.0, category="luck", parent=1), {"event": "withdrawn", "n": 3, "reason": "r"}],
            experiment(4, "crash", None, category="batch", parent=1),
            experiment(5, "keep", 1.4, category="batch", parent=1),
        )
    ).rows
    found = {c.name: (c.tried, c.kept, c.failed, round(c.gain, 6), c.seconds) for c in by_category(rows)}
    assert found == {"batch": (2, 1, 1, 0.5, 120.0), "size": (2, 1, 0, 0.1, 120.0), "luck": (1, 0, 0, 0.0, 60.0)}
    assert list(found) == ["batch", "size", "luck"], "the largest gain first; a withdrawn keep gains nothing"


def test_throughput_is_compared_for_equal_sources_alone(run, experiment):
    again = [
        {"event": "started", "n": 0, "k": 1, "seed": 9},
        {
            "event": "measured",
            "n": 0,
            "k": 1,
            "result": {
                "status": "ok",
                "val_bpb": 2.0,
                "comparability_key": "a",
                "source_hash": "s0",
                "tokens_per_second": 300.0,
                "probe_before": 3.0,
                "suspect": "slow",
            },
        },
    ]
    history = run(
        experiment(0, "keep", 2.0, tokens_per_second=100.0, probe_before=1.0),
        experiment(1, "discard", 2.1, tokens_per_second=7.0),
        again,
        experiment(2, "discard", 2.1, tokens_per_second=5.0, probe_before=9.0, comparability_key="b"),
    ).history
    found = [(one.order, one.number, one.tokens, one.probe, one.suspect) for one in pace(history)]
    assert found == [(0, 0, 0.5, 0.5, False), (2, 0, 1.5, 1.5, True)]
