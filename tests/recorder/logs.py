"""What the recorder says in the log, to a handler of the test's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["log_handler"]


@contextmanager
def log_handler(handle: Callable[[logging.LogRecord], object]) -> Iterator[None]:
    """Gives each record of the recorder's log to a function, until the block ends. Unlike what
    ``logging`` does for ``emit``, nothing catches what the function raises."""
    handler, logger = logging.Handler(), logging.getLogger("calltape")
    handler.handle = handle  # type: ignore[assignment, method-assign]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
