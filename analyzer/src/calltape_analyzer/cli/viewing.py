"""``calltape view``: the page that shows tapes, in a browser on this machine, or one to send.

In come tapes. Out go the address of the page, and the page itself, until Ctrl-C; or, with --out, a
file.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calltape_analyzer.cli.options import FILES, Force, OfTarget, OptionalOut
from calltape_analyzer.cli.output import command, line
from calltape_analyzer.cli.page_server import PageServer, page_of_viewer
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.interruption import Terminated
from calltape_analyzer.limits import reading
from calltape_analyzer.listing import recordings
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_analyzer.reading.targets import TargetsError
from calltape_schema.errors import TapeError

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["view"]

_SUFFIXES = (".html", ".htm")


@command
def view(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="TAPE...", help=f"{FILES}."),
    ],
    out: OptionalOut = None,
    force: Force = False,
    target: OfTarget = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="By default one that is free.")
    ] = 0,
) -> None:
    """Look at tapes in a browser.

    Calls, arguments as a tree, values of tensors, sizes over the calls, damage. Only this machine
    can reach the page, and only with the address that is printed. Ctrl-C ends it.

    With --out, one HTML file to send instead, for which --target chooses: coverage, calls and
    latency over time, variants with their arguments, sizes and evidence, errors. It needs no
    network, fits a phone, and prints. Of more than 20,000 calls, latency and errors are not on it.

    \b
    calltape view runs/llm.tape
    calltape view runs/ --no-browser
    calltape view runs/llm.tape --out llm.html
    """
    if out is not None:
        _write(paths, out, target, force)
        return
    if target is not None:
        raise typer.BadParameter("--target goes with --out; the page in the browser shows all")
    _serve(paths, browser, port)


def _serve(paths: Sequence[str], browser: bool, port: int) -> None:
    with ExitStack() as stack:
        files = [TapeFile(path) for path in files_of(paths)]
        for file in files:
            stack.callback(file.close)
        server = stack.enter_context(PageServer(page_of_viewer(), files, port))
        line(f"viewing {len(files)} {'tape' if len(files) == 1 else 'tapes'} at", server.address)
        line("Ctrl-C ends it")
        if browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except Terminated:
            raise
        except KeyboardInterrupt:
            print()


def _write(paths: Sequence[str], out: Path, target: str | None, force: bool) -> None:
    """Writes the page into a file."""
    from calltape_analyzer.reporting.page import ReportPage, require_libraries
    from calltape_analyzer.reporting.tape_parts import contents_of

    if out.suffix not in _SUFFIXES:
        raise typer.BadParameter(f"-o {out}: a page ends with .html")
    if out.exists() and not force:
        raise TapeError("exists", "it is there already", path=str(out))
    require_libraries()
    with _tapes(paths, target) as tapes:
        with reading([path for tape in tapes for path in tape.paths]):
            contents = contents_of(tapes)
        ReportPage.of(contents).write(out, overwrite=force)
        line("wrote", str(out))


@contextmanager
def _tapes(paths: Sequence[str], target: str | None) -> Iterator[list[Tape]]:
    """The tape; or one for each target, if the files are of several."""
    with ExitStack() as stack:
        try:
            found = [stack.enter_context(opened(paths, Part(target=target)))]
        except TargetsError:
            if target is not None:
                raise
            parts = [Part(target=name) for name in recordings(list(paths)).targets]
            found = [stack.enter_context(opened(paths, part)) for part in parts]
        yield found
