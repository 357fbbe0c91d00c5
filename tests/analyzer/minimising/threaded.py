"""A check whose module starts a thread: such a process must not fork."""

from __future__ import annotations

import threading
from typing import Any

from .checked import raises as _raises

_ENDS = threading.Event()
threading.Thread(target=_ENDS.wait, daemon=True).start()


def raises(tape: Any) -> None:
    _raises(tape)
