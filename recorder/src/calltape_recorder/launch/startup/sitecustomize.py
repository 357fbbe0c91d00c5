"""Runs when Python starts, if this directory is on PYTHONPATH; ``calltape-record`` puts it there.

It begins to look for the target. Then it runs the ``sitecustomize`` that Python would have found
without this one.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    try:
        __import__("calltape_startup").begin()
    except Exception as error:  # the application must start, whatever is wrong in here
        sys.stderr.write(f"calltape: nothing is recorded: {error}\n")


def _go_on() -> None:
    # This directory is no longer needed on the path, and there it could hide modules of the
    # application.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours


_begin()
_go_on()
