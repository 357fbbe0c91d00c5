"""Does something in the midst of code: at each of its lines, one by one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

__all__ = ["at_each_line"]


def at_each_line(
    of: Callable[[CodeType], bool], run: Callable[[], object], act: Callable[[], object],
    step: int = 1,
) -> Iterator[int]:  # fmt: skip
    """Runs something again and again, each time with an act before another line of this code, or
    before each ``step``-th line; gives the number of the line, and ends after a run that did not
    come so far."""
    for line in range(0, 5000, step):
        left = [line]

        def trace(frame: FrameType, event: str, _: Any, left: list[int] = left) -> Any:
            if not of(frame.f_code):
                return None  # the lines of other functions cost nothing
            if event == "line":
                left[0] -= 1
                if left[0] == -1:
                    sys.settrace(None)
                    frame.f_trace = None
                    act()
            return trace

        sys.settrace(trace)
        try:
            run()
        finally:
            sys.settrace(None)
        if left[0] >= 0:
            return
        yield line
    raise AssertionError("it never ended")
