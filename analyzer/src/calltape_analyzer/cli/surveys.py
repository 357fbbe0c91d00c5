"""``calltape survey``: many tapes as one. And surveys in the place of tapes.

In come tapes and surveys. Out go the survey of all of them as text or as a file, and, for other
commands, what it says of one target, as a tape without its calls.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Annotated, Any

import typer

from calltape_analyzer.cli.budget import Exceeded, limits, reading, reading_in_thread
from calltape_analyzer.cli.options import Force, Json, OptionalOut, Scan
from calltape_analyzer.cli.output import DAMAGED, command, complain, forced, line, print_json
from calltape_analyzer.cli.recordings import coverage_text, size, traffic_lines
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.traffic_counters import CountedKind
from calltape_analyzer.progress import later_bar
from calltape_analyzer.pytree.memory_limit import granted
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.surveying.file_survey import listed
from calltape_analyzer.surveying.survey import Survey
from calltape_analyzer.surveying.survey_file import is_survey_file, read_survey, write_survey
from calltape_analyzer.surveying.surveyed_tape import SurveyedTape
from calltape_analyzer.surveying.surveying import survey as make_survey
from calltape_analyzer.text import counted, some_of, time_text
from calltape_schema.errors import TapeError

__all__ = ["print_survey", "print_targets", "survey", "survey_facts", "surveyed", "tape_of_surveys"]

_MOST = 3
_EVERY_SECONDS = 10.0
_EFFORT = 4  # the numbers of a packed survey are many more than those of a tape of its size


@command
def survey(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Tapes: files, directories, patterns; and surveys, files that end with .json or "
            ".json.gz. Calls that several of them have count once.",
        ),
    ],
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Processes that read; one per processor."),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask",
            metavar="ADDRESS",
            help="Read on the workers of this Dask scheduler, such as tcp://10.0.0.7:8786.",
        ),
    ] = None,
    out: OptionalOut = None,
    force: Force = False,
    scan: Scan = False,
    json: Json = False,
) -> None:
    """Many tapes as one: calls, coverage, damage, time and hosts.

    Sealed tapes of many calls are read at their ends, others are scanned, large ones in pieces. A
    tape that cannot be read is told, and costs its own answer only. variants, explain, diff and
    info take the file that -o writes (.json or .json.gz) wherever they take a tape.

    \b
    calltape survey runs/ -o monday.json
    calltape survey 's3://tapes/**/*.tape' --dask tcp://ada:8786 -o week.json
    calltape survey monday.json tuesday.json -o both.json
    """
    found = surveyed(paths, jobs=jobs, dask=dask, scan=scan)
    if out is not None:
        with forced():
            write_survey(found, out, overwrite=force)
    print_targets(found, json=json)


def print_targets(found: Survey, *, json: bool) -> None:
    """Prints what a survey says of each target; what is wrong is told, and decides the exit
    code."""
    tapes = found.tapes
    if json:
        print_json([survey_facts(tape) for tape in tapes])
    else:
        for number, tape in enumerate(tapes):
            if number:
                print()
            print_survey(tape)
        if not tapes:
            line("no tape could be read")
    sys.stdout.flush()
    errors = [*found.unreadable, *(error for tape in tapes for error in tape.damage)]
    for error in errors:
        complain(str(error))
    if errors:
        raise typer.Exit(DAMAGED)


def surveyed(
    paths: Sequence[str], *, jobs: int | None = None, dask: str | None = None, scan: bool = False
) -> Survey:
    """The survey of tapes and surveys. Of several files, one that cannot be read costs its own
    answer only.

    Raises:
        TapeError: there is no such file, or the only survey breaks its form.
        UsageError: surveys have some files in common only, or Dask is not installed.
    """
    unreadable: list[TapeError] = []
    names = files_of(paths, unreadable.append)
    tapes = [name for name in names if not is_survey_file(name)]
    with nullcontext() if limits.nbytes is None else granted(limits.nbytes):
        read = [_read(name, unreadable) for name in names if is_survey_file(name)]
    surveys = [one for one in read if one is not None]
    if unreadable and not surveys and not tapes:
        raise unreadable[0]
    found = Survey().merge(*surveys)
    for error in unreadable:
        found.add_unreadable(listed(error, ""))
    if not tapes:
        return found
    guard = functools.partial(_bounded, limits.seconds, limits.nbytes)
    with ExitStack() as stack:
        executor = stack.enter_context(_cluster(dask)) if dask is not None else None
        advance = stack.enter_context(_progress(len(tapes)))
        return make_survey(
            tapes, executor, jobs=jobs, onto=found, progress=advance, scan=scan, guard=guard
        )


def _read(name: str, unreadable: list[TapeError]) -> Survey | None:
    try:
        with _bounded(limits.seconds, limits.nbytes, [name], _EFFORT):
            return read_survey(name)
    except TapeError as error:
        unreadable.append(error.at(path=name))
        return None


@contextmanager
def _bounded(
    seconds: float | None, nbytes: int | None, paths: Sequence[str], effort: int = 1
) -> Iterator[None]:
    """Bounds what reading these files may cost, in any process. In another thread than the main
    one, such as that of a Dask worker, its time only."""
    limits.seconds, limits.nbytes = seconds, nbytes
    is_main = threading.current_thread() is threading.main_thread()
    try:
        with reading(paths, effort) if is_main else reading_in_thread(paths):
            yield
    except Exceeded as exceeded:
        raise exceeded.error from None


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        advice = "install calltape-analyzer[dask]"
        raise UsageError("--dask needs dask.distributed", advice=advice) from None
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler at {address}: {error}") from None
    with client:
        yield client.get_executor()


@contextmanager
def _progress(files: int) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line now and then. Both only if it takes long."""
    if sys.stderr.isatty():
        with later_bar(sys.stderr, "files", files) as advance:
            yield lambda done, total: advance(done)
        return
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= _EVERY_SECONDS:
            told = time.monotonic()
            complain(f"{done:,} of {counted(total, 'file')} read")

    yield tell


def tape_of_surveys(
    names: Sequence[str], *, target: str | None = None, scan: bool = False
) -> SurveyedTape | None:
    """What surveys, and the tapes beside them, say of one target; None if no file is a survey.

    Raises:
        TapeError: as :func:`surveyed`; ``usage`` if no target or several are meant.
        UsageError: records are to be scanned, and there are none.
    """
    if not any(map(is_survey_file, names)):
        return None
    if scan and all(map(is_survey_file, names)):
        raise UsageError("a survey has no records to scan", advice="name the tapes themselves")
    return surveyed(names, jobs=1, scan=scan).tape(target)


def print_survey(tape: SurveyedTape) -> None:
    """Prints what a survey says of one target."""
    facts = survey_facts(tape)
    kept: dict[CountedKind, int] = {}
    for seen in tape.calls.by_inputs():
        kind = CountedKind.of(seen.inputs)
        kept[kind] = kept.get(kind, 0) + seen.calls
    sealed, recordings = facts["sealed"], facts["recordings"]
    files = f"{counted(facts['files'], 'file')} of {counted(recordings, 'recording')}"
    traffic = list(traffic_lines(tape.counters, tape.signature, kept))
    rows = [
        ("target", facts["target"]),
        ("files", f"{files}, {sealed:,} sealed, {facts['scanned']:,} scanned"),
        ("copies", _copies(tape)),
        ("calls", f"{facts['calls']:,} with {facts['inputs']:,} different inputs"),
        ("ranks", _ranks(tape)),
        ("raised", f"{facts['raised']:,}" if facts["raised"] else None),
        ("coverage", coverage_text(tape.coverage)),
        ("bytes", f"{size(facts['bytes'])}, {size(facts['tensor_bytes'])} of it tensors"),
        ("time", f"{facts['first_call']} to {facts['last_call_end']}" if tape.span_ns else None),
        *zip(("traffic", *[""] * len(traffic)), traffic, strict=False),
        ("hosts", some_of(facts["hosts"], _MOST) or None),
        ("folders", _folders(facts["folders"])),
        ("producers", some_of([_producer(one) for one in facts["producers"]], _MOST, "; ")),
        ("damage", f"{facts['damage']:,} places, told on stderr" if facts["damage"] else "none"),
    ]
    for name, text in rows:
        if text is not None:
            line(name.ljust(10), text, indent=11)


def _copies(tape: SurveyedTape) -> str | None:
    if not tape.copies:
        return None
    names = some_of(tape.copies, _MOST)
    return f"{len(tape.copies):,}, whose calls count once, in the other file: {names}"


def _ranks(tape: SurveyedTape) -> str | None:
    """How many steps the calls of the ranks of a job are, at least: each step is a call of every
    rank, if the model is split. A survey has no single call, and cannot compare those of ranks."""
    calls: dict[int, Counter[int]] = {}
    for segment in tape.segments:
        rank = segment.manifest.rank
        if rank is not None:
            calls.setdefault(rank.of, Counter())[rank.number] += len(segment)
    if not calls:
        return None
    ranks = ", ".join(f"{len(of)} of {size}" for size, of in sorted(calls.items()))
    steps = sum(max(of.values()) for of in calls.values())
    return f"{ranks}: their calls are {steps:,} steps, or more if they had different data"


def _folders(names: Sequence[str]) -> str | None:
    return f"{len(names):,}: {some_of(names, _MOST)}" if len(names) > 1 else None


def _producer(versions: dict[str, Any]) -> str:
    return ", ".join(f"{name} {text}" for name, text in versions.items() if name != "host")


def survey_facts(tape: SurveyedTape) -> dict[str, Any]:
    """What is known of a target, as plain data."""
    span = tape.span_ns
    return {
        "target": tape.name,
        "files": len(tape.files),
        "recordings": len({one.key.tape for one in tape.files}),
        "sealed": sum(one.sealed for one in tape.files),
        "scanned": sum(one.scanned for one in tape.files),
        "copies": len(tape.copies),
        "calls": len(tape),
        "inputs": sum(1 for _ in tape.calls.by_inputs()),
        "raised": sum(one.raised for one in tape.files),
        "coverage": tape.coverage.model_dump(exclude={"at_least"}),
        "coverage_is_lower_bound": bool(tape.coverage.at_least),
        "bytes": tape.nbytes,
        "tensor_bytes": sum(one.tensor_bytes for one in tape.files),
        "first_call": None if span is None else time_text(span[0]),
        "last_call_end": None if span is None else time_text(span[1]),
        "counted": tape.counters.calls,
        "files_without_counters": len(tape.counters.missing),
        "hosts": list(tape.hosts),
        "folders": list(tape.folders),
        "producers": list(tape.producers),
        "damage": len(tape.damage),
    }
