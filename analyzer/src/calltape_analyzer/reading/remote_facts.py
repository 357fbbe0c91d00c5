"""What tells two states of a remote file apart."""

from __future__ import annotations

from typing import NamedTuple

from calltape_analyzer.reading.urls import shown
from calltape_schema.errors import TapeError

__all__ = ["RemoteFacts", "changed_file", "other_facts"]


class RemoteFacts(NamedTuple):
    """Size in bytes, and names and values of what else differs: an ETag, times, versions."""

    size: int
    version: tuple[tuple[str, str], ...]


def changed_file(url: str, how: str) -> TapeError:
    """The error of a file that is no longer what was opened."""
    return TapeError(
        "damaged", f"the file changed since it was opened: {how}", path=shown(url),
        advice="open it again",
    )  # fmt: skip


def other_facts(url: str) -> TapeError:
    """The error of a file of another size or version."""
    return changed_file(url, "another file has taken its place")
