"""``calltape view``: the page that shows tapes, in a browser on this machine, or one to send.

Takes tapes; prints the address of the page, and serves by HTTP on loopback until Ctrl-C: the page,
ranges of the tapes, and the tables of their variants. With ``--out``, it writes a file instead.
Whoever does not know the random token in the address gets nothing. The Host header must be that of
the address: a page of a stranger's site, whose name leads to 127.0.0.1 (DNS rebinding), would send
another one.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from calltape_analyzer.cli.options import FILES, Force, OptionalOut
from calltape_analyzer.cli.output import command, line
from calltape_analyzer.interruption import Terminated
from calltape_analyzer.limits import Exceeded, reading
from calltape_analyzer.opening import open_tape
from calltape_analyzer.reading.files import files_of, opened_file, short_paths
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_analyzer.reading.urls import displayed_url
from calltape_analyzer.text import counted, printable
from calltape_analyzer.writing.output_file import OutputFile
from calltape_schema.errors import TapeError

__all__ = ["PageServer", "page_of_viewer", "variants_json", "view"]

_LOOPBACK = "127.0.0.1"
_PAGE = "calltape-viewer.html"
_STEP = 1024 * 1024
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})", re.ASCII)
_TAPE = re.compile(r"(tapes|variants)/(\d{1,9})", re.ASCII)
_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')


def page_of_viewer() -> bytes:
    """The page: from the installed package, or from the checkout that it is installed from.

    Raises:
        TapeError: ``not_found``.
    """
    package = Path(__file__).resolve().parents[1]
    for place in (package / _PAGE, package.parents[2] / "viewer" / _PAGE):
        if place.is_file():
            return place.read_bytes()
    raise TapeError(
        "not_found", "the page of the viewer is not installed", path=str(package / _PAGE),
        advice="reinstall calltape-analyzer; in a clone, run `make viewer` first",
    )  # fmt: skip


def variants_json(path: str) -> bytes:
    """The tables of a tape's variants for the page, as JSON of ASCII; or why there are none. Only
    Python finds variants: the page by itself has the sizes of each dimension."""
    from calltape_analyzer.variants.variant_findings import VariantTable

    document: dict[str, Any]
    try:
        with reading([path]), open_tape(path) as tape:
            document = {
                "variants": [VariantTable.of(variant).document() for variant in tape.variants()]
            }
    except (Exceeded, Exception) as error:  # the page shows the rest of the tape
        document = {"error": printable(str(getattr(error, "error", error)))}
    return json.dumps(document).encode("ascii")


class PageServer(ThreadingHTTPServer):
    """Serves the page and the tapes, each request in a thread.

    Args:
        page: HTML that needs nothing else; its policy is sent as a header too.
        files: open files. They stay open as long as the server.
        port: 0 for one that is free.

    Raises:
        TapeError: ``io`` if the port is taken.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, page: bytes, files: Sequence[TapeFile], port: int = 0) -> None:
        self.page = page
        self.files = files
        policy = _POLICY.search(page.decode())
        self.policy = "default-src 'none'" if policy is None else policy[1]
        self.root = f"/{secrets.token_urlsafe(24)}/view/"
        try:
            super().__init__((_LOOPBACK, port), _Handler)
        except OSError as error:
            raise TapeError(
                "io", f"cannot listen on port {port}: {error.strerror}",
                advice="choose another port, or leave out --port",
            ) from None  # fmt: skip

    @property
    def host(self) -> str:
        return f"{_LOOPBACK}:{self.server_port}"

    @property
    def address(self) -> str:
        return f"http://{self.host}{self.root}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection, or takes nothing any more, is no error to tell."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_version = "calltape"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    @property
    def _pages(self) -> PageServer:
        assert isinstance(self.server, PageServer)
        return self.server

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: the address has the token."""

    def _answer(self) -> None:
        server = self._pages
        if self.headers.get_all("Host") != [server.host]:
            self._send(HTTPStatus.MISDIRECTED_REQUEST)
        elif not secrets.compare_digest(
            self.path[: len(server.root)].encode(), server.root.encode()
        ):
            self._send(HTTPStatus.NOT_FOUND)
        else:
            self._serve(self.path[len(server.root) :])

    def _serve(self, name: str) -> None:
        tape = _TAPE.fullmatch(name)
        if not name:
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self._pages.page)
        elif name == "tapes.json":
            self._send(HTTPStatus.OK, "application/json", json.dumps(self._tapes()).encode())
        elif tape is not None and int(tape[2]) < len(self._pages.files):
            file = self._pages.files[int(tape[2])]
            if tape[1] == "tapes":
                self._send_tape(file)
            else:
                self._send(HTTPStatus.OK, "application/json", variants_json(file.path))
        else:
            self._send(HTTPStatus.NOT_FOUND)

    def _tapes(self) -> list[dict[str, Any]]:
        return [
            {
                "name": os.path.basename(file.path),
                "size": file.size,
                "url": f"{self._pages.root}tapes/{number}",
                "variants": f"{self._pages.root}variants/{number}",
            }
            for number, file in enumerate(self._pages.files)
        ]

    def _send_tape(self, file: TapeFile) -> None:
        range_header = self.headers.get("Range")
        if range_header is None:
            start, end, status = 0, file.size, HTTPStatus.OK
        else:
            byte_range = _RANGE.fullmatch(range_header)
            start, end = (
                (int(byte_range[1]), min(int(byte_range[2]) + 1, file.size))
                if byte_range
                else (0, 0)
            )
            if start >= end:
                ranges = {"Content-Range": f"bytes */{file.size}"}
                self._send(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=ranges)
                return
            status = HTTPStatus.PARTIAL_CONTENT
        headers = {"Accept-Ranges": "bytes"}
        if status is HTTPStatus.PARTIAL_CONTENT:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
        self._head(status, "application/octet-stream", end - start, headers)
        if self.command == "HEAD":
            return
        try:
            for offset in range(start, end, _STEP):
                self.wfile.write(file.read_at(offset, min(_STEP, end - offset)))
        except TapeError:
            # The file changed, and the length was told already: only a broken connection tells it.
            self.close_connection = True

    def _send(
        self, status: HTTPStatus, kind: str = "text/plain", content: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._head(status, kind, len(content), headers or {})
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: HTTPStatus, kind: str, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(length),
            "Content-Security-Policy": f"{self._pages.policy}; frame-ancestors 'none'",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()


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
    count = counted(len(names), "tape")
    line(f"it holds {count}, values included; to omit values, run `calltape redact` first")


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
        tables = variants_json(path).replace(b"<", rb"\u003c")
        yield [b'<script type="application/x-calltape-variants">', tables, b"</script>\n"]
