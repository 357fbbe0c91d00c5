"""A recorded call on its way from the application to the tape: the copies of its two sides.

The application side fills it in while the call runs; the writer reads it when the call has ended.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from calltape_recorder.snapshot.chunks import Chunks
from calltape_recorder.snapshot.side import Side
from calltape_schema.drop_reasons import DropReason

OMITTED = "policy"
"""What a tape says of outputs that were not to be kept."""


class Owner(Protocol):
    """What records a call: its pipeline."""

    def lost(self, call: Call) -> None:
        """Counts a call that nothing refers to any more, and that nobody counted."""


class QueuedCall:
    """One call on its way to the tape. Times are in nanoseconds.

    ``owner`` is the pipeline that records the call. ``is_provisional`` tells whether the call is
    for the flight recorder only, ``is_novel`` whether it is kept because none before was like it.
    ``outputs_missing`` says in the words of a tape why not all outputs are there, ``outputs_lost``
    for which reason they are not although they were wanted. ``cost_ns`` is what the recorder added
    to it. ``ahead_file`` is the file that its inputs were written to before the model ran.
    ``chunks`` is what a generator yielded so far. ``joined`` has the bytes of both sides, if these
    have none.
    """

    __slots__ = (
        "ahead_file", "chunks", "cost_ns", "duration_ns", "error", "inputs", "is_accounted",
        "is_novel", "is_provisional", "joined", "nbytes", "number", "outputs", "outputs_lost",
        "outputs_missing", "owner", "started", "thread", "time_ns",
    )  # fmt: skip

    def __init__(self, number: int, time_ns: int, thread: int) -> None:
        self.number = number
        self.time_ns = time_ns
        self.thread = thread
        self.inputs: Side | None = None
        self.started = 0
        self.duration_ns: int | None = None
        self.outputs: Side | None = None
        self.outputs_missing: str | None = None
        self.outputs_lost: DropReason | None = None
        self.error: tuple[str, str] | None = None
        self.nbytes = 0
        self.cost_ns = 0
        self.is_accounted = False
        self.is_novel = False
        self.is_provisional = False
        self.owner: Owner | None = None
        self.ahead_file: object | None = None
        self.chunks: Chunks | None = None
        self.joined: bytes | None = None


class Call(QueuedCall):
    """A call that was not handed to the writer yet. Then it becomes a :class:`QueuedCall`
    (``__class__`` is set): no code of ours runs when it is freed. Dynamo looks at each
    function that Python runs in a thread of the application while it compiles."""

    __slots__ = ()

    def __del__(self) -> None:
        # Nobody counted this call if an exception that can come at any step (KeyboardInterrupt)
        # came between two of them.
        owner = getattr(self, "owner", None)  # it may have come within __init__
        if owner is not None and not self.is_accounted:
            with suppress(RecursionError):  # the stack is too deep; it is counted at the end
                owner.lost(self)
