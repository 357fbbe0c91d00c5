"""``calltape ship``: sealed tapes to an object store."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.output import FAILURE, Json, command, complain, line, print_model
from calltape_analyzer.reading.urls import is_url

if TYPE_CHECKING:
    from calltape_analyzer.shipping.ending import Ending
    from calltape_analyzer.shipping.ship_report import ShipReport

__all__ = ["ship"]


@command
def ship(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where recorders write, with all below it.")
    ],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to, such as s3://bucket/tapes.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on, and ship each file when it is sealed.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.05, help="With --follow: how often to look."),
    ] = 10.0,
    grace: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="With --follow: for how long after SIGTERM files that were sealed meanwhile may "
            "still be begun.",
        ),
    ] = 20.0,
    delete_after: Annotated[
        bool,
        typer.Option("--delete-after", help="Remove a file here once its copy was found equal."),
    ] = False,
    unsealed: Annotated[
        bool,
        typer.Option(
            "--unsealed",
            help="Ship files too that were never sealed, because their process died: nothing was "
            "written to them for a minute, and no process that can be seen has them open.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Copies sealed tapes to object storage.

    A file is shipped when its recorder has sealed it, under its path below DIR, and compared with
    its copy by size and checksum. What is there with the same bytes is left out; other bytes under
    the same name stay, and are told (exit code 1). It may be killed at any time, and run again.

    SIGTERM and SIGINT end it after the file that is being sent; a second one ends it at once.

    \b
    calltape ship /tapes s3://bucket/host-1
    calltape ship /tapes s3://bucket/host-1 --follow --delete-after
    """
    from calltape_analyzer.shipping.ending import Ending
    from calltape_analyzer.shipping.shipment import Shipment

    if is_url(str(directory)):
        raise typer.BadParameter("DIR is a directory on this machine")
    shipment = Shipment(
        directory,
        url,
        delete_after=delete_after,
        unsealed=unsealed,
        told=_told if not json else lambda name, size: None,
    )
    ending = Ending()
    with _ended_by_signals(ending, grace if follow else 0.0):
        if follow:
            shipment.follow(every, ending, _Complaints().tell)
        else:
            shipment.look(ending)
    report = shipment.report
    if json:
        print_model(report)
    else:
        head, *rest = str(report).splitlines()
        line(head)
        for text in rest[: len(rest) - len(report.problems)]:
            line(text)
        if not follow:
            _Complaints().tell(report)
    if not report.ok:
        raise typer.Exit(FAILURE)


def _told(name: str, size: int) -> None:
    line(f"shipped {name}: {size:,} bytes")
    sys.stdout.flush()  # whoever follows a log sees it now


class _Complaints:
    """Tells each problem when it comes, and not at each look again."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()

    def tell(self, report: ShipReport) -> None:
        for problem in report.problems:
            if problem not in self._told:
                complain(f"not shipped: {problem}")
        self._told = frozenset(report.problems)


@contextmanager
def _ended_by_signals(ending: Ending, grace: float) -> Iterator[None]:
    """Asks for the end when a signal comes, and ends at once when a second one does."""

    def ask(number: int, frame: FrameType | None) -> None:
        if ending.is_asked:
            raise KeyboardInterrupt
        ending.ask(grace if number == signal.SIGTERM else 0.0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
