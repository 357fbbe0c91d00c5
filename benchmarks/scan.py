"""What it takes to learn the shapes of a long tape: calltape's hop over headers against the
standard library's ``tarfile`` and ``safetensors.torch.load`` of every blob."""

from __future__ import annotations

import mmap
import tarfile
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import safetensors.torch
import torch

from benchmarks.models import Add
from benchmarks.report import Row
from benchmarks.rounds import measure
from calltape_analyzer import open_tape
from calltape_recorder import Recorder
from calltape_schema.framing import members

__all__ = ["rows"]

HOP, INFER, PEER = "hop", "infer", "tarfile + safetensors.torch.load"
SCAN, VARIANTS = "scan", "variants"


def _record(path: Path, calls: int) -> None:
    module = Add()
    recorder = Recorder(path).attach(module)
    for call in range(calls):
        x = torch.zeros(1 + call % 7, 3 + call % 11)
        module(x, x + 1)
        if call % 1000 == 999:
            recorder.flush()
    recorder.close()
    if recorder.stats().kept != calls:
        raise RuntimeError(f"recorded {recorder.stats()}")


def _hop(path: Path) -> int:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return sum(1 for _ in members(lambda at, size: view[at : at + size], len(view), print))


def _scan(path: Path) -> int:
    """Finds and checks every call, compares them with the end of the tape."""
    with open_tape(path, scan=True) as tape:
        return len(tape)


def _infer(path: Path) -> object:
    with open_tape(path, scan=True) as tape:
        return tape.infer_dynamic_shapes()


def _variants(path: Path) -> object:
    """Variants, dimensions and symbols, as plain data."""
    with open_tape(path, scan=True) as tape:
        return [variant.findings for variant in tape.variants()]


def _peak(path: Path) -> int:
    """The most bytes that Python had allocated for it at once."""
    tracemalloc.start()
    try:
        _variants(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _load_all(path: Path) -> int:
    shapes: dict[str, set[torch.Size]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".safetensors"):
                file = archive.extractfile(member)
                if file is None:
                    raise RuntimeError(member.name)
                for name, tensor in safetensors.torch.load(file.read()).items():
                    shapes.setdefault(name, set()).add(tensor.shape)
    return len(shapes)


def rows(scale: float) -> Iterator[Row]:
    """Time per call of a bare hop, of a scan and of the whole inference, and their ratios."""
    calls = max(int(50_000 * scale), 500)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "long.tape"
        _record(path, calls)
        samples = measure(
            {
                HOP: lambda: _hop(path),
                SCAN: lambda: _scan(path),
                VARIANTS: lambda: _variants(path),
                INFER: lambda: _infer(path),
                PEER: lambda: _load_all(path),
            },
            max(int(5 * scale), 3),
        )
        peer = samples.median(PEER)
        hop = samples.median(HOP)
        seconds = samples.median(SCAN)
        yield Row(
            f"scan of {calls:,} calls",
            f"{seconds / calls * 1e6:.1f} µs per call",
            (f"{seconds / hop:.2f} × hop over the headers ({hop / calls * 1e6:.1f} µs per call)",),
        )
        seconds = samples.median(VARIANTS)
        peak = _peak(path)
        yield Row(
            f"variants and shapes of {calls:,} calls",
            f"{seconds / calls * 1e6:.1f} µs per call, {peak / 2**20:.1f} MiB",
            (
                f"{seconds / hop:.2f} × hop over the headers ({hop / calls * 1e6:.1f} µs per call)",
                f"{peak / calls:.0f} bytes per call",
            ),
        )
        for what, name in (
            (f"hop over {calls:,} calls", HOP),
            ("infer_dynamic_shapes over them", INFER),
        ):
            seconds = samples.median(name)
            yield Row(
                what,
                f"{seconds / calls * 1e6:.1f} µs per call",
                (f"{seconds / peer:.3f} × {PEER} ({peer / calls * 1e6:.0f} µs per call)",),
            )
