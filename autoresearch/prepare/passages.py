"""Cutting long documents into passages.

Best-fit packing keeps a document whole where a row has room for it and drops the remainder where it has not, so most
of a speech or a book would be lost. A task may therefore cut documents, after the split into train, val and test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# From the best place to cut to the worst. A passage keeps the white space behind it: nothing is lost by cutting.
_BOUNDARIES = (
    re.compile(r"\n\s*\n\s*"),
    re.compile(r"[.!?…。！？][\"'”’)\]]*\s+|[。！？]|\n"),
    re.compile(r"\s+"),
)


def passages(document: str, limit: int) -> Iterator[str]:
    """Cut a document at paragraphs, else sentences, else words, else anywhere.

    A boundary counts where it lies in the second half of the limit, so that passages are between half and all of it
    (the last may be shorter).

    Args:
        limit: most characters of a passage; 0 leaves the document whole.

    Yields:
        Non-empty passages whose concatenation is the document.
    """
    start = 0
    while limit and len(document) - start > limit:
        end = start + limit
        for boundary in _BOUNDARIES:
            cuts = [match.end() for match in boundary.finditer(document, start + limit // 2, end)]
            if cuts:
                end = cuts[-1]
                break
        yield document[start:end]
        start = end
    if start < len(document):
        yield document[start:]
