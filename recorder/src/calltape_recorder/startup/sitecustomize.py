"""Found first by Python's start-up where ``calltape-record`` put this directory on PYTHONPATH.

Begins to look for the target, then runs the ``sitecustomize`` that is found without us.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    try:
        __import__("calltape_startup").begin()
    except Exception as error:  # the host starts, whatever is wrong with us
        sys.stderr.write(f"calltape: nothing is recorded: {error}\n")


def _go_on() -> None:
    # Ours is no longer needed on the path, and hides nobody's modules from here on.
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
