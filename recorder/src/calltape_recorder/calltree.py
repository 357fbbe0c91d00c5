"""Which recorded call runs within which: the calls of nested recorded modules are one tree.

A context variable knows the innermost recorded call, so that tasks and ``asyncio.to_thread``
inherit it; a plain new thread begins a tree of its own. Nothing here is random, locked or kept for
longer than a call: a tree is named after its root, by the root's tape and number.
"""

from __future__ import annotations

from contextvars import ContextVar

from calltape_recorder.compilers import skip_frame

__all__ = ["Node", "leave", "node_of", "resume", "set_innermost", "suspend"]


class Node:
    """One recorded call that is under way.

    Attributes:
        tape: id of its tape, 16 bytes.
        call: its number.
        parent: the recorded call that it runs within, or None.
        ended: whether it ended.
        is_shared: whether recorded calls ran within it. A call without parent and children is no
            tree to speak of.
    """

    __slots__ = ("call", "ended", "is_shared", "parent", "tape")

    def __init__(self, tape: bytes, call: int, parent: Node | None) -> None:
        self.tape = tape
        self.call = call
        self.parent = parent
        self.ended = self.is_shared = False

    @property
    def tree(self) -> int:
        """Names the tree, 0 to 2**64 - 1: the same for all calls of one tree, over all tapes."""
        root = self
        while root.parent is not None:
            root = root.parent
        # The first call of a tape is as good as random, and the others follow it.
        return (int.from_bytes(root.tape[:8], "little") + root.call) & _MASK


_MASK = 2**64 - 1
_current: ContextVar[Node | None] = ContextVar("calltape_call", default=None)
_get, set_innermost = _current.get, _current.set
"""All calls that begin here run within that of this node, until :func:`leave`."""


def node_of(tape: bytes, call: int) -> Node:
    """The node of a call that begins here and now."""
    parent = _get()
    while parent is not None and parent.ended:  # nobody was told when it ended, or not here
        parent = parent.parent
    node = Node(tape, call, parent)
    if parent is not None:
        parent.is_shared = True
    return node


def leave(node: Node | None) -> None:
    """The call ended; this may be said twice, and from anywhere."""
    if node is not None:
        node.ended = True
        if _get() is node:
            set_innermost(node.parent)


@skip_frame
def resume(node: Node | None) -> Node | None:
    """A generator goes on; what was innermost until here, for :func:`suspend`."""
    before = _get()
    if node is not None and not node.ended:
        set_innermost(node)
    return before


@skip_frame
def suspend(before: Node | None) -> None:
    """A generator stops for a while: its caller goes on, in the same context."""
    if _get() is not before:
        set_innermost(before)
