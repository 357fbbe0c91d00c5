"""``python -m benchmarks [--quick | --save] [name ...]``: prints what the benchmarks measure.

With ``--save`` it stores that as well, and writes docs/costs.md and the costs in README.md.
"""

from __future__ import annotations

import argparse
import logging
import platform
import sys

import torch

from benchmarks import (
    bytes_per_step,
    call_cost,
    container,
    copies,
    cpu_total,
    device_cost,
    export_memory,
    imports,
    large_blobs,
    real_sizes,
    sealed_tapes,
    serving,
    surveys,
    tables,
    throughput,
    viewing,
    waiting_objects,
)
from benchmarks.costs_page import Measured, load, save, write
from benchmarks.report import table

_BENCHMARKS = {
    "cpu_total": cpu_total.rows,
    "call_cost": call_cost.rows,
    "bytes_per_step": bytes_per_step.rows,
    "throughput": throughput.rows,
    "waiting_objects": waiting_objects.rows,
    "serving": serving.rows,
    "container": container.rows,
    "sealed_tapes": sealed_tapes.rows,
    "surveys": surveys.rows,
    "tables": tables.rows,
    "imports": imports.rows,
}
_BY_NAME_ONLY = {
    "copies": copies.rows,
    "device_cost": device_cost.rows,
    "export_memory": export_memory.rows,
    "large_blobs": large_blobs.rows,
    "real_sizes": real_sizes.rows,
    "viewing": viewing.rows,
}


def main() -> None:
    every = _BENCHMARKS | _BY_NAME_ONLY
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(every))
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="a tenth of the work, noisier")
    how.add_argument("--save", action="store_true", help="store the results and write the page")
    options = parser.parse_args()
    if unknown := set(options.names) - set(every):
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}")
    # transformers warns about missing optional packages; the table is what is asked for
    logging.disable(logging.WARNING)
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    machine = f"{versions}, {torch.get_num_threads()} threads, {platform.machine()}"
    measured: dict[str, Measured] = {}
    for name in options.names or _BENCHMARKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows = tuple(every[name](0.1 if options.quick else 1.0))
        measured[name] = Measured(machine, rows)
    print(table(row for found in measured.values() for row in found.rows))
    print(f"\nMedians of interleaved rounds; {machine}.")
    if options.save:
        save(measured)
        write(load())


if __name__ == "__main__":
    main()
