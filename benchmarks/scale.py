"""``python -m benchmarks.scale``: prints the tables of docs/scale.md.

In come the costs of one tape, one call and one byte, a fleet, and list prices. Out comes what the
fleet costs by each policy. That is arithmetic, and a test holds that the page has these tables.
``--measure`` measures the costs anew.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.sealed_ends import Ends
from benchmarks.sealed_tapes import record_calls
from calltape_analyzer import open_tape, survey
from calltape_recorder import record
from calltape_schema.tar import members

__all__ = [
    "COSTS",
    "FLEET",
    "Costs",
    "Fleet",
    "Policy",
    "costs_table",
    "policies",
    "policies_table",
]

_GIB, _TIB = 2**30, 2**40
_MEASURE = "`python -m benchmarks.scale --measure`"
_SURVEYS = "`python -m benchmarks surveys`"
_SEALED = "`python -m benchmarks sealed_tapes`"
_FEW, _MANY, _CALLS, _TAPES, _LONG = 60, 960, 1000, 200, 20_000


class Fleet(NamedTuple):
    """Who records. ``value_bytes`` are the tensors of one call, ``different`` the distinct inputs
    of one tape; a tape is sealed after ``hours``."""

    servers: int = 10_000
    days: int = 28
    calls_per_second: float = 20.0
    value_bytes: int = 8192
    different: int = 1000
    hours: float = 24.0
    tape_bytes: int = 8 * _GIB

    @property
    def calls(self) -> float:
        """All calls of all servers."""
        return self.servers * self.days * 86_400 * self.calls_per_second


class Costs(NamedTuple):
    """What one of each costs, in bytes, seconds of a processor, requests and dollars."""

    call_bytes: float = 62.0
    value_overhead: float = 1028.0
    end_bytes: float = 3789.0
    row_bytes: float = 14.0
    row_seconds: float = 12e-6
    tape_seconds: float = 0.3e-3
    scan_seconds: float = 1e-6
    survey_memory: float = 2700.0
    reads_per_tape: int = 2
    part_bytes: int = 16 * 2**20
    month_per_gib: float = 0.023
    per_1000_puts: float = 0.005
    per_1000_reads: float = 0.0004


FLEET, COSTS = Fleet(), Costs()


class Policy(NamedTuple):
    """What the fleet costs if it records so.

    Attributes:
        kept: calls on all tapes.
        nbytes: of all tapes.
        tapes: how many.
        puts: requests that send them to a store.
        month: dollars a month for storing them.
        sending: dollars for these requests.
        read: bytes that a survey reads of the ends of all tapes.
        worker_hours: processor time that it takes.
        scan_hours: processor time if each record is read.
        memory: of the process that adds up.
    """

    name: str
    kept: float
    nbytes: float
    tapes: float
    puts: float
    month: float
    sending: float
    read: float
    reading: float
    worker_hours: float
    scan_hours: float
    memory: float


def policies(fleet: Fleet = FLEET, costs: Costs = COSTS) -> list[Policy]:
    """What each policy costs."""
    return [
        _policy("everything, with values", 1.0, True, fleet, costs),
        _policy("everything, shapes only", 1.0, False, fleet, costs),
        _policy("1 of 100 calls, with values", 0.01, True, fleet, costs),
        _policy("novelty, with values", None, True, fleet, costs),
    ]


def _policy(name: str, share: float | None, values: bool, fleet: Fleet, costs: Costs) -> Policy:
    spans = fleet.servers * max(fleet.days * 24 / fleet.hours, 1)
    # Novelty keeps a call of each new structure and each new size, per process; counters have all.
    kept = fleet.calls * share if share is not None else float(fleet.servers * fleet.different)
    each = costs.call_bytes + (costs.value_overhead + fleet.value_bytes if values else 0)
    body = kept * each
    tapes = max(spans, body / fleet.tape_bytes)
    different = min(fleet.different, kept / tapes)
    end = costs.end_bytes + different * costs.row_bytes
    nbytes = body + tapes * end
    puts = max(tapes, nbytes / costs.part_bytes)
    reads = tapes * costs.reads_per_tape
    return Policy(
        name,
        kept,
        nbytes,
        tapes,
        puts,
        nbytes / _GIB * costs.month_per_gib,
        puts / 1000 * costs.per_1000_puts,
        tapes * end,
        reads / 1000 * costs.per_1000_reads,
        tapes * (costs.tape_seconds + different * costs.row_seconds) / 3600,
        kept * costs.scan_seconds / 3600,
        tapes * costs.survey_memory,
    )


def _rounded(value: float) -> str:
    """Two digits that count."""
    if not value:
        return "0"
    places = 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def _size(nbytes: float) -> str:
    for unit, most in (("KiB", 2**20), ("MiB", _GIB), ("GiB", _TIB)):
        if nbytes < most:
            return f"{_rounded(nbytes * 1024 / most)} {unit}"
    return f"{_rounded(nbytes / _TIB)} TiB"


def _lines(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    every = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in every)


def costs_table(costs: Costs = COSTS) -> str:
    """What one of each costs, and where that is from."""
    parts = "what tools send large files in; put in that of yours"
    prices = "a list price of object storage; put in your own"
    rows = [
        ("a call without values", f"{costs.call_bytes:.0f} bytes", _MEASURE),
        ("the same, with values, beside these", f"{costs.value_overhead:.0f} bytes", _MEASURE),
        ("manifest and end, without what follows", f"{costs.end_bytes:.0f} bytes", _MEASURE),
        ("one of the distinct inputs, in the end", f"{costs.row_bytes:.0f} bytes", _MEASURE),
        ("the same, read by a survey", f"{costs.row_seconds * 1e6:.0f} µs", _MEASURE),
        ("a tape, read by a survey", f"{costs.tape_seconds * 1e3:.1f} ms", _MEASURE),
        ("a call, scanned", f"{costs.scan_seconds * 1e6:.0f} µs", _MEASURE),
        ("a tape in the memory of a survey", f"{costs.survey_memory:.0f} bytes", _SURVEYS),
        ("requests that read the end of a tape", f"{costs.reads_per_tape}", _SEALED),
        ("a part of a file that is sent to a store", _size(costs.part_bytes), parts),
        ("a GiB for a month", f"${costs.month_per_gib:g}", prices),
        ("1,000 requests that write", f"${costs.per_1000_puts:g}", prices),
        ("1,000 requests that read", f"${costs.per_1000_reads:g}", prices),
    ]
    return _lines(("one", "costs", "from"), iter(rows))


def policies_table(found: list[Policy]) -> str:
    """A row for each policy."""
    head = ("recorded", "calls", "bytes", "tapes", "storage a month", "sending: requests",
            "survey: bytes", "survey: requests", "survey: worker hours", "scan: worker hours",
            "survey: memory")  # fmt: skip
    rows = (
        (
            one.name,
            _rounded(one.kept),
            _size(one.nbytes),
            _rounded(one.tapes),
            f"${_rounded(one.month)}",
            f"{_rounded(one.puts)} (${_rounded(one.sending)})",
            _size(one.read),
            f"{_rounded(one.tapes * COSTS.reads_per_tape)} (${_rounded(one.reading)})",
            _rounded(one.worker_hours),
            _rounded(one.scan_hours),
            _size(one.memory),
        )
        for one in found
    )
    return _lines(head, rows)


def measured() -> Costs:
    """What one of each costs on this machine. Times are those of the processor."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, many = (_survey_cost(folder / f"{sizes}", sizes) for sizes in (_FEW, _MANY))
        rows = _MANY - _FEW
        row_bytes, row_seconds = (
            (many.ends - few.ends) / rows,
            max(many.seconds - few.seconds, 0.0) / rows,
        )
        record_calls(folder / "long.tape", _LONG)
        size = (folder / "long.tape").stat().st_size
        record_calls(folder / "short.tape", _CALLS)
        call_bytes = (size - (folder / "short.tape").stat().st_size) / (_LONG - _CALLS)
        begin = time.process_time()
        open_tape(folder / "long.tape", scan=True).close()
        scan = time.process_time() - begin
        return COSTS._replace(
            call_bytes=call_bytes,
            value_overhead=_value_overhead(folder / "values.tape", call_bytes),
            end_bytes=few.ends - _FEW * row_bytes,
            row_bytes=row_bytes,
            row_seconds=row_seconds,
            tape_seconds=max(few.seconds - _FEW * row_seconds, 0.0),
            scan_seconds=scan / _LONG,
        )


class _Measured(NamedTuple):
    """Of one tape: bytes without its calls, and seconds."""

    ends: float
    seconds: float


def _survey_cost(folder: Path, sizes: int) -> _Measured:
    folder.mkdir()
    pattern = folder.with_suffix(".tape")
    record_calls(pattern, _CALLS, sizes)
    data, body = pattern.read_bytes(), 0
    for member in members(lambda offset, size: data[offset : offset + size], len(data), print):
        body += member.end - member.offset if member.name.startswith("records/") else 0
    ends, seconds = Ends(pattern, keeps_records=False), 0.0
    for first in (0, _TAPES):  # the first ones warm up
        for number in range(first, first + _TAPES):
            ends.write(folder / f"{number}.tape", number)
        begin = time.process_time()
        survey(sorted(folder.glob("*.tape")), processes=1)
        seconds = time.process_time() - begin
    return _Measured(len(data) - body, seconds / (2 * _TAPES))


def _value_overhead(path: Path, call_bytes: float) -> float:
    model, calls = torch.nn.Identity(), 200
    with record(model, path, outputs=False) as recorder:
        for number in range(calls):
            model(torch.full((FLEET.value_bytes // 4,), float(number)))
    if recorder.stats().kept != calls:
        raise RuntimeError(f"recorded {recorder.stats()}")
    return path.stat().st_size / calls - FLEET.value_bytes - call_bytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="print what this machine needs")
    if parser.parse_args().measure:
        print(costs_table(measured()))
    else:
        print(costs_table(), policies_table(policies()), sep="\n\n")


if __name__ == "__main__":
    main()
