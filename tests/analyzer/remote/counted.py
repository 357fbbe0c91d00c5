"""Servers on loopback that count what they are asked: S3, and plain files with ranges."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

__all__ = ["Asked", "Site", "Traffic", "aws_environment", "s3_server", "served"]


@dataclass
class Asked:
    """One request, and how many bytes the answer had."""

    method: str
    path: str
    range: str | None
    nbytes: int


def nothing(asked: Asked) -> None:
    pass


@dataclass
class Traffic:
    """What a server was asked since it was cleared.

    Attributes:
        before, after: are called with each request before the server looks at it, and when it has
            done what was asked, and has not answered yet.
    """

    asked: list[Asked] = field(default_factory=list)
    before: Callable[[Asked], None] = nothing
    after: Callable[[Asked], None] = nothing

    def clear(self) -> None:
        self.asked.clear()

    def __len__(self) -> int:
        return len(self.asked)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.asked)


class _Counted:
    """A WSGI application whose requests are counted."""

    def __init__(self, app: Any, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        one = Asked(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_RANGE"), 0)
        self._traffic.asked.append(one)
        self._traffic.before(one)
        answer = list(self._app(environ, start_response))
        self._traffic.after(one)
        one.nbytes = sum(map(len, answer))
        return answer


@contextlib.contextmanager
def s3_server() -> Iterator[tuple[str, Traffic]]:
    """The address of a server that speaks the protocol of S3, and what it is asked."""
    pytest.importorskip("moto")
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    traffic = Traffic()
    app = _Counted(DomainDispatcherApplication(create_backend_app), traffic)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Quiet)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", traffic
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def aws_environment(address: str) -> dict[str, str]:
    """Environment variables with which S3 clients go to a server, and to nothing else."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }


@dataclass
class Site:
    """What a web server has: files by path, and how it answers.

    Attributes:
        address: such as ``http://127.0.0.1:40001``.
        answer: takes the place of the usual answer to one path, if there is one.
        status: of the answer to HEAD, which signed URLs refuse.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    etags: bool = True
    status: int = 403
    answer: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)


@contextlib.contextmanager
def served() -> Iterator[Site]:
    """A web server that knows ranges, on a port that was free."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            one = Asked("GET", self.path, self.headers.get("Range"), 0)
            site.traffic.asked.append(one)
            with contextlib.suppress(ConnectionError):
                if path in site.answer:
                    site.answer[path](self)
                else:
                    one.nbytes = _serve(self, site, path)

        def do_HEAD(self) -> None:
            site.traffic.asked.append(Asked("HEAD", self.path, None, 0))
            self.send_error(site.status)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _serve(handler: BaseHTTPRequestHandler, site: Site, path: str) -> int:
    data = site.files.get(path)
    if data is None:
        handler.send_error(404)
        return 0
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
    if found is None:
        return send(handler, 200, data)
    start, end = int(found[1]), min(int(found[2]) + 1, len(data))
    if start >= len(data):
        return send(handler, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
    if site.etags:
        headers["ETag"] = f'"{hash(data)}"'
    return send(handler, 206, data[start:end], headers)


def send(
    handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None
) -> int:
    """Sends an answer, and returns how many bytes it had."""
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
    return len(data)
