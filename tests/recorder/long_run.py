"""An hour's worth of calls in a minute or two: ``python -m ... FOLDER``. Prints, as JSON, what the
process held after each quarter."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from calltape_recorder import FlightRecorder, Novelty, Rate, Recorder, record
from calltape_recorder.keep import admission
from calltape_recorder.keep.ledger import Stats
from tests.recorder.calls import appearance_of

QUARTER = 65_536  # as many rows as Novelty remembers: each quarter ends with as many
QUARTERS = 4
IN_A_THREAD = 256  # servers have threads that come and go
QUEUE_BYTES = 4 * 1024 * 1024
FLIGHT = FlightRecorder(calls=100, bytes=2 * 1024 * 1024)
SEGMENT_BYTES = 1024 * 1024
DISK_BYTES = 8 * 1024 * 1024


class Model(torch.nn.Module):
    """Fails now and then."""

    def forward(self, x: torch.Tensor, number: int, **more: Any) -> torch.Tensor:
        if number % 4001 == 4000:
            raise ValueError(f"call {number}")
        return x[:1]


def arguments(number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Never the same twice: sizes, ints, texts, and now and then the structure and the dtype."""
    rows, columns = 1 + number % 61, 1 + number // 61 % 59
    if number % 97 == 5:
        rows, columns = 200 + number % 499, 100  # large enough for the pool
    x = torch.full((rows, columns), float(number % 1000), dtype=_DTYPES[number % 3])
    more: dict[str, Any] = {}
    if number % 7 == 3:
        more["prompt"] = f"request {number}"
    if number % 11 == 4:
        more[f"extra_{number % 30_011}"] = [number, number // 2]
    return (x, number), more


_DTYPES = (torch.float32, torch.float16, torch.int32)


def serve(model: torch.nn.Module, first: int) -> None:
    for number in range(first, first + IN_A_THREAD):
        args, kwargs = arguments(number)
        try:
            output = model(*args, **kwargs)
        except ValueError:
            assert number % 4001 == 4000
        else:
            assert torch.equal(output, args[0][:1])


def held(recorder: Recorder, folder: Path) -> dict[str, Any]:
    """What the process has between two files: in the midst of one, it also has what the counters of
    that file found so far, which is as much as chance has it."""
    assert recorder.seal()
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "classes": len(recorder.classes),
        "queued": recorder.stats().queued,
        "files": recorder.stats().segments,
        "disk": sum(path.stat().st_size for path in folder.glob("*.tape")),
    }


def main(folder: Path) -> None:
    # Novelty forgets what deleted files had shown; by the clock each quarter would find it as full
    # as chance has it, so that one forgets once.
    admission.REMEMBER_SECONDS = 3600.0
    model = Model()
    looks = appearance_of(model)
    quarters = []
    with record(
        model, folder / "t.tape", keep=Novelty() | Rate(0.1), flight_recorder=FLIGHT,
        max_queue_bytes=QUEUE_BYTES, segment_bytes=SEGMENT_BYTES, max_disk_bytes=DISK_BYTES,
        when_full="delete_oldest",
    ) as recorder:  # fmt: skip
        for first in range(0, QUARTER * QUARTERS, IN_A_THREAD):
            thread = threading.Thread(target=serve, args=(model, first))
            thread.start()
            thread.join()
            if (first + IN_A_THREAD) % QUARTER == 0:
                quarters.append(held(recorder, folder))
                assert appearance_of(model) == looks
    stats: Stats = recorder.stats()
    accounts = {"seen": stats.seen, "kept": stats.kept, "dropped": stats.dropped}
    print(json.dumps({"quarters": quarters, **accounts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
