"""What an analysis reads of a tape. ``Tape`` implements it, and is built on the analyses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.traffic_counters import TrafficCounters
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import TapeError
from calltape_schema.records import Target

__all__ = ["CallSource"]


class CallSource(Protocol):
    """Calls, and what their recorder says of them; each member is as in ``Tape``."""

    @property
    def calls(self) -> Calls: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def paths(self) -> tuple[str, ...]: ...
    @property
    def target(self) -> Target | None: ...
    @property
    def signature(self) -> Signature: ...
    @property
    def removed(self) -> tuple[str, ...]: ...
    @property
    def classes(self) -> tuple[type, ...]: ...
    @property
    def class_index(self) -> ClassIndex: ...
    @property
    def counters(self) -> TrafficCounters: ...
    @property
    def damage(self) -> Sequence[TapeError]: ...
