"""How a planted fault becomes a test."""

import pytest


def planted(table):
    """Run a test with each fault of a table on each backend that has words for it.

    The test takes `backend` and `fault`, a pair (old text, new text).
    """
    cases = [
        pytest.param(name, pair, id=f"{name}-{fault}") for fault, pairs in table.items() for name, pair in pairs.items()
    ]
    return pytest.mark.parametrize(("backend", "fault"), cases, indirect=["backend"])
