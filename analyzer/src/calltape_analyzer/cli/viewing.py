"""``calltape view``: the page that shows tapes, in a browser on this machine, or one to send.

Takes tapes; prints the address of the page, and serves the page until Ctrl-C. With ``--out``, it
writes a file instead.
"""

from __future__ import annotations

import base64
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from calltape_analyzer.cli.options import FILES, Force, OptionalOut
from calltape_analyzer.cli.output import command, line
from calltape_analyzer.cli.page_server import PageServer, page_of_viewer, variants_of
from calltape_analyzer.interruption import Terminated
from calltape_analyzer.reading.files import files_of, opened_file, short_paths
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_analyzer.reading.urls import displayed_url
from calltape_analyzer.text import counted, printable
from calltape_analyzer.writing.output_file import OutputFile
from calltape_schema.errors import TapeError

__all__ = ["view"]

_SUFFIXES = (".html", ".htm")
_MOST_MIB = 128
"""Of tapes in one page: a browser holds several copies of its text."""
_PLACE = b'<script type="text/plain" id="reader-program">'


@command
def view(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="TAPE...", help=f"{FILES}."),
    ],
    out: OptionalOut = None,
    force: Force = False,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Default: a free port.")
    ] = 0,
) -> None:
    """View tapes in a browser.

    The page shows calls, arguments as trees, values of tensors, variants, sizes over the calls,
    corruption, coverage and history. Only this machine can reach it, and only at the printed
    address. Ctrl-C ends it.

    With --out, view writes the page to an HTML file that contains the tapes, of at most 128 MiB
    together. The file needs neither a network nor calltape. It contains the values of the tapes:
    redact them first if the file is for others.

    \b
    calltape view runs/llm.tape
    calltape view runs/ --no-browser
    calltape view runs/llm.tape --out llm.html
    """
    if out is not None:
        _write(paths, out, force)
    else:
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


def _write(paths: Sequence[str], out: Path, force: bool) -> None:
    """Writes the page, with the tapes in it, into a file."""
    if out.suffix not in _SUFFIXES:
        raise typer.BadParameter(f"-o {out}: a page ends with .html")
    if out.exists() and not force:
        raise TapeError("exists", "it is there already", path=str(out))
    before, place, after = page_of_viewer().partition(_PLACE)
    assert place
    names = files_of(paths)
    with OutputFile(out, overwrite=force) as file:
        file.append([before])
        for block in _blocks(names):
            file.append(block)
        file.append([place, after])
    line("wrote", str(out))
    held = counted(len(names), "tape")
    line(f"it holds {held}, values included; to omit values, run `calltape redact` first")


def _blocks(paths: Sequence[str]) -> Iterator[list[bytes]]:
    """Each tape, and the tables of its variants, as elements that the page decodes and no browser
    runs, in parts."""
    names, size = short_paths(paths), 0
    for path in paths:
        with closing(opened_file(path)) as file:
            size += file.size
            if size > _MOST_MIB * 2**20:
                raise TapeError(
                    "limit", f"a page holds tapes of at most {_MOST_MIB} MiB",
                    advice="write fewer calls with `calltape filter`, or look at them with "
                    "`calltape view` alone",
                )  # fmt: skip
            data = base64.b64encode(file.read_at(0, file.size))
        name = escape(printable(displayed_url(names[path]))).encode()
        head = b'<script type="application/x-calltape" data-name="%b">' % name
        yield [head, data, b"</script>\n"]
        tables = variants_of(path).replace(b"<", rb"\u003c")
        yield [b'<script type="application/x-calltape-variants">', tables, b"</script>\n"]
