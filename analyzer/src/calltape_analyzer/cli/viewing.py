"""``calltape view``: the page that shows tapes, in a browser on this machine.

In come tapes. Out go the address of the page, and the page itself, until Ctrl-C.
"""

from __future__ import annotations

import webbrowser
from contextlib import ExitStack
from typing import Annotated

import typer

from calltape_analyzer.cli.output import command, line
from calltape_analyzer.cli.page_server import PageServer, page_of_viewer
from calltape_analyzer.cli.tapes import FILES
from calltape_analyzer.interruption import Terminated
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.reading.tape_file import TapeFile

__all__ = ["view"]


@command
def view(
    paths: Annotated[list[str], typer.Argument(metavar="TAPE...", help=f"{FILES}.")],
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

    \b
    calltape view runs/llm.tape
    calltape view runs/ --no-browser
    """
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
