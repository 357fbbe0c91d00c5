"""One answer to a shell that completes a word, and which words of a tape may be one."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Answer", "is_safe"]

_SAFE = re.compile(r"[\w.+@*/][\w.+@*/:=,-]*")
"""What may come from a tape into a command line. A shell would act on other characters."""


class Answer(NamedTuple):
    """One answer.

    Attributes:
        kind: ``plain`` for a word, ``path`` for a file or directory, ``files`` for a pattern of
            names by which zsh looks for files itself.
        value: what replaces the word at the cursor; a directory ends with a slash.
        help: about it; may be empty.
    """

    kind: str
    value: str
    help: str = ""


def is_safe(text: str) -> bool:
    """Whether a word of a tape may come into a command line as it is."""
    return _SAFE.fullmatch(text) is not None
