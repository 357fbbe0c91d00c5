"""The accounts of all recorders of this process, as text for Prometheus.

It is the text exposition format, version 0.0.4, and needs no library::

    @app.get("/metrics/calltape")
    def metrics() -> Response:
        return Response(prometheus_text(), media_type=CONTENT_TYPE)

A server without a route writes it to a directory that the textfile collector of the node exporter
reads: :func:`write_prometheus_text`. Each process of a server has its own recorders, so the label
``process`` tells them apart.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from calltape_recorder.host import lifecycle
from calltape_recorder.keep.ledger import Stats
from calltape_recorder.recorder import Recorder

__all__ = ["CONTENT_TYPE", "prometheus_text", "write_prometheus_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_READABLE = 0o644  # the collector is another user, and the text has nothing but accounts

_Labels = Mapping[str, str]
_Samples = Iterable[tuple[_Labels, float]]


class _Metric(NamedTuple):
    """One metric: its name, kind and help, and its samples of one recorder."""

    name: str
    kind: str
    help: str
    samples: Callable[[Stats], _Samples]


def prometheus_text(recorders: Iterable[Recorder] | None = None) -> str:
    """The accounts in the text format of Prometheus.

    Args:
        recorders: whose accounts; None for all of this process that were not closed.
    """
    chosen = _of_this_process() if recorders is None else list(recorders)
    found = [(_labels(one.stats(), one.path), one.stats()) for one in chosen]
    found.sort(key=lambda pair: tuple(pair[0].values()))
    return "".join(line for metric in _METRICS for line in _lines(metric, found))


def write_prometheus_text(
    directory: str | os.PathLike[str], recorders: Iterable[Recorder] | None = None
) -> str:
    """Writes :func:`prometheus_text` to ``calltape-PROCESS.prom``, in one step: a reader finds the
    last text or this one. Everybody may read the file. Who calls this removes the file at the end.

    Args:
        directory: what ``--collector.textfile.directory`` of the node exporter names.
        recorders: whose accounts; None for all of this process that were not closed.

    Returns:
        The path of the file.

    Raises:
        OSError: it cannot be written.
    """
    folder = os.fspath(directory)
    path = os.path.join(folder, f"calltape-{os.getpid()}.prom")
    content = prometheus_text(recorders).encode()
    # The collector takes files that end in .prom only, so it never reads this one half-written.
    file, new = tempfile.mkstemp(prefix=".calltape-", suffix=".new", dir=folder)
    try:
        with open(file, "wb") as stream:
            stream.write(content)
        os.chmod(new, _READABLE)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    return path


def _of_this_process() -> list[Recorder]:
    return [one for one in lifecycle.known() if isinstance(one, Recorder)]


def _labels(stats: Stats, path: str) -> _Labels:
    return {
        "process": str(os.getpid()), "tape": os.path.basename(path), "target": stats.target or "",
    }  # fmt: skip


def _lines(metric: _Metric, found: Sequence[tuple[_Labels, Stats]]) -> Iterator[str]:
    """The lines of one metric. They follow each other, as the format demands."""
    yield f"# HELP {metric.name} {metric.help}\n"
    yield f"# TYPE {metric.name} {metric.kind}\n"
    for labels, stats in found:
        for more, value in metric.samples(stats):
            pairs = {**labels, **more}.items()
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in pairs)
            yield f"{metric.name}{{{shown}}} {value}\n"


def _escaped(text: str) -> str:
    """The value of a label: three characters are escaped, and what is no UTF-8 becomes ``?``."""
    valid = text.encode("utf-8", "replace").decode()
    return valid.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _one(value: Callable[[Stats], float | None]) -> Callable[[Stats], _Samples]:
    def samples(stats: Stats) -> _Samples:
        found = value(stats)
        return () if found is None else ((_NO_LABELS, found),)

    return samples


_NO_LABELS: _Labels = {}


def _dropped(stats: Stats) -> _Samples:
    return (({"reason": reason}, calls) for reason, calls in sorted(stats.dropped.items()))


def _activity(stats: Stats) -> str:
    if stats.state != "recording":
        return stats.state
    return "paused" if stats.paused else "recording"


def _states(stats: Stats) -> _Samples:
    now = _activity(stats)
    return (
        ({"state": name}, int(name == now))
        for name in ("open", "recording", "paused", "forked", "closed")
    )


def _losing(stats: Stats) -> _Samples:
    if stats.losing is not None:
        yield {"reason": stats.losing}, 1


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


# What is kept or on the disk may become less, if files are deleted: these are no counters.
_METRICS = (
    _Metric("calltape_state", "gauge", "1 for the state that the recorder has.", _states),
    _Metric(
        "calltape_losing", "gauge", "1 while calls are lost and none is written, by reason.",
        _losing,
    ),
    _Metric(
        "calltape_calls_seen_total", "counter", "Calls of the recorded method.",
        _one(lambda stats: stats.seen),
    ),
    _Metric(
        "calltape_calls_dropped_total", "counter", "Calls that are not on the tape, by reason.",
        _dropped,
    ),
    _Metric("calltape_calls_kept", "gauge", "Calls on the tape.", _one(lambda stats: stats.kept)),
    _Metric(
        "calltape_queue_calls", "gauge", "Calls under way, or not yet written.",
        _one(lambda stats: stats.queued),
    ),
    _Metric(
        "calltape_queue_bytes", "gauge", "Memory of calls that are not yet written.",
        _one(lambda stats: stats.queued_bytes),
    ),
    _Metric(
        "calltape_tape_bytes", "gauge", "Bytes of the files on the disk.",
        _one(lambda stats: stats.written_bytes),
    ),
    _Metric(
        "calltape_tape_files", "gauge", "Files on the disk.", _one(lambda stats: stats.segments)
    ),
    _Metric(
        "calltape_last_write_timestamp_seconds", "gauge", "When a call was written last.",
        _one(lambda stats: _seconds(stats.last_write_ns)),
    ),
    _Metric(
        "calltape_last_error_timestamp_seconds", "gauge", "When something went wrong last.",
        _one(lambda stats: _seconds(stats.last_error_ns)),
    ),
)  # fmt: skip
