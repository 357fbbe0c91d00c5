"""``calltape survey``: many tapes as one tape without calls.

Takes tapes, and surveys of tapes; returns what they say together, as text and as a tape that every
verb reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Annotated, Any

import typer

from calltape_analyzer.cli.options import FILES, Force, Json, OfTarget, OptionalOut, Scan
from calltape_analyzer.cli.output import (
    DAMAGED,
    FAILURE,
    command,
    complain,
    line,
    print_facts,
    print_json,
)
from calltape_analyzer.cli.recordings import coverage_as_json, coverage_text, size
from calltape_analyzer.errors import UsageError, to_install
from calltape_analyzer.limits import advice_to_allow
from calltape_analyzer.progress import later_bar
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.surveying.survey import survey as make_survey
from calltape_analyzer.surveying.target_survey import TargetSurvey
from calltape_analyzer.text import counted, some_of, time_text
from calltape_schema.errors import TapeError

__all__ = ["survey"]

_MAX_NAMED = 3


@command
def survey(
    paths: Annotated[
        list[str], typer.Argument(metavar="TAPE...", help=f"{FILES}. Surveys work, too.")
    ],
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            min=1,
            help="Number of processes that read. Default: one per processor.",
        ),
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask",
            metavar="ADDRESS",
            help="Read on the workers of this Dask scheduler, such as tcp://10.0.0.7:8786.",
        ),
    ] = None,
    target: OfTarget = None,
    out: OptionalOut = None,
    force: Force = False,
    scan: Scan = False,
    json: Json = False,
) -> None:
    """Summarize many tapes: calls, coverage and corruption.

    Reads only the ends of sealed tapes, and scans the others. A tape that cannot be read is
    reported and left out. -o writes the summary of one target as a tape without calls, which
    variants, explain, diff and info read like any other tape.

    \b
    calltape survey runs/ -o monday.tape
    calltape survey 's3://tapes/**/*.tape' --dask tcp://ada:8786 -o week.tape
    calltape survey monday.tape tuesday.tape -o both.tape
    """
    names = files_of(paths)
    with ExitStack() as stack:
        executor = stack.enter_context(_cluster(dask)) if dask is not None else None
        bar = later_bar("files", len(names)) if sys.stderr.isatty() else nullcontext()
        advance = stack.enter_context(bar)
        surveyed = make_survey(
            paths, executor, processes=jobs, progress=advance, scan=scan
        )  # fmt: skip
    if out is not None and (surveyed.targets or not (surveyed.unreadable or surveyed.left_out)):
        surveyed.write(out, target=target, overwrite=force, inputs=names)
    chosen = [surveyed.target(target)] if target is not None else [*surveyed.targets.values()]
    if json:
        print_json([_facts(summary) for summary in chosen])
    else:
        for number, summary in enumerate(chosen):
            if number:
                print()
            _print(summary)
        if not chosen:
            line("no tape could be read" + (f"; {out} was not written" if out is not None else ""))
    sys.stdout.flush()
    errors = [
        *surveyed.unreadable,
        *(error for summary in chosen for error in summary.damage),
    ]
    if surveyed.left_out:
        left_out = f"{counted(surveyed.left_out, 'file')} left out: adding them up takes too long"
        advice = advice_to_allow("seconds=600", "--max-seconds 600")
        errors.append(TapeError("limit", left_out, advice=advice))
    for error in errors:
        complain(str(error))
    if errors:
        raise typer.Exit(DAMAGED if chosen else FAILURE)


def _print(summary: TargetSurvey) -> None:
    facts = _facts(summary)
    files = f"{counted(summary.files, 'file')} of {counted(summary.recordings, 'recording')}"
    copies = f"{len(summary.copies):,}, counted once: {some_of(summary.copies, _MAX_NAMED)}"
    derived = "made of recordings that are also here: some calls may count twice"
    ranks = (
        f"{counted(len(summary.other_ranks), 'file')} of other ranks ignored: a step counts once"
    )
    read = f"{summary.records_read:,} of {summary.records:,} records; --scan reads all of them"
    rows = [
        ("target", summary.name),
        ("files", f"{files}, {summary.files - summary.unsealed:,} sealed"),
        ("copies", copies if summary.copies else None),
        (
            "twice",
            f"{some_of(summary.made_of_others, _MAX_NAMED)}, {derived}"
            if summary.made_of_others
            else None,
        ),
        ("ranks", ranks if summary.other_ranks else None),
        ("hosts", some_of(summary.hosts, _MAX_NAMED) if summary.hosts else None),
        (
            "time",
            None if summary.span_ns is None else " to ".join(map(time_text, summary.span_ns)),
        ),
        ("calls", f"{facts['calls']:,} with {facts['inputs']:,} different inputs"),
        ("read", read if summary.records_read < summary.records else None),
        ("raised", f"{facts['raised']:,}" if facts["raised"] else None),
        ("coverage", coverage_text(summary.coverage)),
        ("bytes", size(summary.nbytes)),
        (
            "corruption",
            f"{len(summary.damage):,} places, listed on stderr" if summary.damage else "none",
        ),
    ]
    print_facts(rows)


def _facts(summary: TargetSurvey) -> dict[str, Any]:
    """What is known of a target, as plain data."""
    totals = summary.table.totals()
    return {
        "target": summary.name,
        "files": summary.files,
        "recordings": summary.recordings,
        "sealed": summary.files - summary.unsealed,
        "copies": len(summary.copies),
        "other_ranks": len(summary.other_ranks),
        "made_of_others": len(summary.made_of_others),
        "hosts": summary.hosts,
        "first_call": None if summary.span_ns is None else time_text(summary.span_ns[0]),
        "last_call_end": None if summary.span_ns is None else time_text(summary.span_ns[1]),
        "calls": summary.coverage.kept,
        "inputs": sum(1 for row in summary.table.rows.values() if row.kept),
        "records": summary.records,
        "records_read": summary.records_read,
        "raised": totals.raised,
        "counted": totals.seen,
        **coverage_as_json(summary.coverage),
        "bytes": summary.nbytes,
        "damage": len(summary.damage),
    }


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        advice = to_install("dask")
        raise UsageError("--dask needs dask.distributed", advice=advice) from None
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler at {address}: {error}") from None
    with client:
        yield client.get_executor()
