"""``calltape report``: one HTML file that shows what was recorded.

In come tapes or surveys, and programs if somebody asks what they make of the calls. Out goes the
page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.budget import reading
from calltape_analyzer.cli.output import command, forced, line
from calltape_analyzer.cli.replays import Trust
from calltape_analyzer.cli.surveys import surveyed
from calltape_analyzer.cli.tapes import (
    FILES,
    Calls,
    Ignore,
    OfTarget,
    Part,
    Scan,
    Variants,
    opened,
)
from calltape_analyzer.listing import recordings
from calltape_analyzer.programs.manifest import MANIFEST
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.reading.targets import TargetsError
from calltape_analyzer.surveying.survey_file import is_survey_file
from calltape_schema.errors import TapeError

if TYPE_CHECKING:
    from calltape_analyzer.reporting.tape_parts import Outcomes
    from calltape_analyzer.tape import Tape

__all__ = ["report"]

_SUFFIXES = (".html", ".htm")


@command
def report(
    paths: Annotated[list[str], typer.Argument(metavar="TAPE...", help=f"{FILES}; or surveys.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE.html", help="The new page.")
    ] = Path("report.html"),
    programs: Annotated[
        Path | None,
        typer.Option(
            "--programs",
            metavar="DIR",
            help="Show too which calls these programs would take: an .onnx or .pt2 file, or a "
            "directory that calltape export saved.",
        ),
    ] = None,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="With --programs: run the calls through them, and compare."),
    ] = False,
    trust: Trust = False,
    target: OfTarget = None,
    calls: Calls = None,
    variant: Variants = None,
    ignore: Ignore = None,
    scan: Scan = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the page if it is there.")
    ] = False,
) -> None:
    """One HTML file that shows what was recorded.

    Coverage, calls and latency over time, variants with their arguments, sizes and evidence,
    errors. It needs no network, fits a phone, and prints. Of more than 20,000 calls the records
    are read only with --scan: without it, latency and errors are not on the page.

    \b
    calltape report runs/llm.tape -o llm.html
    calltape report runs/ -o all.html --scan
    calltape report runs/llm.tape -o ok.html --programs exported/ --replay --trust
    """
    from calltape_analyzer.reporting.page import ReportPage, require_libraries
    from calltape_analyzer.reporting.report import contents_of

    with forced():
        _check(out, programs, replay=replay, force=force)
    require_libraries()
    part = Part(calls, variant, ignore, target)
    with _tapes(paths, part, scan=scan, runs=replay) as tapes:
        outcomes = _outcomes(tapes, programs, replay=replay, trust=trust)
        with reading([path for tape in tapes for path in tape.paths]):
            contents = contents_of(tapes, scan=scan or None, outcomes=outcomes)
        with forced():
            ReportPage.of(contents).write(out, overwrite=force)
        line("wrote", str(out))


def _check(out: Path, programs: Path | None, *, replay: bool, force: bool) -> None:
    """Raises BadParameter or TapeError for what cannot end well, before anything is read."""
    if out.suffix not in _SUFFIXES:
        raise typer.BadParameter(f"-o {out}: a page ends with .html")
    if replay and programs is None:
        raise typer.BadParameter("--replay goes with --programs")
    if programs is not None and not programs.exists():
        raise TapeError("not_found", "no such file", path=str(programs))
    if out.exists() and not force:
        raise TapeError("exists", "it is there already", path=str(out))


@contextmanager
def _tapes(paths: Sequence[str], part: Part, *, scan: bool, runs: bool) -> Iterator[list[Tape]]:
    """The tape; or one for each target, if the files are of several."""
    with ExitStack() as stack:
        if part.target is None and any(map(is_survey_file, files_of(paths))):
            yield list(surveyed(paths, jobs=1, scan=scan).tapes)
            return
        found = []
        try:
            found.append(stack.enter_context(opened(paths, part, runs=runs, scan=scan)))
        except TargetsError:
            if part != Part():
                raise  # calls and variants are those of one tape
            for name in recordings(list(paths), scan=scan).targets:
                own = Part(target=name)
                found.append(stack.enter_context(opened(paths, own, runs=runs, scan=scan)))
        yield found


def _outcomes(
    tapes: Sequence[Tape], programs: Path | None, *, replay: bool, trust: bool
) -> dict[str, Outcomes]:
    """What the programs make of the calls."""
    if programs is None:
        return {}
    if len(tapes) > 1:
        raise typer.BadParameter("--programs are of one target; choose it with --target")
    from calltape_analyzer.replaying.checking import check as check_calls
    from calltape_analyzer.replaying.replaying import replay as replay_calls

    (tape,) = tapes
    # A path may be private, and is not needed.
    name = programs.name
    with reading([str(programs / MANIFEST if programs.is_dir() else programs)]):
        found: dict[str, Outcomes] = {
            f"Check: would {name} take the calls": check_calls(tape, programs, trusted=trust)
        }
    if replay:
        ran = replay_calls(tape, programs, trusted=trust)
        found[f"Replay: the calls through {name}"] = ran
    return found
