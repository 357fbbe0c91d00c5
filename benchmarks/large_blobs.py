"""What it takes to read one small tensor out of a blob of 10 GB, against one of 1 MB: what is read
and compared with checksums is the part of the blob that has it, and the one that has the header.

The bytes between are a hole of the file, so that the benchmark takes no room on the disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks.report import Row
from benchmarks.rounds import measure
from calltape_analyzer import open_tape
from calltape_schema.blob import Stored, build_header
from calltape_schema.end import Coverage
from calltape_schema.groups import NewCall
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack
from calltape_schema.records import Manifest, Producer
from calltape_schema.sections import checksums_of
from calltape_schema.tree import encode_leaves, encode_structure
from calltape_schema.writer import TapeWriter

__all__ = ["rows"]

_MIB = 2**20
_SMALL = 1024  # float32
_ZEROS = memoryview(bytes(_MIB))
_NODES = [{"kind": "tensor", "leaf": 0}, {"kind": "tensor", "leaf": 1}]
_ROOT = [{"kind": "tuple", "children": _NODES}, {"kind": "dict", "keys": [], "children": []}]


class _Hole:
    """Zeros that are not written."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


class _Sink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        self._file.seek(offset)
        for part in parts:
            if isinstance(part, _Hole):
                self._file.seek(part.size, 1)
            else:
                self._file.write(part)

    def cut(self, size: int) -> None:
        self._file.truncate(size)


def _write(path: Path, large: int) -> None:
    """A tape of one call with a tensor of so many bytes, and one of 4 KiB."""
    facts = [
        {"dtype": "uint8", "shape": [large], "key": "args.0"},
        {"dtype": "float32", "shape": [_SMALL], "key": "args.1"},
    ]
    header = build_header(
        {"args.0": Stored("U8", (large,), large), "args.1": Stored("F32", (_SMALL,), 4 * _SMALL)}
    )
    small = bytes(range(256)) * (4 * _SMALL // 256)
    zeros = (_ZEROS[: min(_MIB, large - at)] for at in range(0, large, _MIB))
    checksums = checksums_of(chain([header], zeros, [small]))
    root = {"kind": "tuple", "children": _ROOT}
    tree = {
        "structure": encode_structure({"root": root, "leaves": 2, "scalars": 0}),
        "leaves": encode_leaves(facts),
    }
    signature = signature_of(tree["structure"], tree["leaves"], pack([]))
    record = {"time_ns": 0, "inputs": tree}
    call = NewCall(0, record, signature, [header, _Hole(large), small], checksums)
    manifest = Manifest(
        format="calltape", version=1, tape=bytes(16), created_ns=0, producer=Producer(calltape="0")
    )
    with path.open("wb") as file:
        writer = TapeWriter(_Sink(file), manifest)
        writer.append([call])
        writer.seal(Coverage(seen=1, kept=1))


def _read(path: Path) -> None:
    with open_tape(path) as tape:
        if len(tape.calls[0].tensor("inputs", 1)) != _SMALL:
            raise RuntimeError("another tensor")


def rows(scale: float) -> list[Row]:
    large = int(10e9 * scale)
    with tempfile.TemporaryDirectory() as folder:
        paths = {"small": Path(folder) / "small.tape", "large": Path(folder) / "large.tape"}
        _write(paths["small"], 10**6)
        _write(paths["large"], large)
        _read(paths["small"])  # torch is imported
        ways = {name: lambda path=path: _read(path) for name, path in paths.items()}
        took = measure(ways, 11)
    seconds = {name: took.median(name) for name in ways}
    return [
        Row(
            f"4 KiB out of a blob of {large / 1e9:.0f} GB",
            f"{seconds['large'] * 1e3:.1f} ms",
            f"out of one of 1 MB: {seconds['small'] * 1e3:.1f} ms",
            f"{seconds['large'] / seconds['small']:.1f} ×",
        )
    ]
