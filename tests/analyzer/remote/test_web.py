"""Tapes on web servers: honest ones, and others."""

from __future__ import annotations

import base64
import gzip
import json
import os
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import fsspec.config
import pytest
import torch
from fsspec.implementations.http import HTTPFileSystem

import calltape_analyzer.reading.remote_names as remote_names
from calltape_analyzer import Limits, TapeError, open_tape
from calltape_analyzer.reading.remote_file import RemoteFile
from calltape_recorder import record
from tests.analyzer.cli.commands import run
from tests.analyzer.remote.counted import Site, send, served
from tests.analyzer.tapes import write_tape

pytestmark = pytest.mark.integration

CALLS = [((torch.full((2 + n % 7, 3), float(n)),), {}) for n in range(300)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("web") / "a.tape"
    return write_tape(path, CALLS).read_bytes()


def refused(url: str, kind: str = "io") -> str:
    """What is said of a file that cannot be read."""
    with pytest.raises(TapeError) as caught:
        open_tape(url).close()
    assert caught.value.kind == kind, caught.value
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_a_tape_is_read_by_ranges(site: Site, data: bytes) -> None:
    site.files["/x/a.tape"] = data
    with open_tape(f"{site.address}/x/a.tape") as tape:
        assert tape.source == "end"
        tape.infer_dynamic_shapes()
        assert len(site.traffic) <= 3
        assert site.traffic.nbytes < len(data) // 3
        assert [float(call.inputs.args[0][0, 0]) for call in tape] == [float(n) for n in range(300)]
        assert not tape.damage
        assert tape.verify() == []
    assert {one.method for one in site.traffic.asked} == {"GET"}, "signed URLs refuse HEAD"
    assert all(one.range for one in site.traffic.asked)


@pytest.mark.integration
def test_reading_on_is_a_bounded_number_of_requests(site: Site, tmp_path: Any) -> None:
    calls = [((torch.zeros(1024),), {}) for _ in range(600)]  # 3 MiB
    site.files["/a.tape"] = write_tape(tmp_path / "a.tape", calls, sealed=False).read_bytes()
    with open_tape(f"{site.address}/a.tape") as tape:
        assert len(tape) == 600
        assert len(site.traffic) < 12
    assert site.traffic.nbytes < 1.1 * len(site.files["/a.tape"])


def test_large_tensors_are_not_read_for_shapes(site: Site, tmp_path: Any) -> None:
    model = torch.nn.Identity()
    with record(model, tmp_path / "a.tape"):
        for _ in range(5):
            model(torch.zeros(600_000))  # 2.3 MiB
    site.files["/a.tape"] = (tmp_path / "a.tape").read_bytes()
    with open_tape(f"{site.address}/a.tape") as tape:
        assert len(tape) == 5
        assert site.traffic.nbytes < 400_000
        assert tape[4].inputs.args[0].shape == (600_000,)


@pytest.mark.integration
def test_secrets_are_shown_nowhere(site: Site, data: bytes) -> None:
    site.files["/a.tape"] = data[:-3000] + bytes(3000)  # damage, whose text has the path
    url = f"{site.address.replace('//', '//alice:hunter22@')}/a.tape?X-Signature=s3cr3t%2F9"
    shown = f"{site.address}/a.tape?…"
    for command in (
        ("info", "--json"),
        ("variants", "--json"),
        ("ls",),
        ("info", "--quick"),
        ("info",),
    ):
        code, out, err = run(command[0], url, *command[1:])
        assert code in (0, 3), err
        for secret in ("alice", "hunter22", "s3cr3t"):
            assert secret not in out + err
    assert json.loads(run("info", "--json", url)[1])["paths"] == [shown]
    with open_tape(url) as tape:
        assert shown in repr(tape)
        assert tape.segments[0].location == url, "an export in another process opens it again"
        assert tape.paths == (shown,)
        assert tape.damage
        assert all(error.path == shown for error in tape.damage)
    for missing in (f"{url}.not", url.replace("a.tape", "*.nothing")):
        said = str(refused(missing.replace("a.tape?", "b.tape?"), "not_found"))
        assert "hunter22" not in said
        assert "s3cr3t" not in said


def test_a_page_is_a_directory(site: Site, data: bytes) -> None:
    site.files |= {"/d/a.tape": data, "/d/b%20c.tape.gz": gzip.compress(data), "/other.tape": data}
    page = (
        '<a href="a.tape">a</a> <a href="b%20c.tape.gz">b</a> <a href="../other.tape">no</a>'
        '<a href="http://127.0.0.1:9/d/x.tape">no</a> <a href="file:///etc/x.tape">no</a>'
        '<a href="sub/y.tape">no</a> <a href="notes.txt">no</a> <a href="http://[bad/z.tape">'
    )
    site.files["/d/"] = page.encode()
    with open_tape(f"{site.address}/d/") as tape:
        (left_out,) = tape.damage
        assert "a copy of a.tape" in left_out.reason
        assert tape.paths == (f"{site.address}/d/a.tape",)
    with open_tape(f"{site.address}/d/a*") as tape:
        assert len(tape) == 300
    assert "behind the last /" in refused(f"{site.address}/*/a.tape", "usage")
    assert "no file matches" in refused(f"{site.address}/d/q*", "not_found")


def test_a_page_of_a_million_names_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_names, "_MOST_NAMES", 1000)
    site.files["/d/"] = b"".join(b'<a href="%d.tape">' % n for n in range(1100))
    assert "more than 1,000 files" in refused(f"{site.address}/d/", "limit")

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"<a href='x.txt'>" * 65536)

    site.answer["/d/"] = endless
    assert "more than" in refused(f"{site.address}/d/", "limit")


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_compressed(site: Site, data: bytes, form: str) -> None:
    if form == "gz":
        packed = gzip.compress(data)
    else:
        packed = pytest.importorskip("backports.zstd").compress(data)
    site.files[f"/a.tape.{form}"] = packed
    with open_tape(f"{site.address}/a.tape.{form}?t=1") as tape:
        assert len(tape) == 300
        assert not tape.damage
        assert tape.paths == (f"{site.address}/a.tape.{form}?…",)
        assert tape.segments[0].disk_bytes <= 8 * len(packed)
    assert sum(one.nbytes for one in site.traffic.asked) < 1.2 * len(packed) + 70_000
    site.files[f"/a.tape.{form}"] = packed[: len(packed) // 2]
    assert "the compressed file ends too early" in refused(
        f"{site.address}/a.tape.{form}", "damaged"
    )


def test_a_compressed_bomb_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/a.tape.gz"] = gzip.compress(bytes(30_000_000))
    with Limits(nbytes=1_000_000):
        assert "larger than 1,000,000 bytes" in refused(f"{site.address}/a.tape.gz", "limit")


# Servers that lie.


def ranged(change: Callable[[bytes, dict[str, str]], tuple[int, bytes, dict[str, str]]]) -> Any:
    """An answer with other bytes or headers than were asked for."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        start, _, end = handler.headers["Range"].removeprefix("bytes=").partition("-")
        content = handler.site_data[int(start) : int(end) + 1]  # type: ignore[attr-defined]
        total = len(handler.site_data)  # type: ignore[attr-defined]
        head = {"Content-Range": f"bytes {start}-{int(start) + len(content) - 1}/{total}"}
        send(handler, *change(content, head))

    return answer


LIES: dict[str, tuple[Any, str]] = {
    "all of it": (lambda c, h: (200, c * 3, {}), "ignores ranges"),
    "fewer": (lambda c, h: (206, c[:-1], h), "bytes of"),
    "more": (lambda c, h: (206, c + b"x", h), "more than was asked for"),
    "no range": (lambda c, h: (206, c, {}), "status 206"),
    "another range": (lambda c, h: (206, c, {"Content-Range": "bytes 7-8/9"}), "another range"),
    "no total": (lambda c, h: (206, c, {"Content-Range": "bytes 0-8/*"}), "status 206"),
    "compressed": (
        lambda c, h: (206, gzip.compress(c), {**h, "Content-Encoding": "gzip"}),
        "compressed",
    ),
    "refused": (lambda c, h: (403, b"", {}), "refuses access"),
    "broken": (lambda c, h: (500, b"", {}), "status 500"),
    "a redirect to itself": (
        lambda c, h: (302, b"", {"Location": "/a.tape"}),
        "more than 10 times",
    ),
    "a redirect elsewhere": (
        lambda c, h: (302, b"", {"Location": "file:///etc"}),
        "cannot be read",
    ),
}


@pytest.mark.integration
@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_is_refused(
    site: Site, data: bytes, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = LIES[lie]
    monkeypatch.setattr(BaseHTTPRequestHandler, "site_data", data, raising=False)
    site.answer["/a.tape"] = ranged(change)
    assert said in refused(f"{site.address}/a.tape?token=hidden123").replace("hidden123", "LEAK")
    assert len(site.traffic) < 15


@pytest.mark.integration
@pytest.mark.parametrize("status", [302, 308])
@pytest.mark.parametrize("given", ["headers", "client_kwargs", "cookies", "user"])
def test_no_header_and_no_password_goes_to_another_host(
    site: Site, data: bytes, monkeypatch: pytest.MonkeyPatch, status: int, given: str
) -> None:
    """The first host may have been taken over, or may redirect to an open store. A redirect on the
    same host takes them along."""
    options: dict[str, Any] = {
        "headers": {"headers": {"X-Api-Key": "hidden123", "Cookie": "c=hidden123"}},
        "client_kwargs": {"client_kwargs": {"headers": {"X-Api-Key": "hidden123"}}},
        "cookies": {"cookies": {"session": "hidden123"}},
        "user": {},
    }[given]
    HTTPFileSystem.clear_instance_cache()
    monkeypatch.setitem(fsspec.config.conf, "http", options)
    seen: dict[str, list[str]] = {"home": [], "stranger": []}

    def redirects(host: str, to: str) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            seen[host].append(str(handler.headers))
            send(handler, status, b"", {"Location": to})

        return answer

    with served() as other:
        site.answer["/a.tape"] = redirects("home", "/b.tape")
        site.answer["/b.tape"] = redirects("home", f"{other.address}/c.tape")
        other.answer["/c.tape"] = redirects("stranger", f"{other.address}/d.tape?x=%2F")
        other.files["/d.tape"] = data
        serve = other.answer

        def last(handler: BaseHTTPRequestHandler) -> None:
            seen["stranger"].append(str(handler.headers))
            del serve["/d.tape"]
            handler.do_GET()  # type: ignore[attr-defined]
            serve["/d.tape"] = last

        serve["/d.tape"] = last
        where = (
            site.address.replace("://", "://ada:hidden123@") if given == "user" else site.address
        )
        with open_tape(f"{where}/a.tape") as tape:
            assert len(tape.calls)
        assert any("x=%2F" in one.path for one in other.traffic.asked)
    HTTPFileSystem.clear_instance_cache()
    secret = base64.b64encode(b"ada:hidden123").decode() if given == "user" else "hidden123"
    assert len(seen["home"]) >= 2
    assert all(secret in one for one in seen["home"][:2]) or given == "user"
    assert secret in seen["home"][0]
    assert len(seen["stranger"]) >= 2
    for one in seen["stranger"]:
        assert "hidden123" not in one
        assert "Authorization" not in one
        assert "Range: bytes=" in one


def test_a_huge_claim_costs_nothing(site: Site, data: bytes) -> None:
    """A server says that the file has 8 EiB, and sends a tape and zeros."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        start, _, end = handler.headers["Range"].removeprefix("bytes=").partition("-")
        size = int(end) + 1 - int(start)
        found = data[int(start) : int(end) + 1].ljust(size, b"\0")
        head = {"Content-Range": f"bytes {start}-{end}/{2**62}"}
        send(handler, 206, found, head)

    site.answer["/a.tape"] = answer
    file = RemoteFile(f"{site.address}/a.tape")
    try:
        assert file.size == 2**62
        assert file.disk_bytes < 2**20, "what only the server claims is worth nothing"
    finally:
        file.close()


@pytest.mark.parametrize("drips", [False, True])
def test_a_server_that_never_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    """Only the reader's own limit ends it; a byte now and then is no answer either."""
    monkeypatch.setenv("CALLTAPE_REMOTE_SECONDS", "0.3")
    is_over, waited = threading.Event(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 0-65535/70000")
        if drips:
            handler.end_headers()
        for _ in range(600):
            if drips:
                handler.wfile.write(b"x")
            if is_over.wait(0.1):
                return
        waited.set()

    site.answer["/a.tape"] = answer
    assert "within 0.3 s" in refused(f"{site.address}/a.tape")
    is_over.set()
    assert not waited.is_set()


def test_a_limit_that_is_no_number(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLTAPE_REMOTE_SECONDS", "soon")
    assert "no number of seconds" in refused(f"{site.address}/a.tape", "usage")


def test_an_empty_file(site: Site) -> None:
    site.files["/a.tape"] = b""
    assert "empty" in refused(f"{site.address}/a.tape", "not_a_tape")


def test_nobody_listens() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        said = refused(f"http://127.0.0.1:{silent.getsockname()[1]}/a.tape?token=hidden123")
    assert "Connect" in said
    assert "hidden123" not in said


# Files that change.


@pytest.mark.parametrize("etags", [True, False])
def test_a_file_that_changes_is_the_same_error(
    site: Site, data: bytes, tmp_path: Any, etags: bool
) -> None:
    site.etags = etags
    other = write_tape(tmp_path / "b.tape", CALLS[:200]).read_bytes()
    site.files["/a.tape"] = data
    with open_tape(f"{site.address}/a.tape") as tape:
        site.files["/a.tape"] = other
        with pytest.raises(TapeError, match="the file changed since it was opened") as caught:
            list(tape)
        assert caught.value.kind == "damaged"
    with open_tape(f"{site.address}/a.tape") as tape:
        del site.files["/a.tape"]
        with pytest.raises(TapeError, match="the file changed since it was opened"):
            list(tape)


def test_a_file_of_the_same_size_that_changes_is_not_mixed(site: Site, data: bytes) -> None:
    site.files["/a.tape"] = data
    with open_tape(f"{site.address}/a.tape") as tape:
        site.files["/a.tape"] = data[:-1] + b"x"
        with pytest.raises(TapeError, match="the file changed since it was opened"):
            list(tape)


def test_a_network_that_fails_is_no_damage(site: Site, data: bytes) -> None:
    site.files["/a.tape"] = data
    with open_tape(f"{site.address}/a.tape") as tape:
        site.answer["/a.tape"] = lambda handler: send(handler, 503, b"") and None
        with pytest.raises(TapeError, match="status 503") as caught:
            list(tape)
        assert caught.value.kind == "io"
        assert not tape.damage
        del site.answer["/a.tape"]
        assert len(list(tape)) == 300


def test_a_server_that_is_busy_for_a_moment_is_asked_again(site: Site, data: bytes) -> None:
    site.files["/a.tape"] = data

    def busy(handler: Any) -> None:
        del site.answer["/a.tape"]
        send(handler, 503, b"")

    site.answer["/a.tape"] = busy
    with open_tape(f"{site.address}/a.tape") as tape:
        site.answer["/a.tape"] = busy
        assert len(list(tape)) == 300
        assert not tape.damage


@pytest.mark.integration
def test_a_server_that_stays_busy_is_not_asked_for_each_file(site: Site) -> None:
    for n in range(40):
        site.answer[f"/{n}.tape"] = lambda handler: send(handler, 503, b"") and None
        with pytest.raises(TapeError) as caught:
            open_tape(f"{site.address}/{n}.tape")
        assert caught.value.kind == "io"
    assert "failed 2 times: the server is of no use now" in caught.value.reason
    assert "status 503" in caught.value.reason
    assert len(site.traffic) == 2 * 3


def test_a_refusal_is_an_answer(site: Site) -> None:
    for n in range(5):
        site.answer[f"/{n}.tape"] = lambda handler: send(handler, 403, b"") and None
        with pytest.raises(TapeError, match="it refuses access"):
            open_tape(f"{site.address}/{n}.tape")


def test_an_answer_that_is_short_is_no_damage(site: Site, data: bytes) -> None:
    site.files["/a.tape"] = data
    headers = {"ETag": f'"{hash(data)}"'}

    def short(handler: Any) -> None:
        start, end = map(int, handler.headers["Range"].removeprefix("bytes=").split("-"))
        end = min(end + 1, len(data), start + max(len(data) // 7, 2**16))
        told = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}", **headers}
        send(handler, 206, data[start:end], told)

    site.answer["/a.tape"] = short
    with open_tape(f"{site.address}/a.tape") as tape:
        assert len(list(tape)) == 300
        assert not tape.damage


def test_a_scan_fetches_a_file_once(site: Site, tmp_path: Any) -> None:
    model = torch.nn.ReLU()
    with record(model, tmp_path / "x.tape") as recorder:
        for n in range(600):
            model(torch.zeros(n % 5 + 1, 2000))
            recorder.flush()
    whole = (tmp_path / "x.tape").read_bytes()
    data = site.files["/a.tape"] = whole[: len(whole) * 9 // 10]
    site.traffic.clear()
    with open_tape(f"{site.address}/a.tape") as tape:
        assert len(tape) > 400
        assert site.traffic.nbytes <= 1.05 * len(data)
        assert sum(call.inputs[0][0].shape[1] for call in tape) == 2000 * len(tape)
    assert site.traffic.nbytes <= 1.05 * len(data)
    assert len(site.traffic) < 30


def test_one_of_many_that_cannot_be_read_is_damage(site: Site, data: bytes, tmp_path: Any) -> None:
    urls = []
    for n in range(40):
        path = write_tape(tmp_path / "x.tape", CALLS[:3], tape_id=bytes([n]) * 16)
        site.files[f"/{n}.tape"] = path.read_bytes()
        urls.append(f"{site.address}/{n}.tape")
    site.answer["/7.tape"] = lambda handler: send(handler, 503, b"") and None
    with open_tape(urls) as tape:
        assert len(tape) == 39 * 3
        (error,) = tape.damage
        assert error.path == urls[7]
        assert tape.paths == tuple(url for url in urls if url != urls[7])


@pytest.mark.integration
def test_after_a_fork_the_child_reads_for_itself(site: Site, data: bytes) -> None:
    site.files["/a.tape"] = data
    with open_tape(f"{site.address}/a.tape", scan=True) as tape:
        child = os.fork()
        if not child:
            try:
                os._exit(0 if len(list(tape)) == 300 else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(list(tape)) == 300
