"""Reports the accounts of recorders as OpenTelemetry metrics.

It needs OpenTelemetry: ``pip install './recorder[otel]'`` in a clone.

==========================  =============  ============================================
``calltape.calls.seen``     counter        calls of the recorded method
``calltape.calls.written``  counter        calls that were written whole to a file
``calltape.calls.kept``     UpDownCounter  calls that are on the tape now: fewer when a file
                                           is deleted
``calltape.calls.dropped``  counter        calls that are not on the tape, by ``reason``
``calltape.queue.bytes``    gauge          memory of calls that are not written yet
``calltape.tape.bytes``     counter        bytes written to the tape
``calltape.tape.size``      gauge          bytes that its files have on the disk now
``calltape.time``           counter        nanoseconds that recording took, by ``where``:
                                           ``calls`` (the application's) or ``thread`` (the
                                           recorder's own)
==========================  =============  ============================================

Counters only grow, so that a backend can compute rates. A value that may fall is a gauge, or an
UpDownCounter if the values of several processes add up.

All metrics have the attribute ``calltape.tape``, the name of the tape's file.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from typing_extensions import Self

from calltape_recorder.keep.ledger import Stats
from calltape_recorder.recorder import Recorder
from calltape_schema import TapeError

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

__all__ = ["Observing", "observe"]

_Values = Callable[[Stats], Iterable[tuple[int, dict[str, str]]]]


class Observing:
    """The metrics of one recorder, from :func:`observe` on.

    They end with :meth:`stop`, with the ``with`` statement, or with the recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder: weakref.ref[Recorder] | None = weakref.ref(recorder)

    @property
    def recorder(self) -> Recorder | None:
        """The recorder; None if it is no longer observed, or no longer exists."""
        return None if self._recorder is None else self._recorder()

    def stop(self) -> None:
        """Ends the metrics of this recorder. It may be called twice."""
        self._recorder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def observe(recorder: Recorder, meter: Meter | None = None) -> Observing:
    """Reports a recorder's accounts whenever metrics are collected.

    It costs nothing between two collections, and does not keep the recorder alive.

    Args:
        recorder: the recorder to observe.
        meter: the meter to report to; None for the meter ``calltape`` of the global provider.

    Raises:
        TapeError: ``usage`` if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        raise TapeError(
            "usage",
            "OpenTelemetry is not installed",
            advice="install the extra 'otel': `pip install './recorder[otel]'` in a clone of "
            "calltape",
        ) from None
    observing = Observing(recorder)
    reported = metrics.get_meter("calltape") if meter is None else meter
    first: list[Observing] = []
    # One step, so that no other thread creates the instruments too: OpenTelemetry warns if two have
    # the same name, and cannot remove any.
    observed = _of_meter.setdefault(reported, first)
    observed.append(observing)
    if observed is first:
        make: dict[str, Callable[..., object]] = {
            "counter": reported.create_observable_counter,
            "up_down_counter": reported.create_observable_up_down_counter,
            "gauge": reported.create_observable_gauge,
        }
        for name, (kind, unit, says, values) in _METRICS.items():
            make[kind](f"calltape.{name}", [_reader(observed, values)], unit, says)
    return observing


_METRICS: dict[str, tuple[str, str, str, _Values]] = {
    "calls.seen": (
        "counter", "{call}", "calls of the recorded method", lambda stats: [(stats.seen, {})],
    ),
    "calls.written": (
        "counter", "{call}", "calls written to the tape", lambda stats: [(stats.written, {})],
    ),
    "calls.kept": (
        "up_down_counter", "{call}", "calls on the tape", lambda stats: [(stats.kept, {})],
    ),
    "calls.dropped": (
        "counter", "{call}", "calls not on the tape",
        lambda stats: [(calls, {"reason": reason}) for reason, calls in stats.dropped.items()],
    ),
    "queue.bytes": (
        "gauge", "By", "memory of calls to be written", lambda stats: [(stats.queued_bytes, {})],
    ),
    "tape.bytes": (
        "counter", "By", "bytes written to the tape", lambda stats: [(stats.written_bytes, {})],
    ),
    "tape.size": (
        "gauge", "By", "bytes of the tape on disk", lambda stats: [(stats.disk_bytes, {})],
    ),
    "time": (
        "counter", "ns", "what recording took",
        lambda stats: [
            (stats.in_calls_ns, {"where": "calls"}), (stats.in_thread_ns, {"where": "thread"}),
        ],
    ),
}  # fmt: skip
"""By name: kind of instrument, unit, description and values."""


_of_meter: weakref.WeakKeyDictionary[Meter, list[Observing]] = weakref.WeakKeyDictionary()


def _reader(
    observed: list[Observing], values: _Values
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Reads the values of one metric, of each recorder once."""
    from opentelemetry.metrics import Observation

    def observations(_: CallbackOptions) -> Iterator[Observation]:
        recorders: dict[int, Recorder] = {}  # a recorder that is observed twice is reported once
        for observing in list(observed):
            recorder = observing.recorder
            if recorder is not None:
                recorders[id(recorder)] = recorder
            else:
                with contextlib.suppress(ValueError):  # another thread removed it
                    observed.remove(observing)
        for recorder in recorders.values():
            tape = {"calltape.tape": os.path.basename(recorder.path)}
            for value, attributes in values(recorder.stats()):
                yield Observation(value, {**tape, **attributes})

    return observations
