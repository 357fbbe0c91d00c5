"""Surveys of 200 sealed tapes of 20,000 calls, and of an unsealed tape of a million calls on one
process and on two. And what a million calls in 200 tapes take in one process."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Question, Row
from benchmarks.rounds import measure, processor_seconds
from benchmarks.sealed_ends import Ends
from benchmarks.sealed_tapes import record_calls
from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.surveying.survey import Survey
from calltape_analyzer.surveying.target_survey import read_file
from calltape_schema.tar import END_MEMBER, members

__all__ = ["rows"]

_TAPES = 200
_CALLS = 20_000
_LONG = 1_000_000
_ENDS = 100_000
_CALLS_OF_END = 300
_SIZES_OF_END = 60
_HOSTS = 100


def _run(*words: str) -> None:
    command = [sys.executable, "-m", "calltape_analyzer", *words]
    subprocess.run(command, check=True, capture_output=True)


def _anonymous_peak(*words: str) -> int:
    """The most memory that a command and each of its processes had together, without mapped files;
    in bytes. It is looked at every 20 ms."""
    command = [sys.executable, "-m", "calltape_analyzer", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most, ended = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.is_set():
            most = max(most, sum(map(_anonymous, _family(process.pid))))
            time.sleep(0.02)

    looking = threading.Thread(target=look)
    looking.start()
    process.wait()
    ended.set()
    looking.join()
    return most


def _family(process: int) -> list[int]:
    found = [process]
    for parent in found:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        found += map(int, children.split())
    return found


def _anonymous(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def _without_end(path: Path) -> None:
    """Cuts a tape where its end begins: as if its process had been killed."""
    with path.open("r+b") as file:

        def read(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        size = path.stat().st_size
        found = next(one for one in members(read, size, [].append) if one.name == END_MEMBER)
        file.truncate(found.offset)


def rows(scale: float) -> Iterator[Row]:
    """Seconds of whole commands, and of functions in one process."""
    yield from _sealed(scale)
    yield from _unsealed(scale)
    yield from _one_process(scale)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield from pool.submit(_ends, scale).result()


def _sealed(scale: float) -> Iterator[Row]:
    tapes = max(int(_TAPES * scale), 20)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record_calls(folder / "0.tape", _CALLS)
        ends = Ends(folder / "0.tape", keeps_records=True)
        for number in range(1, tapes):
            ends.write(folder / f"{number}.tape", number)
        what = f"{tapes} sealed tapes of {_CALLS:,} calls"
        yield _one_and_two(what, name, Question.ANALYSIS)


def _one_and_two(what: str, path: str, question: Question | None = None) -> Row:
    """A survey by one process, and by two. Whole commands: a process takes a second to begin."""
    samples = measure(
        {
            "one": lambda: _run("survey", path, "--jobs", "1"),
            "two": lambda: _run("survey", path, "--jobs", "2"),
        },
        3,
    )
    one, two = samples.median("one"), samples.median("two")
    spent = measure(
        {"one": lambda: _run("survey", path, "--jobs", "1")}, 1, clock=processor_seconds
    )
    peak = _anonymous_peak("survey", path, "--jobs", "2") / 2**20
    return Row(
        f"`calltape survey`, {what}, two processes",
        f"{two:.1f} s, {peak:.0f} MiB",
        f"one process: {one:.1f} s, {spent.median('one'):.1f} s of a processor",
        f"{one / two:.2f} × as fast",
        question,
    )


def _unsealed(scale: float) -> Iterator[Row]:
    calls = int(_LONG * scale)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.tape"
        record_calls(path, calls)
        _without_end(path)
        yield _one_and_two(f"an unsealed tape of {calls:,} calls", str(path))


def _one_process(scale: float) -> Iterator[Row]:
    calls = int(_LONG * scale)
    with tempfile.TemporaryDirectory() as name:
        for number in range(_TAPES):
            record_calls(Path(name) / f"{number}.tape", calls // _TAPES)

        def opened(*, scan: bool) -> None:
            open_tape(name, scan=scan).close()

        def variants(*, scan: bool) -> None:
            with open_tape(name, scan=scan) as tape:
                tape.variants()

        ways = {"open_tape": opened, "variants()": variants}
        contenders: dict[str, Callable[[], None]] = {
            f"{what}{' by a scan' * scan}": functools.partial(way, scan=scan)
            for what, way in ways.items()
            for scan in (False, True)
        }
        info = "calltape info"
        contenders[info] = lambda: _run("info", name)
        samples = measure(contenders, 3, clock=processor_seconds)
        for what in ways:
            seconds, scan = samples.median(what), samples.median(f"{what} by a scan")
            yield Row(
                f"`{what}`, {calls:,} calls in {_TAPES} tapes",
                f"{seconds:.2f} s of a processor",
                f"by a scan: {scan:.1f} s",
                f"{scan / seconds:.1f} × as fast",
            )
        seconds, variants_seconds = samples.median(info), samples.median("variants()")
        yield Row(
            f"`{info}`, {calls:,} calls in {_TAPES} tapes",
            f"{seconds:.2f} s of a processor",
            f"`variants()`: {variants_seconds:.1f} s",
            f"{seconds / variants_seconds:.2f} ×",
            Question.ANALYSIS,
        )


def _ends(scale: float) -> list[Row]:
    """Files of which only the ends are there are written, surveyed and deleted, a tenth at a time;
    all of them go into one survey. Runs in a process of its own, whose memory nothing else had."""
    batch = max(int(_ENDS * scale) // 10, 500)
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as name:
        record_calls(Path(name) / "pattern.tape", _CALLS_OF_END, _SIZES_OF_END)
        ends, found = Ends(Path(name) / "pattern.tape", keeps_records=False), Survey()
        for first in range(0, 10 * batch, batch):
            folder = Path(name) / f"{first}"
            folder.mkdir()
            for number in range(first, first + batch):
                ends.write(folder / f"{number}.tape", number, hosts=_HOSTS)
            before = time.process_time()
            for path in sorted(folder.iterdir()):
                one = read_file(str(path), False, None)
                if isinstance(one, TapeError):
                    raise one
                found.add(one)
            costs.append(Cost(time.process_time() - before, _anonymous(os.getpid())))
            shutil.rmtree(folder)
        found.finish()
        target = found.target()
        calls = target.coverage.kept
        if target.files != 10 * batch or calls != 10 * batch * _CALLS_OF_END or target.damage:
            raise RuntimeError(f"surveyed {found}")
        path = Path(name) / "survey.tape"
        found.write(path)
        stored = path.stat().st_size
    per_end = [cost.seconds / batch for cost in costs]
    grown = (costs[-1].anonymous - costs[0].anonymous) / (9 * batch)
    what = f"survey of {10 * batch:,} ends of tapes with {_SIZES_OF_END} different inputs each"
    spent = f"{sum(per_end) / 10 * 1000:.2f} ms of a processor per tape"
    ratio = f"{per_end[-1] / per_end[0]:.2f} ×"
    return [
        Row(what, f"{spent}, {costs[-1].anonymous / 2**20:.0f} MiB"),
        Row(f"{what}: the last tenth", "", "the first tenth", ratio),
        Row(f"{what}: memory per tape", f"{grown:.0f} bytes"),
        Row(f"{what}: the file of the survey", f"{stored / 1024:.0f} KiB"),
    ]


class Cost(NamedTuple):
    """Seconds of a processor, and the memory afterwards, in bytes."""

    seconds: float
    anonymous: int
