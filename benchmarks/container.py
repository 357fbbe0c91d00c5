"""``python -m benchmarks.container``: what the container of a tape costs, without a recorder.

A million calls of which no values are kept are written in floods (many calls in a group) and paced
(each in a group of its own). It prints the bytes and the seconds per call, what a scan of the
unsealed file takes against the bare hop over its members, and what the end of the sealed one takes.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Question, Row, table
from calltape_schema.end import Coverage
from calltape_schema.groups import NewCall
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack
from calltape_schema.reader import TapeReader
from calltape_schema.records import Manifest, Producer
from calltape_schema.sections import checksums_of
from calltape_schema.storage import BytesSource, Window
from calltape_schema.tar import members
from calltape_schema.tree import encode_leaves, encode_structure
from calltape_schema.writer import TapeWriter

MANIFEST = Manifest(
    format="calltape", version=1, tape=bytes(16), created_ns=1, producer=Producer(calltape="0.1.0")
)
_ARGUMENTS = [{"kind": "tensor", "leaf": 0}, {"kind": "tensor", "leaf": 1}]
STRUCTURE = encode_structure(
    {
        "root": {
            "kind": "tuple",
            "children": [
                {"kind": "tuple", "children": _ARGUMENTS},
                {"kind": "dict", "keys": [], "children": []},
            ],
        },
        "leaves": 2,
        "scalars": 0,
        "context": {"grad": False, "training": False},
    }
)
OUTPUT = encode_structure({"root": {"kind": "tensor", "leaf": 0}, "leaves": 1, "scalars": 0})


def _calls(count: int, nbytes: int = 0) -> list[NewCall]:
    """Calls of two tensors in 77 sizes, as a recorder hands them over, with a blob of so many
    bytes."""
    blob = bytes(nbytes)
    chance = random.Random(0)
    sides: dict[tuple[int, int], tuple[dict[str, Any], dict[str, Any], int]] = {}
    now, made = 1_700_000_000_000_000_000, []
    for number in range(count):
        shape = (1 + number % 7, 3 + number % 11)
        if shape not in sides:
            first, second, output = (
                {"dtype": "float32", "shape": list(shape)}
                | ({"key": name} if nbytes else {"missing": "policy"})
                for name in ("args.0", "args.1", "outputs")
            )
            inputs = {"structure": STRUCTURE, "leaves": encode_leaves([first, second])}
            outputs = {"structure": OUTPUT, "leaves": encode_leaves([output])}
            key = signature_of(inputs["structure"], inputs["leaves"], pack([]))
            sides[shape] = inputs, outputs, key
        inputs, outputs, key = sides[shape]
        now += chance.randrange(20_000, 2_000_000)
        record = {
            "time_ns": now, "duration_ns": chance.randrange(5_000, 500_000),
            "thread": 139_872_534_652_736, "inputs": inputs, "outputs": outputs,
        }  # fmt: skip
        made.append(NewCall(number, record, key, [blob] if nbytes else [], checksums_of([blob])))
    return made


class _File:
    """A sink without a recorder."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        self._file.seek(offset)
        self._file.write(b"".join(parts))

    def cut(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


def _written(path: Path, calls: list[NewCall], batch: int, *, seals: bool) -> float:
    sink = _File(path)
    begun = time.process_time()
    writer = TapeWriter(sink, MANIFEST)
    for at in range(0, len(calls), batch):
        writer.append(calls[at : at + batch])
    if seals:
        writer.seal(Coverage(seen=len(calls), kept=len(calls)))
    sink.close()
    return time.process_time() - begun


def _source(path: str) -> BytesSource:
    with Path(path).open("rb") as file:
        return BytesSource(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _hop(path: str) -> None:
    source = _source(path)
    for _ in members(Window(source).read, source.size, print):
        pass


def _scan(path: str) -> None:
    assert not TapeReader(_source(path)).scan().damage


def _end(path: str) -> None:
    end = TapeReader(_source(path)).end
    assert end is not None
    counted = end.table()
    assert counted is not None
    for row in counted.rows.values():
        row.tree().spec()
        [leaf.shape for leaf in row.tree().facts()]


_ASKED: dict[str, Callable[[str], None]] = {
    "hop": _hop, "scan": _scan, "end": _end
}  # fmt: skip


def _asked(name: str, path: Path) -> tuple[float, float]:
    """Seconds and MiB in a process of its own; the seconds are the best of three."""
    found = [
        subprocess.run(
            [sys.executable, "-m", "benchmarks.container", "--ask", name, str(path)],
            check=True, capture_output=True, text=True,
        ).stdout.split()
        for _ in range(3)
    ]  # fmt: skip
    return min(float(seconds) for seconds, _ in found), float(found[0][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        begun = time.process_time()
        _ASKED[options.ask[0]](options.ask[1])
        seconds = time.process_time() - begun
        # not ru_maxrss, which a child inherits
        status = Path("/proc/self/status").read_text()
        print(seconds, int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024)
        return
    print(table([*_rows(options.calls)]))


def rows(scale: float) -> Iterator[Row]:
    """What writing and reading tapes costs, per call."""
    return _rows(max(int(1_000_000 * scale), 1000))


def _rows(count: int) -> Iterator[Row]:
    for batch, nbytes in ((1, 0), (32, 0), (512, 0), (4096, 0), (1, 300), (512, 300)):
        with tempfile.TemporaryDirectory() as folder:
            yield from _rows_of(Path(folder), count, batch, nbytes)


def _rows_of(folder: Path, count: int, batch: int, nbytes: int) -> Iterator[Row]:
    torn, sealed = folder / "torn", folder / "sealed"
    calls = _calls(count // 5 if nbytes else count, nbytes)
    _written(torn, calls, batch, seals=False)
    seconds = _written(sealed, calls, batch, seals=True)
    hop, scan = (_asked(name, torn)[0] for name in ("hop", "scan"))
    end, memory = _asked("end", sealed)
    size = os.path.getsize(sealed) / len(calls)
    blobs = f", with {nbytes} bytes of tensors a call" if nbytes else ""
    what = f"a tape of {len(calls):,} calls, {batch} in a group{blobs}"
    yield Row(
        f"{what}: bytes per call", f"{size:.1f}",
        question=Question.DISK if (batch, nbytes) == (512, 0) else None,
    )  # fmt: skip
    yield Row(f"{what}: to write a call", f"{1e6 * seconds / len(calls):.2f} µs")
    yield Row(f"{what}: scan", f"{scan:.3f} s", f"bare hop: {hop:.3f} s", f"{scan / hop:.1f} ×")
    yield Row(f"{what}: from the end", f"{end:.3f} s, {memory:.0f} MiB")


if __name__ == "__main__":
    main()
