"""The errors of the analyzer.

TapeError                something is wrong with a tape; ``kind`` says what (from calltape_schema)
├── InferenceError       the recorded calls do not determine an answer; also a RuntimeError
├── RedactionError       a tape could not be redacted without changing what it says
├── UsageError           the caller named something that does not exist; also a ValueError
├── NoCallError          a position at which there is no call; also an IndexError
├── KeyTypeError         a key is neither a name nor a position; also a TypeError
├── UnsupportedError     a position that a recorded call does not have; also a NotImplementedError
├── NoVariant            no exported program accepts a call; also a LookupError
└── ExportError          nothing could be exported; also a RuntimeError
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from calltape_schema.errors import ErrorKind, Problem, TapeError
from calltape_schema.remedies import Remedy

if TYPE_CHECKING:
    from calltape_analyzer.facts import Fact, Rejection

__all__ = [
    "Damage",
    "DescriptorError",
    "ErrorKind",
    "ExportError",
    "InferenceError",
    "KeyTypeError",
    "NoCallError",
    "NoVariant",
    "Problem",
    "RedactionError",
    "RemoteError",
    "RepeatedCallsError",
    "TapeError",
    "UnsupportedError",
    "UsageError",
    "is_damage",
    "no_descriptor",
    "no_single_call",
    "to_install",
]


def to_install(extra: str) -> str:
    """What to do about an optional package that is missing: nothing is published, so that people
    install from a clone."""
    return (
        f"install the extra {extra!r}: `pip install './analyzer[{extra}]'` in a clone of calltape"
    )


class InferenceError(TapeError, RuntimeError):
    """The recorded calls do not determine an answer.

    It is a :class:`RuntimeError` too, because callers of ``torch.onnx.InputObserver`` catch that.
    """

    def __init__(
        self, reason: str, *, path: str | None = None, advice: str | Remedy | None = None
    ) -> None:
        super().__init__("inference", reason, path=path, advice=advice)


class RedactionError(TapeError, RuntimeError):
    """A redacted tape would have a fact that may not be on one. No file is left."""

    def __init__(self, reason: str, *, advice: str | Remedy) -> None:
        super().__init__("usage", reason, advice=advice)


class UsageError(TapeError, ValueError):
    """The caller named something that does not exist, or that is not possible. It is a
    :class:`ValueError` too."""

    def __init__(
        self, reason: str, *, path: str | None = None, advice: str | Remedy | None = None
    ) -> None:
        super().__init__("usage", reason, path=path, advice=advice)


class NoCallError(TapeError, IndexError):
    """A position at which there is no call; the end of a file may have claimed more calls than it
    has. It is an :class:`IndexError` too, which ends a loop over positions."""

    def __init__(self, reason: str) -> None:
        super().__init__("usage", reason, advice="len() of the calls says how many there are")


class KeyTypeError(TapeError, TypeError):
    """A key of ``value_if_missing`` is neither a name nor a position. It is a :class:`TypeError`
    too."""

    def __init__(self, reason: str, *, advice: str | Remedy | None = None) -> None:
        super().__init__("usage", reason, advice=advice)


class UnsupportedError(TapeError, NotImplementedError):
    """A position in ``value_if_missing`` that a recorded call does not have. It is a
    :class:`NotImplementedError` too."""

    def __init__(self, reason: str, *, advice: str | Remedy | None = None) -> None:
        super().__init__("usage", reason, advice=advice)


_MAX_TOLD = 3


class NoVariant(TapeError, LookupError):  # noqa: N818 - what users catch reads like the report
    """No exported program accepts a call. ``reasons`` says why, for each variant, the nearest one
    first; the text has all of a few, and the nearest of many. It is a :class:`LookupError` too."""

    def __init__(
        self,
        reason: str,
        reasons: Mapping[str, Rejection] | None = None,
        *,
        advice: str = "record calls like this one as well, and export again",
    ) -> None:
        self.reasons = dict(reasons or {})
        why_not = [f"{name}: {why}" for name, why in self.reasons.items()]
        if len(why_not) > _MAX_TOLD:
            more = f"and {len(why_not) - 1} more reasons"
            why_not[1:] = [f"{more}{Remedy(' in .reasons', '')}"]
        parts = "; ".join(why_not)
        super().__init__(
            "usage",
            f"{reason} ({parts})" if parts else reason,
            advice=advice,
        )


class ExportError(TapeError, RuntimeError):
    """No variant could be exported. ``attempts`` has what was tried, and ``missing`` why variants
    have no program, by name. It is a :class:`RuntimeError` too."""

    def __init__(
        self,
        reason: str,
        attempts: Sequence[object] = (),
        *,
        missing: Mapping[str, Fact] | None = None,
        advice: str = "",
    ) -> None:
        self.attempts = tuple(attempts)
        self.missing = dict(missing or {})
        more = "tell what was tried; calltape variants and explain tell more"
        tried = Remedy(f"its .attempts {more}", f"the attempts {more}")
        super().__init__("inference", reason, advice=advice or (tried if attempts else None))


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
    """A file, or a part of it, is a copy of another one. It is reported because its calls count
    once; nothing is lost."""


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
        """Adds damage of which only the number of places is known."""
        self._more += places

    def __bool__(self) -> bool:
        return bool(self._listed)

    def list(self) -> list[TapeError]:
        more = f"{self._more} more places are corrupted"
        return [*self._listed, TapeError("damaged", more)] if self._more else list(self._listed)
