"""What torch and a model print and log while a command works, in a file instead of on the terminal.

A failed trace of a large model prints thousands of lines of its graph.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

__all__ = ["OutputLog"]


class OutputLog:
    """Collects what is written to Python's standard streams in a ``with`` block, and what loggers
    of torch write to them.

    Attributes:
        path: the file, after the block; None if nothing was written.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._stack = ExitStack()

    def __enter__(self) -> OutputLog:
        handle, name = tempfile.mkstemp(prefix="calltape-export-", suffix=".log")
        self._path = Path(name)
        file = os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace")
        self._stack.enter_context(file)
        for handler in _handlers_of_torch():
            self._stack.callback(handler.setStream, handler.setStream(file))
        self._stack.enter_context(redirect_stdout(file))
        self._stack.enter_context(redirect_stderr(file))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()
        if self._path.stat().st_size:
            self.path = self._path
        else:
            self._path.unlink()


def _handlers_of_torch() -> list[logging.StreamHandler[Any]]:
    """The handlers of torch's loggers that write to a standard stream."""
    streams: tuple[TextIO, ...] = (sys.stdout, sys.stderr)
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
    return [
        handler
        for handler in dict.fromkeys(handlers)
        if isinstance(handler, logging.StreamHandler) and handler.stream in streams
    ]
