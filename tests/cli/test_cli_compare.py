"""`autoresearch compare` as people start it: two real searches, a table of another tool, and what is refused."""

import json
import shutil

import pytest

HEADER = "commit\tval_bpb\tmemory_gb\tstatus\tdescription\n"
TABLE = HEADER + (
    "aaaaaaa\t1.000000\t44.0\tkeep\tbaseline\n"
    "bbbbbbb\t0.000000\t0.0\tcrash\tdouble the width\n"
    "ccccccc\t0.950000\t44.0\tkeep\tlearning rate 0.3 to 1.0\n"
    "ddddddd\tfast\t44.0\tkeep\tno number\n"
)


@pytest.fixture
def two_runs(workspace, autoresearch, ideas):
    """Of one machine: the runs `one` and `two` of a workspace."""
    for tag, candidates in {"one": {"a": 1.0, "b": 0.01}, "two": {"a": 0.5, "b": 0.02}}.items():
        folder = ideas(**candidates)
        done = autoresearch("--agent", f"script:{folder}", "--tag", tag, cwd=workspace)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(folder)
    return workspace


def test_two_runs_of_one_machine_are_ranked(two_runs, autoresearch, tmp_path):
    page = tmp_path / "compare.html"
    done = autoresearch("compare", "one", "two", "--json", "--html", page, cwd=two_runs)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert f"page: {page}" in done.stderr
    assert "<title>compared: one, two</title>" in page.read_text()
    assert found["not_ranked"] == []
    (ranking,) = found["rankings"]
    order = [place["val_bpb"] for place in ranking["order"]]
    assert len(order) == 2 and order == sorted(order)
    lead = ranking["steps"][0]["lead"]
    assert lead["bpb"] == pytest.approx(order[1] - order[0])
    assert lead["low"] < lead["bpb"] < lead["high"]
    rate = found["constants"]["LEARNING_RATE"]
    assert rate["one"]["from"] == 0.3 and rate["one"]["to"] == 1.0 and rate["two"]["to"] == 0.5
    (pair,) = found["agreement"]
    assert {move["move"] for move in pair["moves"]} == {"LEARNING_RATE up", "LEARNING_RATE down"}
    text = autoresearch("compare", "one", "two", cwd=two_runs)
    assert text.returncode == 0, text.stderr
    assert "\r" not in text.stdout and "\x1b" not in text.stdout
    assert "LEARNING_RATE  0.3 → 1, ×3.33 (up 1/1, down 0/1)" in text.stdout


def test_a_run_and_a_table_of_another_tool(two_runs, autoresearch, tmp_path):
    table = tmp_path / "h100.tsv"
    table.write_text(TABLE)
    done = autoresearch("compare", "--workspace", two_runs, "one", table, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "h100, with any: on what it was measured isn't known" in done.stdout
    assert "h100: 1.000000 → 0.950000 bpb, a gain of 0.050000 or +5.00 %" in done.stdout
    assert "line 5: kept, but its score is no number ('fast')" in done.stdout
    assert "LEARNING_RATE" in done.stdout
    journal = two_runs / ".autoresearch" / "two" / "journal.jsonl"
    carried = tmp_path / "elsewhere.jsonl"
    shutil.copy(journal, carried)
    again = autoresearch("compare", carried, table, "--json", cwd=tmp_path)
    assert [run["kind"] for run in json.loads(again.stdout)["runs"]] == ["run", "table"]


def test_a_table_alone(tmp_path, autoresearch):
    (tmp_path / "results.tsv").write_text(TABLE)
    done = autoresearch("compare", "results.tsv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3: 2 keep, 1 crash" in done.stdout
    assert done.stdout.index("a gain of 0.050000") < done.stdout.index("largest gains")


def test_what_is_refused(tmp_path, autoresearch):
    (tmp_path / "notes.txt").write_text("Dear diary\n")
    (tmp_path / "results.tsv").write_text(TABLE)
    refusals = {
        ("compare",): "Missing argument 'RUN...'",
        ("compare", "notes.txt"): "notes.txt is no table of results",
        ("compare", "results.tsv", "nowhere"): "no run 'nowhere'",
    }
    for args, message in refusals.items():
        done = autoresearch(*args, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr and "hint: " in done.stderr and "Traceback" not in done.stderr
    unwritable = autoresearch("compare", "results.tsv", "--html", "no/folder/page.html", cwd=tmp_path)
    assert unwritable.returncode == 1
    assert "can't write no/folder/page.html" in unwritable.stderr
