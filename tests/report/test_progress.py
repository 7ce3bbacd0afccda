"""The scale of a progress plot and what lies at its edges; the picture that is drawn of it."""

import struct

import pytest

from autoresearch.core.errors import AutoresearchError
from autoresearch.report import plot
from autoresearch.report.progress import progress
from autoresearch.report.trajectory import of_run

RESUMED = {"event": "resumed", "comparability_key": "b"}


@pytest.fixture
def searched(run, experiment):
    """2.0 to 1.9 with a crash, a bad outlier and a withdrawn keep."""
    return of_run(
        run(
            experiment(0, "keep", 2.0),
            experiment(1, "crash", None),
            experiment(2, "keep", 1.9),
            experiment(3, "discard", 9.0, parent=2),
            [*experiment(4, "keep", 1.88, parent=2), {"event": "withdrawn", "n": 4, "reason": "fresh seeds"}],
            *(experiment(n, "discard", 1.95, parent=2) for n in range(5, 15)),
        )
    )


def test_scale(searched):
    found = progress(searched)
    assert 1.8 < found.low < 1.88 and 2.0 < found.high < 2.2, "a score of 9 doesn't flatten the others"
    edges = {point.row.number: point.edge for point in found.points if point.edge}
    assert edges == {1: "bottom", 3: "top"}
    assert all(found.low < point.y < found.high for point in found.points), "nothing lies outside, nothing at 0"
    assert [point.y for point in found.points if not point.edge] == [2.0, 1.9, 1.88, *[1.95] * 10]


def test_the_line_of_the_incumbent(searched):
    assert progress(searched).line == [(0, 2.0), (2, 1.9), (14, 1.9)], "a withdrawn keep is not in it"


def test_most_scores_above_the_baseline_are_shown(run, experiment):
    rising = of_run(run(experiment(0, "keep", 2.0), *(experiment(n, "discard", 2.0 + n / 100) for n in range(1, 11))))
    found = progress(rising)
    assert [point.row.number for point in found.points if point.edge] == [10]


def test_scores_of_another_key_have_no_place_on_the_scale(run, experiment):
    moved = of_run(
        run(
            experiment(0, "keep", 2.0),
            experiment(1, "discard", 2.1),
            [RESUMED],
            [
                {"event": "started", "n": 0, "k": 1, "seed": 9},
                {
                    "event": "measured",
                    "n": 0,
                    "k": 1,
                    "result": {"status": "ok", "val_bpb": 0.7, "comparability_key": "b"},
                },
                {"event": "anchored", "n": 0, "value": 0.7, "value_n": 1},
            ],
            experiment(2, "discard", 0.75, comparability_key="b"),
        )
    )
    found = progress(moved)
    assert [(point.row.number, point.y) for point in found.points] == [(0, 0.7), (2, 0.75)]
    assert [row.number for row in found.elsewhere] == [1]
    assert found.high < 1


@pytest.mark.parametrize("lives", [[], [("crash", None)], [("keep", 2.0)], [("crash", None)] * 3, [("keep", 0.0)]])
def test_few_experiments_and_failures_alone(run, experiment, lives):
    found = of_run(run(*(experiment(n, verdict, score) for n, (verdict, score) in enumerate(lives))))
    laid_out = progress(found)
    assert laid_out.low < laid_out.high
    assert len(laid_out.points) == len(lives)
    assert plot.png(found).startswith(b"\x89PNG")


def labels(axes) -> dict[str, int]:
    """How many points each label of the legend stands for."""
    return {c.get_label(): len(c.get_offsets()) for c in axes.collections if not c.get_label().startswith("_")}


def test_picture(searched):
    (axes,) = plot.figure(searched).axes
    assert labels(axes) == {"discarded": 11, "off the scale": 1, "failed": 1, "kept": 2}
    assert axes.get_title() == "nov30: 14 experiments, 1 kept, 2.0000 to 1.9000 (-5.00%)"
    assert axes.get_ylim() == pytest.approx((progress(searched).low, progress(searched).high))
    assert {text.get_text() for text in axes.texts} == {"idea 0", "idea 2"}
    assert struct.unpack(">II", plot.png(searched)[16:24]) == (1600, 800)


def test_labels_do_not_lie_on_each_other(run, experiment):
    lives = [experiment(n, "keep", 2.0 - n / 1000, parent=n - 1, hypothesis="a long text " * 9) for n in range(60)]
    made = plot.figure(of_run(run(*lives)))
    made.draw_without_rendering()
    (axes,) = made.axes
    assert 5 < len(axes.texts) < 60, "some are left out"
    frame = axes.get_window_extent()
    lines = []
    for text in axes.texts:
        assert len(text.get_text()) <= 48
        box = text.get_window_extent()
        assert frame.x0 - 10 < box.x0 and box.x1 < frame.x1 + 40
        lines.append((text.get_rotation(), axes.transData.transform(text.xy)))
    parallel = [(a, b) for i, a in enumerate(lines) for b in lines[:i] if a[0] == b[0]]
    assert parallel and all(abs(a[1] - b[1]).max() > 5 for a, b in parallel)


def test_texts_are_drawn_as_they_are(run, experiment, hostile):
    made = plot.figure(of_run(run(experiment(0, "keep", 2.0, hypothesis="$\\frac{$ \n" + hostile))))
    made.draw_without_rendering()  # mathematics that isn't any would raise
    assert "\n" not in made.axes[0].texts[0].get_text()


def test_without_matplotlib(searched, monkeypatch):
    monkeypatch.setattr(plot, "missing", lambda packages: list(packages))
    with pytest.raises(AutoresearchError, match="the picture needs matplotlib"):
        plot.png(searched)
