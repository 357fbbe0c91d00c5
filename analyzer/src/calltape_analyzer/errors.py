"""The errors of the analyzer.

TapeError                anything wrong with a tape, by ``kind`` (from calltape_schema)
├── InferenceError       the recorded calls do not determine an answer; also a RuntimeError
├── UsageError           something that does not exist was asked for; also a ValueError
├── KeyTypeError         a key that is neither a name nor a position; also a TypeError
├── UnsupportedError     what the calls leave no room for; also a NotImplementedError
├── NoVariant            no exported program accepts a call; also a LookupError
└── ExportError          nothing could be exported; also a RuntimeError
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calltape_schema.errors import Kind, Problem, TapeError

__all__ = [
    "ExportError",
    "InferenceError",
    "KeyTypeError",
    "Kind",
    "NoVariant",
    "Problem",
    "TapeError",
    "UnsupportedError",
    "UsageError",
]


class InferenceError(TapeError, RuntimeError):
    """The recorded calls do not determine an answer.

    Also a :class:`RuntimeError`, because that is what callers of ``torch.onnx.InputObserver``
    catch.
    """

    def __init__(self, reason: str, *, path: str | None = None, advice: str | None = None) -> None:
        super().__init__("inference", reason, path=path, advice=advice)


class UsageError(TapeError, ValueError):
    """A call of the analyzer that names something that does not exist; also a ValueError."""

    def __init__(self, reason: str, *, path: str | None = None, advice: str | None = None) -> None:
        super().__init__("usage", reason, path=path, advice=advice)


class KeyTypeError(TapeError, TypeError):
    """A key of ``value_if_missing`` that is neither a name nor a position; also a TypeError."""

    def __init__(self, reason: str, *, advice: str | None = None) -> None:
        super().__init__("usage", reason, advice=advice)


class UnsupportedError(TapeError, NotImplementedError):
    """A request that the recorded calls leave no room for; also a NotImplementedError."""

    def __init__(self, reason: str, *, advice: str | None = None) -> None:
        super().__init__("usage", reason, advice=advice)


class NoVariant(TapeError, LookupError):  # noqa: N818 - what users catch reads like the report
    """No exported program accepts a call; ``reasons`` say why, by variant."""

    def __init__(self, reason: str, reasons: Mapping[str, str] | None = None) -> None:
        self.reasons = dict(reasons or {})
        parts = "; ".join(f"{name}: {why}" for name, why in self.reasons.items())
        super().__init__(
            "usage",
            f"{reason} ({parts})" if parts else reason,
            advice="record calls like this one as well, and export again",
        )


class ExportError(TapeError, RuntimeError):
    """No variant could be exported; ``attempts`` tell what was tried."""

    def __init__(self, reason: str, attempts: Sequence[object] = (), *, advice: str = "") -> None:
        self.attempts = tuple(attempts)
        tried = "its .attempts tell what was tried; calltape variants and explain tell more"
        super().__init__("inference", reason, advice=advice or tried)
