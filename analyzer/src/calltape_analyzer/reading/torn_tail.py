"""What happens to a torn tape: a segment without a trailer, because its process was killed or is
still writing.

In come the damage at the end of the walk, and the numbers of the calls that were found. Out go how
many bytes belong to a call that was being written (which is neither damage nor a call), and the
coverage that the numbers tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calltape_schema.endings import Coverage
from calltape_schema.errors import TapeError
from calltape_schema.fields import MAX_COUNT
from calltape_schema.framing import BLOCK, TRAILER, Member

__all__ = ["UNSEALED", "TornTail", "coverage_without_trailer"]

UNSEALED = "unknown (the tape is not sealed)"
"""The reason of missing calls if no trailer says what became of them."""


class TornTail:
    """Holds the last damage of a walk back until it is known whether a member follows. At the end
    of an unsealed segment, a member that is cut short is a call that was being written.

    Args:
        report: gets every damage that is not a torn tail.
    """

    def __init__(self, report: Callable[[TapeError], None]) -> None:
        self._report = report
        self.held: TapeError | None = None

    def hold(self, error: TapeError) -> None:
        """Holds this damage, and reports the one before it."""
        self.release()
        self.held = error

    def release(self) -> None:
        """Reports the damage that is held, if any: something follows it, so it is no tail."""
        if self.held is not None:
            self._report(self.held)
            self.held = None

    def unfinished_bytes(self, size: int, blob: Member | None) -> int | None:
        """How many bytes at the end of an unsealed segment belong to a call that was being written.

        Args:
            size: of the file, in bytes.
            blob: the last member, if it is a blob whose record is missing.

        Returns:
            None if the end is damage. It is reported then.
        """
        if self.held is not None and not _is_cut_short(self.held, size):
            self.release()
            return None
        if blob is not None:
            return size - blob.offset
        return 0 if self.held is None else size - (self.held.offset or 0)


def _is_cut_short(error: TapeError, size: int) -> bool:
    """Whether the file ends like one whose writer was interrupted in a call: within a member of it,
    or within a header."""
    if error.member == TRAILER:
        return False
    return error.member is not None or size - (error.offset or 0) < BLOCK


def coverage_without_trailer(numbers: Sequence[int], first_call: int) -> Coverage:
    """The coverage of a segment without a trailer. The numbers of its calls tell how many calls
    were seen at least: no number comes after the last one.

    Args:
        numbers: of the calls in the segment.
        first_call: the number that the segment began with.
    """
    found = len(numbers)
    seen = min(max(found, max(numbers, default=-1) + 1 - first_call), MAX_COUNT)
    dropped = {UNSEALED: seen - found} if seen > found else {}
    return Coverage(seen=seen, kept=found, dropped=dropped, at_least=True)
