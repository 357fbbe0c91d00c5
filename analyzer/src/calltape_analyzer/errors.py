"""The errors of the analyzer.

TapeError                anything wrong with a tape, by ``kind`` (from calltape_schema)
├── InferenceError       the recorded calls do not determine an answer; also a RuntimeError
├── UsageError           something that does not exist was asked for; also a ValueError
├── KeyTypeError         a key that is neither a name nor a position; also a TypeError
└── UnsupportedError     what the calls leave no room for; also a NotImplementedError
"""

from __future__ import annotations

from calltape_schema.errors import Kind, Problem, TapeError

__all__ = [
    "InferenceError",
    "KeyTypeError",
    "Kind",
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

    def __init__(self, reason: str, *, advice: str | None = None) -> None:
        super().__init__("usage", reason, advice=advice)


class KeyTypeError(TapeError, TypeError):
    """A key of ``value_if_missing`` that is neither a name nor a position; also a TypeError."""

    def __init__(self, reason: str, *, advice: str | None = None) -> None:
        super().__init__("usage", reason, advice=advice)


class UnsupportedError(TapeError, NotImplementedError):
    """A request that the recorded calls leave no room for; also a NotImplementedError."""

    def __init__(self, reason: str, *, advice: str | None = None) -> None:
        super().__init__("usage", reason, advice=advice)
