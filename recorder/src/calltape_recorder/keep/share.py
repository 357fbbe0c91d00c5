"""Keeps what recording costs under a share of the time of the calls, by recording fewer of them.

In come the durations of recorded calls and what recording cost. Out goes whether the next call is
recorded. Each call that is seen earns its share of the duration of a typical call, recorded or not;
what recording costs is paid from that.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Share"]

_CREDIT_NS = 1_000_000_000
"""No more is saved up than the share of so much time of calls. A burst costs no more than that."""
_DURATIONS = 15


class Share:
    """A share of the time of the calls. Only one thread at a time may use it.

    Args:
        most: the share, above 0 and at most 1.

    Attributes:
        most: as given.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        # The median of the last ones: the first call of a model may take a thousand times as long.
        self._durations: deque[int] = deque(maxlen=_DURATIONS)
        self._typical = 0
        self._earned = 0.0

    def note(self, duration_ns: int) -> None:
        """Notes how long a recorded call took."""
        self._durations.append(duration_ns)
        self._typical = sorted(self._durations)[len(self._durations) // 2]

    def affords(self, spent_ns: int) -> bool:
        """Whether a call that begins now is recorded. Each call asks once.

        Args:
            spent_ns: what recording cost so far.
        """
        if not self._durations:  # nobody knows yet what a share is
            return True
        most = spent_ns + self.most * _CREDIT_NS
        self._earned = min(self._earned + self.most * self._typical, most)
        return self._earned >= spent_ns
