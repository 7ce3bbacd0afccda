"""The agent command: any coding agent, called without a person, edits train.py in a scratch folder.

The folder lies outside the workspace and is made anew for each call. The command is a program of the user's: it has
their environment, keys included, unlike the child that trains; but no variable that names the workspace. Whatever it
does, train.py alone comes back.
"""

from __future__ import annotations

import json
from pathlib import Path

from autoresearch.agent.command_line import command_line
from autoresearch.agent.digest import digest
from autoresearch.agent.ledger import Ledger, Usage
from autoresearch.agent.proposer import Context, Proposal, RoundFailed
from autoresearch.agent.quoting import RULE, quoted
from autoresearch.agent.reported import Reported, reported
from autoresearch.agent.scratch import Scratch, environment, scratch_of
from autoresearch.agent.watched import Bounds, Ended, NotStarted, run_watched
from autoresearch.core import agent_settings
from autoresearch.core.errors import UsageError
from autoresearch.core.line_ends import as_in
from autoresearch.core.process import one_line, without_secrets
from autoresearch.core.workspace import TRAIN

PROMPT, PROGRAM, KNOWLEDGE, HYPOTHESIS = "PROMPT.md", "program.md", "knowledge.md", "HYPOTHESIS.txt"
NO_HYPOTHESIS = "no hypothesis given"
_TAIL = 400
_TASK = f"""\
You are a researcher in a search for better training code. The search runs unattended on one machine: again and again a
candidate `{TRAIN}` is trained for a fixed time and scored by `val_bpb`, the bits per byte of held-out text; lower is
better. A clear gain is kept and becomes the file that the next candidates are made from; everything else is discarded.
You make the next candidate.

1. Read `{TRAIN}` in this folder, then decide on one idea. Don't spend an experiment on what was tried before from the
   same state.
2. Edit `{TRAIN}`. It is the only file that may change; make no other one but `{HYPOTHESIS}`. Nothing has to be run:
   the candidate is trained after you have ended, and there is no data here.
3. Write into `{HYPOTHESIS}`, and as the first line of your last message: one line with what you changed and why it
   should help. A second line `category: WORD` may name its kind, e.g. batch, schedule, optimizer, architecture.

Data, tokenizer, evaluation, seeds and the clock are outside of `{TRAIN}`; a candidate that reaches for them, or that
looks better only because it was measured otherwise, is found out and counts for nothing.

{RULE}"""


class Command:
    """Proposes what a command makes of train.py.

    Args:
        argument: what follows `command:`, see `command_line`.
        settings: its bounds, and what a call is taken to cost.
        ledger: where each call is reserved and settled.
        hidden: a folder that no variable of its environment names: the workspace.

    Raises:
        UsageError: the command can't be used as given, or its cost isn't known and a cap is set.
    """

    paid = True

    def __init__(
        self, argument: str, settings: agent_settings.Command, ledger: Ledger, hidden: Path | None = None
    ) -> None:
        self._line = command_line(argument)
        self.name = f"command:{self._line.name}"
        self._settings, self._ledger, self._hidden = settings, ledger, hidden
        if ledger.capped and not settings.estimate_usd:
            raise UsageError(
                f"a cap on cost is set, and what a call of {self._line.name} costs isn't known",
                "say what one costs at most: [command] estimate_usd = 0.5 in autoresearch.toml",
            )

    def propose(self, context: Context) -> Proposal:
        """Call the command once.

        Raises:
            RoundFailed: it hung, failed, or changed nothing.
            RoundCapReached, CostCapReached: a call could cost more than a cap allows.
        """
        mending = context.mend is not None and context.mend.proposer == self.name
        source = context.mend_source if mending else context.incumbent_source
        files = {TRAIN: source, PROGRAM: context.program, PROMPT: self.prompt(context)}
        if context.findings.strip():
            files[KNOWLEDGE] = context.findings
        with scratch_of(files, (HYPOTHESIS,), self._hidden) as scratch:
            ended, told, usd = self._call(scratch, "mend" if mending else "propose")
            self._check(ended, told)
            return self._proposal(scratch, told, usd, ended)

    def prompt(self, context: Context) -> str:
        """The text that the command is given as its standard input and as a file."""
        device = {key: value for key, value in context.device.items() if key not in ("fetch", "reasons")}
        facts = f"# The task and the machine\n\ntask: {_json(context.task)}\ndevice: {_json(device)}"
        read = f"`{PROGRAM}`" + (f" and `{KNOWLEDGE}`" if context.findings.strip() else "")
        parts = [_TASK, f"Read {read} too: what the people who run this search say.", facts, digest(context).strip()]
        if context.guidance:
            parts.append(f"# This round\n\n{context.guidance}")
        crash = context.mend
        if crash is not None and crash.proposer == self.name:
            said = quoted("reason and end of the log", f"{one_line(crash.reason)}\n{crash.log_tail}".strip(), 4096)
            parts.append(
                f"# Your last candidate, experiment {crash.number}, crashed\n\n`{TRAIN}` is that candidate. If the "
                f"cause is easily mended, mend it and keep the idea; else undo it and try another one.\n\n{said}"
            )
        return "\n\n".join(parts) + "\n"

    def _call(self, scratch: Scratch, purpose: str) -> tuple[Ended, Reported, float]:
        """Run the command; what it reported, and what was charged for it."""
        estimate, settings = self._settings.estimate_usd, self._settings
        command = self._line.filled(
            {
                "prompt": str(scratch.folder / PROMPT),
                "output": str(scratch.folder / HYPOTHESIS),
                "dir": str(scratch.folder),
                "budget": f"{estimate:g}",
            },
            with_budget=self._ledger.capped,
        )
        bounds = Bounds(settings.silence_seconds, settings.timeout_seconds, int(settings.output_mb * 1e6))
        variables = environment(scratch.folder, self._hidden)
        call = self._ledger.reserve(estimate, agent=self.name, purpose=purpose)
        try:
            # The call's id marks its processes: where this one is killed, the next start finds them by the journal.
            ended = run_watched(command, variables, scratch.folder / PROMPT, scratch.train, call.id, bounds)
        except NotStarted as error:
            self._ledger.settle(call, 0.0, f"not started: {error}")
            raise RoundFailed("command", f"{command[0]} can't be started: {error}") from error
        except BaseException as error:
            self._ledger.settle(call, estimate, f"interrupted: {type(error).__name__}; charged at its estimate")
            raise
        told = reported(ended.stdout)
        how = f"killed: {ended.reason}" if ended.kind else f"exit {ended.code}"
        usd = estimate if told.usd is None else told.usd
        if told.usd is None and estimate:
            how += "; charged at its estimate"
        self._ledger.settle(call, usd, how, told.usage)
        return ended, told, usd

    def _check(self, ended: Ended, told: Reported) -> None:
        """
        Raises:
            RoundFailed: the call didn't end well.
        """
        said = _public(told.error or ended.stderr.strip() or ended.stdout.strip())
        said = f"; it said: {said}" if said else ""
        if ended.kind:
            raise RoundFailed(ended.kind, f"{self._line.name}: {ended.reason}, and was killed{said}")
        if ended.code or told.error:
            how = f"ended with exit code {ended.code}" if ended.code else "failed"
            raise RoundFailed("exit", f"{self._line.name} {how}{said}")

    def _proposal(self, scratch: Scratch, told: Reported, usd: float, ended: Ended) -> Proposal:
        """
        Raises:
            RoundFailed: nothing was changed.
        """
        hypothesis, category = _hypothesis(scratch.folder / HYPOTHESIS, told.text)
        before = scratch.files[TRAIN].decode()
        source, problem = scratch.source()
        source = as_in(before, source)  # editors change line ends in passing
        if strays := scratch.strays():
            more = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
            problem = f"only {TRAIN} may be changed; the command also changed {_public(', '.join(strays[:3]))}{more}"
        elif not problem and source == before:
            raise RoundFailed("no edit", f"{self._line.name} left {TRAIN} as it was; it said: {hypothesis[:_TAIL]}")
        elif source != without_secrets(source):
            problem = f"{TRAIN} holds a key, or the value of a variable that is named like one"
        usage = told.usage or Usage()
        return Proposal(
            "" if problem else source,
            hypothesis,
            category,
            problem=problem,
            cost_usd=usd,
            facts={"seconds": round(ended.seconds, 1), "tokens": sum(usage)},
        )


def _hypothesis(path: Path, message: str) -> tuple[str, str]:
    """What was changed and why, and its category: from the file, else from the last message."""
    written = ""
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as stream:
            written = stream.read(10_000).decode("utf-8", "replace")
    for text in (written, message):
        lines = [_public(line) for line in text.splitlines() if line.strip()]
        if lines:
            categories = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("category:")]
            first = next((line for line in lines if not line.lower().startswith("category:")), NO_HYPOTHESIS)
            given = first.partition(":")[2].strip() if first.lower().startswith("hypothesis:") else first
            return given or NO_HYPOTHESIS, (categories or ["other"])[0][:40] or "other"
    return NO_HYPOTHESIS, "other"


def _public(text: str) -> str:
    """The end of what a command wrote in one line, fit for the journal."""
    return one_line(without_secrets(text)[-_TAIL:])


def _json(values: object) -> str:
    return json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)
