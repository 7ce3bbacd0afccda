"""`autoresearch calibrate` as people start it."""

import json


def test_calibrate_starts_a_run_and_a_search_goes_on_from_it(autoresearch, workspace, journal, ideas):
    done = autoresearch("calibrate", "--repeats", "3", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "spread between seeds: " in done.stdout
    assert "at fixed tokens (seed, kernels): " in done.stdout
    assert "through throughput: 0.00000 bpb" in done.stdout, "every measurement has the eight steps of this task"
    kinds = [event["event"] for event in journal(workspace)]
    assert kinds.count("measured") == 4, "the baseline, then three fresh seeds of it"
    (key,) = json.loads((workspace / ".autoresearch" / "spread.json").read_text())
    searched = autoresearch("--agent", f"script:{ideas(good=2.0)}", cwd=workspace)
    assert searched.returncode == 0, searched.stderr
    status = json.loads(autoresearch("status", "--json", cwd=workspace).stdout)
    assert status["comparability_key"] == key
    assert (status["baseline"]["n"], status["experiments"]) == (4, 1)
    assert "3 measured" in searched.stdout
    another = autoresearch("--tag", "second", "--agent", f"script:{ideas(good=2.0)}", cwd=workspace)
    assert "2 measured" in another.stdout, "what was measured for this key is the new run's prior"


def test_calibrate_as_json_in_a_new_folder(autoresearch, tmp_path):
    options = ("--backend", "null", "--source", "stories:0.3", "--budget", "0.3", "--json")
    done = autoresearch("calibrate", "--repeats", "2", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"experiment": 0, "repeats": 2}.items() <= found.items()
    assert 0 < found["low"] < found["spread"] < found["high"]
    assert found["decides_by"]["measured"] == 2


def test_a_misspelt_tag_starts_no_run(autoresearch, workspace):
    assert autoresearch("--agent", "random", "--max-experiments", "1", "--tag", "one", cwd=workspace).returncode == 0
    done = autoresearch("calibrate", "--tag", "onne", cwd=workspace)
    assert (done.returncode, "no run 'onne'" in done.stderr, "runs: one" in done.stderr) == (2, True, True)
    assert not (workspace / ".autoresearch" / "onne").exists()


def test_too_few_repeats(autoresearch, workspace):
    for repeats in ("1", "0", "some"):
        done = autoresearch("calibrate", "--repeats", repeats, cwd=workspace)
        assert (done.returncode, "--repeats" in done.stderr) == (2, True)
