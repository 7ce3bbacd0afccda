"""Who proposes: names and mixes, what `auto` finds here, and what is missing before anything starts."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearch.agent import agents
from autoresearch.agent.agents import Part, check_agent, check_ready, choose, make_proposer, parts_of
from autoresearch.core.agent_settings import Caps, Claude, Command, Reviewer
from autoresearch.core.errors import UsageError
from autoresearch.core.task import Settings, Stop

SETTINGS = Settings("tinystories/smoke", backend="null")


@pytest.fixture(autouse=True)
def machine_without_agents(monkeypatch, tmp_path):
    """No key, and neither claude nor codex on the path."""
    for name in (*agents.CREDENTIALS, *agents._MORE_CREDENTIALS):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def without_sdk(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "anthropic" else found(name, *a))


def program(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bin" / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("agent", "parts"),
    [
        ("auto", [Part("auto")]),
        ("claude", [Part("claude")]),
        ("command:codex", [Part("command", "codex")]),
        ("command:my-agent --to a@2,b {prompt}", [Part("command", "my-agent --to a@2,b {prompt}")]),
        ("script:ideas,random ones", [Part("script", "ideas,random ones")]),
        ("optimizer,claude", [Part("optimizer"), Part("claude")]),
        ("optimizer@2,claude@1", [Part("optimizer", "", 2.0), Part("claude", "", 1.0)]),
        ("optimizer@0.5, random", [Part("optimizer", "", 0.5), Part("random")]),
        ("command:a,b@3,claude@2", [Part("command", "a,b", 3.0), Part("claude", "", 2.0)]),
        ("claude,command:x,command:y@2", [Part("claude"), Part("command", "x"), Part("command", "y", 2.0)]),
    ],
)
def test_names_and_mixes(agent, parts):
    assert parts_of(agent) == tuple(parts)


@pytest.mark.parametrize(
    ("agent", "problem", "hint"),
    [
        ("optimiser", "no agent 'optimiser'", "did you mean 'optimizer'?"),
        ("claud", "no agent 'claud'", "did you mean 'claude'?"),
        ("optimizer,claud", "no agent 'claud'", "did you mean 'claude'?"),
        ("comand:claude", "no agent 'comand:claude'", "did you mean 'command:CMD'?"),
        ("command:", "no agent 'command:'", "did you mean 'command:CMD'?"),
        ("script", "no agent 'script'", "did you mean 'script:DIR'?"),
        ("claude:opus", "no agent 'claude:opus'", "did you mean 'claude'?"),
        ("", "no agent ''", "valid: "),
        ("optimizer,", "no agent ''", "valid: "),
        ("optimizer@0,claude", "the share of optimizer must be positive", "optimizer@2,claude@1"),
        ("auto,claude", "auto is no part of a mix", "optimizer@2,claude@1"),
        ("claude,claude", "the same agent twice", "optimizer@2,claude@1"),
    ],
)
def test_wrong_names(agent, problem, hint):
    with pytest.raises(UsageError) as caught:
        check_agent(agent)
    assert problem in caught.value.message
    assert hint in caught.value.hint


def test_auto_is_the_optimizer_without_a_key():
    parts, notes = choose("auto")
    assert parts == (Part("optimizer"),)
    assert notes == ["proposals: optimizer, Optuna's TPE over the constants of train.py: no key for Claude is set"]


@pytest.mark.parametrize("name", agents.CREDENTIALS)
def test_auto_is_claude_with_a_key(name, monkeypatch):
    monkeypatch.setenv(name, "http://localhost:1")
    parts, notes = choose("auto")
    assert parts == (Part("claude"),)
    assert notes == [f"proposals: claude, since {name} is set"]


def test_auto_says_how_to_install_what_a_key_is_for(without_sdk, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    parts, (note,) = choose("auto")
    assert parts == (Part("optimizer"),)
    assert "ANTHROPIC_API_KEY is set, but the anthropic SDK isn't installed (in the clone" in note


def test_auto_names_the_coding_agents_that_are_here(tmp_path):
    program(tmp_path, "codex")
    assert choose("auto")[1][1] == "codex found on this machine: --agent command:codex would let it propose"
    program(tmp_path, "claude")
    assert choose("auto")[1][1] == (
        "claude and codex found on this machine: --agent command:claude or --agent command:codex would let it propose"
    )
    assert len(choose("optimizer")[1]) == 0


@pytest.mark.parametrize("asked", [{"agent": "claude"}, {"agent": "optimizer,claude"}, {"reviewer": Reviewer("m")}])
def test_a_key_and_the_sdk_are_asked_for_before_anything_starts(asked, monkeypatch, tmp_path, request):
    settings = replace(SETTINGS, **asked)
    with pytest.raises(UsageError, match="needs a key, and none is set") as caught:
        check_ready(settings, tmp_path)
    assert "set ANTHROPIC_API_KEY" in caught.value.hint
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://localhost:1")
    check_ready(settings, tmp_path)
    request.getfixturevalue("without_sdk")
    with pytest.raises(UsageError, match="needs the anthropic SDK") as caught:
        check_ready(settings, tmp_path)
    assert caught.value.hint == "in the clone of autoresearch: pip install '.[claude]'"
    check_ready(SETTINGS, tmp_path)


@pytest.mark.parametrize(
    "cap", [{"stop": Stop(max_cost=1.0)}, {"caps": Caps(call_usd=1.0)}, {"caps": Caps(day_usd=1.0)}], ids=str
)
@pytest.mark.parametrize("asked", [{"claude": Claude("claude-next")}, {"reviewer": Reviewer("claude-next")}], ids=str)
def test_under_a_cap_every_price_must_be_known(asked, cap, monkeypatch, tmp_path):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    settings = replace(SETTINGS, agent="claude", **asked)
    check_ready(settings, tmp_path)
    with pytest.raises(UsageError, match="no price is known for the model 'claude-next'") as caught:
        check_ready(replace(settings, **cap), tmp_path)
    assert "[claude] prices" in caught.value.hint
    (tmp_path / "mine.toml").write_text(
        "[claude-next]\ninput = 1\noutput = 2\ncache_write = 1\ncache_write_hour = 1\ncache_read = 0\n"
    )
    known = replace(settings, **cap, claude=replace(settings.claude, prices="mine.toml"))
    check_ready(known, tmp_path)
    check_ready(replace(settings, agent="optimizer", reviewer=Reviewer(), **cap), tmp_path)


def test_under_a_cap_the_cost_of_a_command_must_be_known(tmp_path):
    program(tmp_path, "my-agent")
    settings = replace(SETTINGS, agent="command:my-agent", stop=Stop(max_cost=1.0))
    with pytest.raises(UsageError, match="what a call of the command costs isn't known"):
        check_ready(settings, tmp_path)
    check_ready(replace(settings, command=Command(estimate_usd=0.1)), tmp_path)
    check_ready(replace(settings, stop=Stop()), tmp_path)
    with pytest.raises(UsageError, match="no program 'gone'"):
        check_ready(replace(SETTINGS, agent="command:gone"), tmp_path)


@pytest.mark.parametrize("agent", ["auto", "optimizer", "random"])
def test_the_free_ones(agent, purse, tmp_path):
    proposer, notes = make_proposer(replace(SETTINGS, agent=agent), tmp_path, purse().ledger, None)
    assert proposer.name == ("random" if agent == "random" else "optimizer")
    assert bool(notes) == (agent == "auto"), "a choice is said with its reason"


def test_a_mix_and_a_reviewer(purse, tmp_path):
    settings = replace(SETTINGS, agent="optimizer@2,claude", reviewer=Reviewer("claude-haiku-5-5"))
    proposer, notes = make_proposer(settings, tmp_path, purse().ledger, None)
    assert [(part.name, type(part).__name__) for part in proposer.parts] == [
        ("optimizer", "Optimizer"),
        ("claude", "Reviewed"),
    ]
    assert notes == []
    _, notes = make_proposer(replace(settings, agent="optimizer"), tmp_path, purse().ledger, None)
    assert notes == ["the reviewer has nothing to do: neither values of constants alone nor replays are reviewed"]


def test_a_model_without_a_price_is_said_once(purse, tmp_path):
    settings = replace(SETTINGS, agent="claude", claude=Claude("my-own"), reviewer=Reviewer("my-own"))
    _, notes = make_proposer(settings, tmp_path, purse().ledger, None)
    assert notes == ["no price is known for the model 'my-own': its calls are counted as 0 dollars ([claude] prices)"]


def test_the_survey_tells_no_key(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    found = agents.survey()
    assert (found["key"], found["commands"]) == ("ANTHROPIC_API_KEY", [])
    assert found["anthropic"]
    assert "sk-ant-secret" not in str(found)


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
@pytest.mark.parametrize(
    "key", ["sk-secret\r", "sk-secret\n", " sk-secret", "sk secret", "sk-secret\x7f", "sk-secreté"]
)
def test_a_key_with_blanks_or_control_characters_is_refused_unshown(name, key, monkeypatch, tmp_path):
    monkeypatch.setenv(name, key)
    with pytest.raises(UsageError, match=f"{name} holds blanks") as caught:
        check_ready(replace(SETTINGS, agent="claude"), tmp_path)
    assert "secret" not in caught.value.message + caught.value.hint
