"""Reports the accounts of recorders as OpenTelemetry metrics.

It needs OpenTelemetry: ``pip install calltape-recorder[otel]``.

=========================  =======  ============================================
``calltape.calls.seen``    counter  calls of the recorded method
``calltape.calls.kept``    counter  calls that are whole on the tape
``calltape.calls.dropped`` counter  calls that are not, by ``reason``
``calltape.queue.bytes``   gauge    memory of calls that are not written yet
``calltape.tape.bytes``    counter  bytes written to the tape
``calltape.time``          counter  nanoseconds that recording took, by ``where``: ``calls``
                                    (the host's) or ``thread`` (the recorder's own)
=========================  =======  ============================================

All metrics have the attribute ``calltape.tape``, the name of the tape's file.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from calltape_recorder.keep.ledger import Stats
from calltape_recorder.recorder import Recorder
from calltape_recorder.threads import RLock
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            "usage", "OpenTelemetry is not installed", advice="pip install calltape-recorder[otel]"
        ) from None
    observing = Observing(recorder)
    _instruments(metrics.get_meter("calltape") if meter is None else meter).add(observing)
    return observing


class _Instruments:
    """The instruments of one meter. There is one set per meter, because OpenTelemetry cannot remove
    an instrument, and warns if two have one name."""

    def __init__(self, meter: Meter) -> None:
        self._observed: list[Observing] = []
        self._lock = RLock()
        count, size = "{call}", "By"
        counter, gauge = meter.create_observable_counter, meter.create_observable_gauge
        counter("calltape.calls.seen", [self._each(_seen)], count, "calls of the recorded method")
        counter("calltape.calls.kept", [self._each(_kept)], count, "calls on the tape")
        counter("calltape.calls.dropped", [self._each(_dropped)], count, "calls not on the tape")
        gauge("calltape.queue.bytes", [self._each(_queue)], size, "memory of calls to be written")
        counter("calltape.tape.bytes", [self._each(_tape)], size, "bytes written to the tape")
        counter("calltape.time", [self._each(_time)], "ns", "what recording took")

    def renew(self) -> None:
        """Makes a new lock in a fork: a thread that the fork does not have may hold the old one."""
        self._lock = RLock()

    def add(self, observing: Observing) -> None:
        with self._lock:
            self._observed.append(observing)

    def _each(self, values: _Values) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observations(_: CallbackOptions) -> Iterator[Observation]:
            for recorder in self._recorders():
                tape = {"calltape.tape": os.path.basename(recorder.path)}
                for value, attributes in values(recorder.stats()):
                    yield Observation(value, {**tape, **attributes})

        return observations

    def _recorders(self) -> list[Recorder]:
        with self._lock:
            found = [(one, one.recorder) for one in self._observed]
            self._observed = [one for one, recorder in found if recorder is not None]
        # A recorder that is observed twice is reported once.
        return list({id(recorder): recorder for _, recorder in found if recorder}.values())


def _seen(stats: Stats) -> Iterator[tuple[int, dict[str, str]]]:
    yield stats.seen, {}


def _kept(stats: Stats) -> Iterator[tuple[int, dict[str, str]]]:
    yield stats.kept, {}


def _dropped(stats: Stats) -> Iterator[tuple[int, dict[str, str]]]:
    for reason, calls in stats.dropped.items():
        yield calls, {"reason": reason}


def _queue(stats: Stats) -> Iterator[tuple[int, dict[str, str]]]:
    yield stats.queued_bytes, {}


def _tape(stats: Stats) -> Iterator[tuple[int, dict[str, str]]]:
    yield stats.written_bytes, {}


def _time(stats: Stats) -> Iterator[tuple[int, dict[str, str]]]:
    yield stats.in_calls_ns, {"where": "calls"}
    yield stats.in_thread_ns, {"where": "thread"}


_of_meter: weakref.WeakKeyDictionary[Any, _Instruments] = weakref.WeakKeyDictionary()
_making = RLock()


def _renew() -> None:
    """Makes new locks in a fork: a thread that the fork does not have may hold the old ones."""
    global _making
    _making = RLock()
    for instruments in list(_of_meter.values()):
        instruments.renew()


os.register_at_fork(after_in_child=_renew)


def _instruments(meter: Meter) -> _Instruments:
    with _making:
        found = _of_meter.get(meter)
        if found is None:
            found = _of_meter[meter] = _Instruments(meter)
        return found
