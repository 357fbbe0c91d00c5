"""An S3 server on loopback that counts what it is asked."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

__all__ = ["Asked", "Traffic", "aws_environment", "s3_server"]


@dataclass
class Asked:
    """One request, and how many bytes the answer had."""

    method: str
    path: str
    range: str | None
    nbytes: int


def nothing(asked: Asked) -> str | None:
    return None


@dataclass
class Traffic:
    """What a server was asked since it was cleared.

    Attributes:
        refuses: is called with each request before the server looks at it, and gives the status of
            the answer if it is to be of no use.
    """

    asked: list[Asked] = field(default_factory=list)
    refuses: Callable[[Asked], str | None] = nothing

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
        status = self._traffic.refuses(one)
        if status is not None:
            start_response(status, [("Content-Length", "0")])
            return [b""]
        answer = list(self._app(environ, start_response))
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
