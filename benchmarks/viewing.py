"""What the viewer takes in Chromium: a sealed tape of a million calls, and one of 2 GiB of tensors;
and what `calltape view --out` takes for the page of the million calls.

Each is opened from its end, then without its end, as a killed process leaves it: then the viewer
hops over the headers, and reads every record. Times are from the drop of the file to the first rows
of the list; the memory is the most that the browser's process of the page had.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tests.browser import MISSING
from tests.viewer.tab import FILE_PAGE, ViewerTab, viewer_tab

from benchmarks.report import Question, Row
from benchmarks.sealed_tapes import record_calls
from calltape_recorder import Recorder
from calltape_schema.tar import END_MEMBER

__all__ = ["rows"]

_MANY, _LARGE = 1_000_000, 2 * 2**30
_CALL = 2**20
_PATIENCE = 600.0


class _Model(torch.nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def _record_large(path: Path, size: int) -> None:
    """Calls of a megabyte each, inputs and outputs together, of different lengths."""
    recorder = Recorder(path).attach(model := _Model())
    for call in range(size // _CALL):
        model(torch.full((512, 255 + call % 2), float(call)))
        recorder.flush()
    recorder.close()


def _cut(path: Path) -> None:
    """Takes the end of a tape away."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 64 * 2**20))
        tail = file.read()
        file.truncate(size - len(tail) + max(tail.rfind(END_MEMBER.encode()), 0))


def _renderer_peak() -> int:
    """The most memory that a process for pages had, in bytes: the largest of those there are."""
    return max(filter(None, map(_peak_of, Path("/proc").glob("[0-9]*"))), default=0)


def _peak_of(process: Path) -> int | None:
    try:
        if b"--type=renderer" not in (process / "cmdline").read_bytes():
            return None
        status = (process / "status").read_text()
    except OSError:  # it ended meanwhile
        return None
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def _opened(path: Path) -> tuple[int, list[tuple[str, float]]]:
    """The most memory, and the seconds of each step; the first is until the list is there."""
    with viewer_tab() as tab:
        tab.patience = _PATIENCE
        tab.size(1280)
        tab.go(FILE_PAGE)
        steps: list[tuple[str, float]] = []

        def timed(what: str, work: Callable[[], object]) -> None:
            begin = time.perf_counter()
            work()
            steps.append((what, time.perf_counter() - begin))

        timed("open", lambda: (tab.drop(path), tab.until(lambda: tab.text("button.open"))))
        if tab.all(".notice button"):
            timed("read every record", lambda: _read_all(tab))
        timed("open a call", lambda: tab.click("button.open"))
        timed("show its tensor", lambda: _show_tensor(tab))
        timed("dimensions", lambda: _show_dimensions(tab))
        return _renderer_peak(), steps


def _read_all(tab: ViewerTab) -> None:
    tab.click(".notice button")
    tab.until(lambda: not tab.all(".notice button"))


def _show_tensor(tab: ViewerTab) -> None:
    tab.click(".tree details details summary")
    tab.until(lambda: tab.text(".values tbody td, .inside p"))


def _show_dimensions(tab: ViewerTab) -> None:
    tab.click("#tab-dimensions")
    tab.click("#panel-dimensions button.open")
    tab.until(lambda: tab.text(".histogram tbody th"))


def _rows_of(what: str, path: Path, question: Question | None = None) -> Iterator[Row]:
    what = f"{what} ({path.stat().st_size / 2**20:,.0f} MiB)"
    peak, steps = _opened(path)
    seconds = steps[0][1]
    yield Row(what, f"{seconds:.2f} s, {peak / 2**20:.0f} MiB", question=question)
    for name, taken in steps[1:]:
        yield Row(f"{what}: {name}", f"{taken:.2f} s")


def _page_rows(path: Path, calls: int) -> Iterator[Row]:
    """`calltape view --out` as a process of its own, and its page in Chromium."""
    page = path.with_suffix(".html")
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-m", "calltape_analyzer", "view", str(path), "-o", str(page)]
    begin = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-c", code, *command], check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - begin
    peak = int(ran.stdout.splitlines()[-1]) * 1024
    with viewer_tab() as tab:
        tab.patience = _PATIENCE
        begin = time.perf_counter()
        tab.go(page.as_uri())
        tab.until(lambda: tab.text("button.open"))
        shown = time.perf_counter() - begin
    what = f"`calltape view --out`, a sealed tape of {calls:,} calls"
    yield Row(what, f"{seconds:.2f} s, {peak / 2**20:.0f} MiB")
    yield Row(f"{what}: size of the page", f"{page.stat().st_size / 2**20:.0f} MiB")
    yield Row(f"{what}: until the page is shown", f"{shown:.2f} s")


def rows(scale: float) -> Iterator[Row]:
    """Seconds until the calls are listed, and of what follows; the memory of the page's process."""
    if MISSING:
        raise RuntimeError("this needs the packages chromium and chromium-driver")
    with tempfile.TemporaryDirectory() as name:
        many = Path(name) / "many.tape"
        calls = int(_MANY * scale)
        record_calls(many, calls)
        yield from _page_rows(many, calls)
        opens = f"the viewer opens a sealed tape of {calls:,} calls"
        yield from _rows_of(opens, many, Question.ANALYSIS)
        _cut(many)
        yield from _rows_of(f"the viewer opens a tape of {calls:,} calls without its end", many)
        many.unlink()
        large = Path(name) / "large.tape"
        _record_large(large, int(_LARGE * scale))
        yield from _rows_of("the viewer opens a sealed tape of large tensors", large)
        _cut(large)
        yield from _rows_of("the viewer opens a tape of large tensors without its end", large)
