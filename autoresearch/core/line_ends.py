"""Line ends of a text: who edits one sees plain newlines, and what comes back has those that it had."""

from __future__ import annotations

CRLF = "\r\n"


def with_newlines(text: str) -> str:
    """`text` with plain newlines; one whose lines end in both ways stays as it is, since they can't be put back."""
    return text.replace(CRLF, "\n") if _all_crlf(text) else text


def as_in(original: str, text: str) -> str:
    """`text` with the line ends of `original`; as it is where those are of both kinds."""
    if _all_crlf(original):
        return text.replace(CRLF, "\n").replace("\n", CRLF)
    return text if CRLF in original else text.replace(CRLF, "\n")


def _all_crlf(text: str) -> bool:
    return 0 < text.count(CRLF) == text.count("\n")
