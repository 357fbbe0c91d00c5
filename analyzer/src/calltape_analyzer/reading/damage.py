"""What a reader found damaged, and what says nothing about the tape.

In come errors. Out goes a bounded list of those that say something about the tape.
"""

from __future__ import annotations

from calltape_analyzer.errors import UsageError
from calltape_schema.errors import TapeError

__all__ = [
    "Damage",
    "DescriptorError",
    "RemoteError",
    "RepeatedCallsError",
    "is_damage",
    "no_descriptor",
    "no_single_call",
]

_MAX_LISTED = 1000


class DescriptorError(TapeError):
    """The process may open no more files. This says nothing about the tape, so it is no damage."""


class RemoteError(DescriptorError):
    """A server does not answer, or not with what was asked. This says nothing about the calls on a
    tape either."""


def no_descriptor(error: OSError | ValueError, path: str) -> DescriptorError:
    """The error of a file that cannot be opened because too many are open."""
    return DescriptorError(
        "io",
        f"cannot open the file: {getattr(error, 'strerror', None) or error}",
        path=path,
        advice="close files in this process, or raise its limit (ulimit -n)",
    )


def no_single_call() -> UsageError:
    """The error of who asks a survey for a call."""
    reason = "a survey has counts and sizes, and no single call or value"
    return UsageError(reason, advice="open the tapes themselves for this")


def is_damage(error: TapeError) -> bool:
    """Whether an error says something about the tape, and not about the process that reads it."""
    return error.kind != "closed" and not isinstance(error, DescriptorError)


class RepeatedCallsError(TapeError):
    """A file, or a part of it, is a copy of another one. It is told, as its calls count once;
    nothing is lost."""


class Damage:
    """The damage of a tape, in the order in which it was found. The list is bounded: a file of
    nothing but damage must not fill the memory."""

    def __init__(self) -> None:
        self._listed: list[TapeError] = []
        self._more = 0

    def add(self, error: TapeError) -> None:
        if len(self._listed) < _MAX_LISTED:
            # The error is kept as long as the tape. With its traceback, all frames would be too.
            error.__traceback__ = error.__context__ = None
            self._listed.append(error)
        else:
            self._more += 1

    def add_more(self, places: int) -> None:
        """Adds damage of which nothing but the number is known."""
        self._more += places

    def __bool__(self) -> bool:
        return bool(self._listed)

    def list(self) -> list[TapeError]:
        more = f"{self._more} more places are corrupted"
        return [*self._listed, TapeError("damaged", more)] if self._more else list(self._listed)
