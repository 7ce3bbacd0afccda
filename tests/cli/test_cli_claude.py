"""Claude as the agent of a whole search, by the real SDK over HTTP: what it costs, what ends it, what a kill leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from autoresearch.agent.ledger import Usage
from autoresearch.agent.prices import load_prices
from autoresearch.core.amounts import dollars

KEY = "sk-ant-api03-never-written-down"
MODEL = "claude-sonnet-5-5"


@pytest.fixture
def api_env(serve):
    """Start a server; the environment in which the command line finds it: `env, server = api_env(answer, …)`."""

    def start(*script):
        server = serve(*script)
        return {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY}, server

    return start


@pytest.fixture
def varied(api):
    """An answer that sets another learning rate each time; `varied(usage=…)`: what a request is said to have used."""

    def script(**more):
        rates = count(1)

        def answer(request):
            shown = next(b["text"] for b in request["messages"][0]["content"] if "LEARNING_RATE = " in b["text"])
            old = re.search(r"^LEARNING_RATE = \S+", shown, re.MULTILINE)[0]
            rate = round(0.3 + 0.01 * next(rates), 2)
            given = {name: value(request) for name, value in more.items()}
            return api.answer(api.edit(old, f"LEARNING_RATE = {rate}"), api.submit(f"the rate becomes {rate}"), **given)

        return [answer]

    return script


def served(server) -> float:
    """Dollars of all that the server served, by the table of prices."""
    prices, total = load_prices(), 0.0
    for usage in server.usages:
        hour = usage.get("cache_creation", {}).get("ephemeral_1h_input_tokens", 0)
        written = usage.get("cache_creation_input_tokens", 0)
        read = usage.get("cache_read_input_tokens", 0)
        total += prices.cost_of(MODEL, Usage(usage["input_tokens"], usage["output_tokens"], written - hour, hour, read))
    return total


def charged(events: list[dict]) -> list[float]:
    return [event["usd"] for event in events if event["event"] == "charged"]


def status_of(autoresearch, workspace: Path) -> dict:
    return json.loads(autoresearch("status", "--json", cwd=workspace).stdout)


def test_what_it_costs_is_what_was_served_and_the_dry_run_shows_what_is_sent(
    workspace, autoresearch, journal, api_env, varied, tmp_path
):
    env, server = api_env(varied())
    options = ["--agent", "claude", "--max-cost", "5"]
    assert autoresearch(*options, "--max-hours", "1e-9", cwd=workspace, env=env).returncode == 0
    assert server.requests == [], "the baseline needs no proposal"
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "anthropic.py").write_text("raise ImportError('not even loaded')\n")
    rehearsed = autoresearch(*options, "--dry-run", cwd=workspace, env={"PYTHONPATH": str(tmp_path / "without")})
    assert rehearsed.returncode == 0, rehearsed.stderr

    done = autoresearch(*options, "--max-experiments", "2", cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    events = journal(workspace)
    assert [e["proposer"] for e in events if e["event"] == "proposed"] == ["", "claude", "claude"]
    assert len(server.usages) == 2
    assert any(usage["cache_read_input_tokens"] for usage in server.usages), "the stable part comes from the cache"

    total = served(server)
    assert sum(charged(events)) == pytest.approx(total, abs=1e-9)
    status = status_of(autoresearch, workspace)
    assert status["cost_usd"] == pytest.approx(total, abs=1e-9)
    assert status["cost_by_agent"] == {"claude": status["cost_usd"]}
    report = json.loads(autoresearch("report", "--json", cwd=workspace).stdout)
    assert sum(row["cost_usd"] for row in report["experiments"]) == pytest.approx(total, abs=1e-9)
    assert len(re.findall(r"^#[12] .* s  \$0\.\d{3}  the rate becomes", done.stdout, re.MULTILINE)) == 2
    assert f"calls cost {dollars(total)}" in done.stdout

    first = server.requests[0]
    for text in [block["text"] for block in [*first["system"], *first["messages"][0]["content"]]]:
        assert text in rehearsed.stdout, "the dry run shows what is sent"
    for tool in first["tools"]:
        assert json.dumps(tool, ensure_ascii=False) in rehearsed.stdout
    assert json.dumps({"model": MODEL, "max_tokens": first["max_tokens"]}) in rehearsed.stdout
    assert re.search(r"estimated: \$0\.\d+ a proposal, \$\d+\.\d\d a night", rehearsed.stdout)

    for path in workspace.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
    assert KEY not in done.stdout + done.stderr
    assert any(KEY in value for value in server.headers[0].values()), "it was used all the same"


def test_a_cap_of_half_a_dollar_is_never_passed(workspace, autoresearch, journal, api_env, varied):
    """Each request is billed at the most that it can cost: bytes as tokens at the dearest price, the longest answer."""

    def usage(request):
        size = len(json.dumps(request, ensure_ascii=False).encode())
        return {
            "input_tokens": 0,
            "output_tokens": request["max_tokens"],
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": size,
            "cache_creation": {"ephemeral_1h_input_tokens": size},
        }

    env, server = api_env(varied(usage=usage))
    done = autoresearch("--agent", "claude", "--max-cost", "0.5", cwd=workspace, env=env)
    assert done.returncode == 3, done.stderr
    assert re.search(r"stopped: the next call could cost .* is left \(--max-cost\)", done.stdout)
    events = journal(workspace)
    spent = 0.0
    for event in events:
        if event["event"] == "call":
            assert spent + event["worst_usd"] <= 0.5 + 1e-9, "also with the call in flight"
        elif event["event"] == "charged":
            spent += event["usd"]
    assert 0.3 < spent <= 0.5
    assert spent == pytest.approx(served(server), abs=1e-9)
    assert status_of(autoresearch, workspace)["stop_reason"] == events[-1]["reason"]
    requests = len(server.requests)
    assert autoresearch("--agent", "claude", "--max-cost", "0.5", cwd=workspace, env=env).returncode == 3
    assert len(server.requests) == requests, "nothing is sent on resume either"
    more = autoresearch("--agent", "claude", "--max-cost", "0.7", cwd=workspace, env=env)
    assert more.returncode == 3
    assert len(server.requests) > requests, "a higher cap goes on"


def test_a_kill_during_a_call_loses_nothing_and_hides_nothing(
    workspace, autoresearch, journal, environment, api, api_env, varied
):
    env, server = api_env(api.HANG, varied())
    command = [sys.executable, "-m", "autoresearch", "--agent", "claude", "--max-experiments", "1", "--max-cost", "5"]
    search = subprocess.Popen(
        command, cwd=workspace, env={**environment, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert server.arrived.acquire(timeout=60), "the call is under way"
    finally:
        os.kill(search.pid, signal.SIGKILL)
        search.wait()
    (call,) = [event for event in journal(workspace) if event["event"] == "call"]
    assert call["worst_usd"] > 0
    assert status_of(autoresearch, workspace)["cost_usd"] == pytest.approx(call["worst_usd"], abs=1e-9)

    done = autoresearch(*command[3:], cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    said = f"a call of claude was cut off while it ran: perhaps billed, {dollars(call['worst_usd'])} charged\n"
    assert done.stdout.count(said) == 1
    assert "cut off" not in autoresearch(*command[3:], cwd=workspace, env=env).stdout, "said once"
    events = journal(workspace)
    kinds = [event["event"] for event in events]
    assert kinds.count("proposed") == kinds.count("decided") == 2, "a baseline and one experiment, none twice"
    assert len([event for event in events if event["event"] == "measured" and event["n"] == 0]) == 1
    calls = {event["id"] for event in events if event["event"] == "call"}
    assert sorted(calls) == sorted(event["id"] for event in events if event["event"] == "charged"), "each once"
    settled = next(event for event in events if event["event"] == "charged" and event["id"] == call["id"])
    assert settled["usd"] == call["worst_usd"]
    assert "cut off" in settled["outcome"]
    total = call["worst_usd"] + served(server)
    assert status_of(autoresearch, workspace)["cost_usd"] == pytest.approx(total, abs=1e-9)


def test_an_outage_ends_in_a_clean_stop_and_the_same_command_goes_on(
    workspace, autoresearch, journal, api, api_env, varied
):
    toml = workspace / "autoresearch.toml"
    quick = "\n[outages]\nretries = 1\nbase_seconds = 0.001\nrounds = 2\npause_seconds = 0.001\n"
    toml.write_text(toml.read_text() + quick)
    env, _ = api_env(*[api.error(529, "overloaded")] * 4, varied())
    options = ["--agent", "claude", "--max-experiments", "1"]
    done = autoresearch(*options, cwd=workspace, env=env)
    assert done.returncode == 1
    assert "error: 2 rounds in a row gave no proposal: overloaded: " in done.stderr
    assert "hint: run the same command again to go on" in done.stderr
    assert "trying again in 0 s (failed round 1 of 2)" in done.stdout
    events = journal(workspace)
    assert [(e["n"], e["kind"]) for e in events if e["event"] == "failed"] == [(1, "overloaded")] * 2
    assert charged(events) == [0.0] * 4, "each attempt is a line; an overloaded server bills nothing"
    assert events[-1]["event"] == "stopped"
    status = status_of(autoresearch, workspace)
    assert (status["experiments"], status["failed_rounds"], status["cost_usd"]) == (0, 2, 0.0)
    done = autoresearch(*options, cwd=workspace, env=env)
    assert done.returncode == 0, done.stderr
    assert status_of(autoresearch, workspace)["experiments"] == 1


@pytest.mark.parametrize(
    ("options", "toml", "env", "error", "hint"),
    [
        (["--agent", "claude"], "", {}, "--agent claude needs a key, and none is set", "set ANTHROPIC_API_KEY"),
        (["--reviewer", MODEL], "", {}, "--reviewer needs a key, and none is set", "set ANTHROPIC_API_KEY"),
        (
            ["--agent", "claude", "--max-cost", "1"],
            "[claude]\nmodel = 'claude-sonet-5-5'\n",
            {"ANTHROPIC_API_KEY": KEY},
            "no price is known for the model 'claude-sonet-5-5'",
            "did you mean 'claude-sonnet-5-5'?",
        ),
        (
            ["--agent", "optimizer@2,claude", "--dry-run"],
            "[claude]\nmodel = 'local'\n[caps]\nday_usd = 1.0\n",
            {},
            "no price is known for the model 'local'",
            "[claude] prices",
        ),
        (["--agent", "claude"], "[claude]\nprices = 'gone.toml'\n", {"ANTHROPIC_API_KEY": KEY}, "gone.toml", ""),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(options, toml, env, error, hint, workspace, autoresearch):
    settings = workspace / "autoresearch.toml"
    settings.write_text(settings.read_text() + toml)
    done = autoresearch(*options, cwd=workspace, env=env)
    assert done.returncode == 2, done.stderr
    assert error in done.stderr
    assert hint in done.stderr
    assert KEY not in done.stderr
    assert not list((workspace / ".autoresearch").glob("*/journal.jsonl"))


def test_a_dry_run_before_there_is_anything(tmp_path, autoresearch):
    """No key, no workspace: the prompt and the dollars all the same, and nothing is made."""
    done = autoresearch(
        "--backend", "null", "--agent", "optimizer@3,claude", "--max-hours", "4", "--max-cost", "1", "--dry-run",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "next proposal, after the baseline: " in done.stdout
    assert "--- tool submit_proposal ---" in done.stdout
    assert re.search(r"a night of 4 h: about \d+ experiments of \d+ s", done.stdout)
    assert re.search(r"estimated: .* a night; the cap of \$1\.00 ends it before", done.stdout)
    assert list(tmp_path.iterdir()) == []


def test_knowledge_is_told(workspace, autoresearch):
    (workspace / "knowledge.md").write_text("Depth is settled; leave it.\n")
    done = autoresearch("--agent", "claude", "--dry-run", cwd=workspace)
    assert "Depth is settled; leave it." in done.stdout
