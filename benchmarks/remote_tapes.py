"""What ``calltape variants`` takes on a sealed tape in object storage: an S3 server on loopback,
over HTTP, which counts requests and bytes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.analyzer.remote.counted import aws_environment, s3_server

from benchmarks.report import Question, Row

__all__ = ["row_over_s3"]

_ROUNDS = 3


def row_over_s3(path: Path, calls: int, local: float) -> Row:
    """Seconds of the whole command, requests and bytes.

    Args:
        path: of the tape, on a local disk.
        calls: how many it has.
        local: the seconds that the command takes there.
    """
    with s3_server() as (address, traffic):
        environment = {**os.environ, **aws_environment(address)}
        url = _uploaded(path, environment)
        seconds = []
        for _ in range(_ROUNDS):
            traffic.clear()
            start = time.perf_counter()
            command = [sys.executable, "-m", "calltape_analyzer", "variants", url]
            subprocess.run(command, check=True, capture_output=True, env=environment)
            seconds.append(time.perf_counter() - start)
        took = statistics.median(seconds)
        return Row(
            f"the same tape of {calls:,} calls on S3 (a server on loopback)",
            f"{took:.2f} s, {len(traffic)} requests, {traffic.nbytes / 2**20:.2f} MiB read",
            f"local disk: {local:.2f} s",
            f"{took / local:.2f} ×",
            Question.ANALYSIS,
        )


def _uploaded(path: Path, environment: dict[str, str]) -> str:
    """The URL of a copy."""
    url = f"s3://benchmark/{path.name}"
    make = (
        "import s3fs, sys; s3 = s3fs.S3FileSystem(); s3.mkdir('benchmark'); s3.put(*sys.argv[1:])"
    )
    subprocess.run([sys.executable, "-c", make, path, url], check=True, env=environment)
    return url
