"""What one train.py changes in another, fast enough for thousands of them."""

from __future__ import annotations

import re
from difflib import unified_diff

_HUNK = re.compile(r"@@ -(\d+)(,\d+)? \+(\d+)(,\d+)? @@")


def unified(before: str, after: str, context: int = 3) -> str:
    """The hunks of a unified diff, without the names of files; "" for equal texts.

    Args:
        context: unchanged lines around each change.
    """
    a, b = before.split("\n"), after.split("\n")
    head, most = 0, min(len(a), len(b))
    while head < most and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < most - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    # What is equal at both ends would cost difflib most of its time: it is given the rest, with its context.
    start, end = max(0, head - context), max(0, tail - context)
    lines = unified_diff(a[start : len(a) - end], b[start : len(b) - end], n=context, lineterm="")
    hunks = [_shifted(line, start) if line.startswith("@@") else line for line in lines]
    return "\n".join(hunks[2:])


def _shifted(header: str, lines: int) -> str:
    found = _HUNK.fullmatch(header)
    assert found is not None, "difflib writes it"
    old, old_count, new, new_count = found.groups(default="")
    return f"@@ -{int(old) + lines}{old_count} +{int(new) + lines}{new_count} @@"
