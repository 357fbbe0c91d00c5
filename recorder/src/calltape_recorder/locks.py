"""Locks that the thread of a signal handler may already hold.

A signal handler of the host may flush or close a recorder. The call that it interrupted may hold a
lock of the recorder, and goes on only when the handler has returned. The handler waits for the
writer's thread, and the writer waits for the lock: all three would wait for ever. So whoever waits
for the writer releases the locks that its own thread holds, and takes them again afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

__all__ = ["HasLock", "lent"]


class HasLock(Protocol):
    """An object that threads of the host and the writer's thread change.

    Attributes:
        lock: a reentrant lock (:data:`calltape_recorder.threads.RLock`), which nobody holds for
            more than a few steps.
    """

    lock: Any


@contextlib.contextmanager
def lent(owners: Sequence[HasLock]) -> Iterator[None]:
    """Releases the locks of these owners that this thread holds, until the block ends."""
    # threading.Condition uses the same methods of a lock. They tell whether this thread holds it,
    # release it completely, however often it was taken, and take it again as often.
    held = [owner.lock for owner in owners if owner.lock._is_owned()]
    states = [lock._release_save() for lock in held]
    try:
        yield
    finally:
        for lock, state in zip(held, states, strict=True):
            lock._acquire_restore(state)
