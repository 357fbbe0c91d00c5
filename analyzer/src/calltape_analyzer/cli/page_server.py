"""The server of ``calltape view``: a page, ranges of the tapes that were given, and their variants.

Serves the page and open files by HTTP on loopback. Whoever does not know the random token in
the address gets nothing. The Host header must be that of the address: a page of a stranger's site,
whose name leads to 127.0.0.1 (DNS rebinding), would send another one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from calltape_analyzer.limits import Exceeded, reading
from calltape_analyzer.opening import open_tape
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_analyzer.text import printable
from calltape_schema.errors import TapeError

__all__ = ["PageServer", "page_of_viewer", "variants_of"]

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


def variants_of(path: str) -> bytes:
    """The tables of a tape's variants for the page, as JSON of ASCII; or why there are none. Only
    Python finds variants: the page by itself has the sizes of each dimension."""
    from calltape_analyzer.variant import table_of

    document: dict[str, Any]
    try:
        with reading([path]), open_tape(path) as tape:
            document = {"variants": [table_of(one).document() for one in tape.variants()]}
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
        found = _POLICY.search(page.decode())
        self.policy = "default-src 'none'" if found is None else found[1]
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
                self._send(HTTPStatus.OK, "application/json", variants_of(file.path))
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
        asked = self.headers.get("Range")
        if asked is None:
            start, end, status = 0, file.size, HTTPStatus.OK
        else:
            found = _RANGE.fullmatch(asked)
            start, end = (int(found[1]), min(int(found[2]) + 1, file.size)) if found else (0, 0)
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
