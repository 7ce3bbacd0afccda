"""A search with a reviewer: the real SDK over HTTP, the null backend, candidates from a folder."""

import json

import pytest

MODEL = "claude-haiku-4-5"


@pytest.fixture
def review(api, workspace, autoresearch, ideas, serve):
    """Search over two candidates that a local server judges: `review(server script, options)`."""

    def run(*script, options=()):
        server = serve(*script)
        found = ideas(a=1.0, b=2.0)
        done = autoresearch(
            *("--agent", f"script:{found}", "--reviewer", MODEL, *options),
            cwd=workspace,
            env={"ANTHROPIC_BASE_URL": server.url},
        )
        return done, server

    return run


def test_a_veto_is_a_line_of_the_journal_and_no_experiment(api, review, workspace, autoresearch, journal):
    veto = api.answer(api.use("review", verdict="veto", kind="dead end", reason="rates above 0.5 diverged"))
    accept = api.answer(api.use("review", verdict="accept", kind="other", reason="worth a try"))
    done, server = review(veto, accept, options=("--max-cost", "1"))
    assert done.returncode == 0, done.stderr
    events = journal(workspace)
    (refused,) = [event for event in events if event["event"] == "refused"]
    assert refused["reason"] == "vetoed by the reviewer: dead end: rates above 0.5 diverged"
    assert f"refused: a.py: {refused['reason']}" in done.stdout
    (proposed,) = [event for event in events if event["event"] == "proposed" and event["n"]]
    assert (proposed["origin"], proposed["facts"]["review"]) == ("b.py", "worth a try")
    calls = [event for event in events if event["event"] == "call"]
    assert [(call["agent"], call["n"]) for call in calls] == [("reviewer", 1), ("reviewer", 1)]
    assert len(server.requests) == 2
    assert server.refused == []
    status = json.loads(autoresearch("status", "--json", cwd=workspace).stdout)
    assert status["cost_usd"] == pytest.approx(sum(event["usd"] for event in events if event["event"] == "charged"))
    assert status["cost_usd"] > 0


def test_a_reviewer_that_is_down_stops_nothing(api, review, workspace, journal):
    done, _ = review([api.error(400, "no such model")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not reviewed: ") == 2
    assert [event["n"] for event in journal(workspace) if event["event"] == "decided"] == [0, 1, 2]


def test_its_price_must_be_known_under_a_cap(review, workspace, autoresearch, ideas):
    options = ("--agent", f"script:{ideas(a=1.0)}", "--reviewer", "my-model", "--max-cost", "1")
    done = autoresearch(*options, cwd=workspace, env={"ANTHROPIC_API_KEY": "sk-test"})
    assert done.returncode == 2
    assert "no price is known for the model 'my-model'" in done.stderr
    assert not list((workspace / ".autoresearch").glob("*/journal.jsonl"))
