"""Knows which recorded call runs within which: the calls of nested recorded modules are one tree.

A context variable has the innermost recorded call, so tasks and ``asyncio.to_thread`` inherit it. A
plain new thread begins a tree of its own. A tree gets its name from the tape and the number of its
root, so nothing here is random, takes a lock, or outlives a call.
"""

from __future__ import annotations

from contextvars import ContextVar

from calltape_recorder.call import Node
from calltape_recorder.host.compilers import skip_frame

__all__ = ["leave", "node_of", "resume", "set_innermost", "suspend"]


_current: ContextVar[Node | None] = ContextVar("calltape_call", default=None)
_get, set_innermost = _current.get, _current.set
"""Makes the call of this node the innermost one in this context, until :func:`leave`."""


def node_of(tape: bytes, call: int) -> Node:
    """The node of a call that begins now, in this context."""
    parent = _get()
    # A call may have ended unnoticed, or in another context.
    while parent is not None and parent.ended:
        parent = parent.parent
    node = Node(tape, call, parent)
    if parent is not None:
        parent.is_shared = True
    return node


def leave(node: Node | None) -> None:
    """Notes that a call ended. It may be called twice, and in any context."""
    if node is not None:
        node.ended = True
        if _get() is node:
            set_innermost(node.parent)


@skip_frame
def resume(node: Node | None) -> Node | None:
    """Notes that a generator goes on.

    Returns:
        The innermost node so far, for :func:`suspend`.
    """
    before = _get()
    if node is not None and not node.ended:
        set_innermost(node)
    return before


@skip_frame
def suspend(before: Node | None) -> None:
    """Notes that a generator stops for a while: its caller goes on, in the same context."""
    if _get() is not before:
        set_innermost(before)
