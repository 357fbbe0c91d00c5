"""The server of ``calltape view``: the page, ranges of the tapes, and nothing for anybody else."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from calltape_analyzer.cli import viewing
from calltape_analyzer.cli.viewing import PageServer, page_of_viewer, variants_json
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_schema.errors import TapeError
from tests.analyzer.cli.commands import COMMAND, run
from tests.fixture_files import FIXTURES

TAPE = FIXTURES / "v1" / "calls.tape"
BYTES = TAPE.read_bytes()


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with closing(TapeFile(str(TAPE))) as file, PageServer(page_of_viewer(), [file]) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(
    server: PageServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()


def test_the_page_comes_with_its_policy(server: PageServer) -> None:
    answer, body = asked(server, server.root)
    assert answer.status == 200
    assert body == page_of_viewer()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.endswith("frame-ancestors 'none'")
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "python" not in answer.headers["Server"].lower()


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(ZeroDivisionError, True), (BrokenPipeError, False), (TimeoutError, False)],
)
def test_only_a_browser_that_goes_away_is_no_error(
    server: PageServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    error: type[Exception], is_told: bool,
) -> None:  # fmt: skip
    def fails(path: str) -> bytes:
        raise error

    monkeypatch.setattr(viewing, "variants_json", fails)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        asked(server, f"{server.root}variants/0")
    err = capsys.readouterr().err
    assert (error.__name__ in err) is is_told
    assert server.root not in err


def test_the_list_has_names_without_folders(server: PageServer) -> None:
    answer, body = asked(server, f"{server.root}tapes.json")
    assert answer.status == 200
    assert json.loads(body) == [
        {
            "name": "calls.tape",
            "size": len(BYTES),
            "url": f"{server.root}tapes/0",
            "variants": f"{server.root}variants/0",
        }
    ]


def test_the_variants_are_those_of_the_command(server: PageServer) -> None:
    answer, body = asked(server, f"{server.root}variants/0")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    printed = run("variants", TAPE).out
    found = json.loads(body)["variants"]
    assert found
    for one in found:
        assert f"{one['name']}: {one['calls']}\n" in printed
        for table in one["tables"]:
            for row in (table["head"], *table["rows"]):
                assert re.search(r" +".join(map(re.escape, filter(None, row))), printed), row
        for title, text in one["notes"]:
            assert f"{title}: {text}\n" in printed


def test_of_a_tape_that_python_cannot_read_the_page_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.tape").write_bytes(b"not a tape <script>")
    text = variants_json(str(tmp_path / "a.tape")).decode("ascii")
    assert "does not start with the manifest of a tape" in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("first", "last"), [(0, 0), (0, 511), (100, 8000), (len(BYTES) - 1, 10**9)]
)
def test_a_range_of_a_tape_is_served(server: PageServer, first: int, last: int) -> None:
    answer, body = asked(server, f"{server.root}tapes/0", Range=f"bytes={first}-{last}")
    assert answer.status == 206
    assert body == BYTES[first : last + 1]
    end = min(last, len(BYTES) - 1)
    assert answer.headers["Content-Range"] == f"bytes {first}-{end}/{len(BYTES)}"


def test_the_whole_tape_is_served(server: PageServer) -> None:
    answer, body = asked(server, f"{server.root}tapes/0")
    assert (answer.status, body) == (200, BYTES)
    answer, body = asked(server, f"{server.root}tapes/0", method="HEAD")
    assert (answer.status, body) == (200, b"")
    assert answer.headers["Content-Length"] == str(len(BYTES))


@pytest.mark.parametrize(
    "asked_for",
    ["bytes=9-3", "bytes=-5", "bytes=5-", "bytes=0-1,5-6", "lines=0-1",
     "bytes=999999999-9999999999", "bytes=" + "9" * 400 + "-", "bytes=٣-٤"],
)  # fmt: skip
def test_wrong_ranges_are_rejected(server: PageServer, asked_for: str) -> None:
    header = asked_for.encode("utf-8").decode("latin-1")
    answer, body = asked(server, f"{server.root}tapes/0", Range=header)
    assert (answer.status, body) == (416, b"")


@pytest.mark.parametrize(
    "path",
    ["/", "/view/", "/favicon.ico", "{root}x", "{root}tapes/1", "{root}tapes/-1", "{short}",
     "{root}variants/1", "{root}variants/",
     "{root}../../etc/passwd", "{root}tapes/0/../../../etc/passwd", "{root}tapes/%2e%2e",
     "{root}tapes/0x0"],
)  # fmt: skip
def test_nothing_else_is_there(server: PageServer, path: str) -> None:
    short = server.root.replace("/view/", "")[:-1] + "/view/"
    answer, body = asked(server, path.format(root=server.root, short=short))
    assert (answer.status, body) == (404, b"")


@pytest.mark.parametrize("host", ["evil.example", "localhost", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_gets_nothing(server: PageServer, host: str) -> None:
    """A name of a stranger that leads to 127.0.0.1 is not ours."""
    answer, body = asked(server, server.root, Host=host)
    assert (answer.status, body) == (421, b"")


def test_two_hosts_get_nothing(server: PageServer) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port)) as connection:
        connection.putrequest("GET", server.root, skip_host=True)
        connection.putheader("Host", server.host)
        connection.putheader("Host", "evil.example")
        connection.endheaders()
        assert connection.getresponse().status == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_is_taken(server: PageServer, method: str) -> None:
    answer, _ = asked(server, server.root, method=method)
    assert answer.status == 501


def test_it_listens_on_loopback_alone_with_another_token_each_time() -> None:
    with PageServer(b"", []) as one, PageServer(b"", []) as other:
        assert one.server_address[0] == other.server_address[0] == "127.0.0.1"
        assert one.root != other.root
        assert len(one.root) > 32
        with pytest.raises(TapeError, match="cannot listen"):
            PageServer(b"", [], one.server_port)


def test_a_tape_that_changed_is_not_mixed_with_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "short.tape"
    path.write_bytes(BYTES)
    with closing(TapeFile(str(path))) as file, PageServer(page_of_viewer(), [file]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path.write_bytes(BYTES[:100])
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            asked(server, f"{server.root}tapes/0", Range="bytes=0-5000")
        server.shutdown()


@pytest.mark.integration
def test_the_command_serves_until_it_is_interrupted() -> None:
    command = [*COMMAND, "view", str(TAPE), "--no-browser"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job may ignore it
    ) as process:  # fmt: skip
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:4] == ["viewing", "1", "tape", "at"]
        host, _, path = words[4].removeprefix("http://").partition("/")
        with closing(http.client.HTTPConnection(host)) as connection:
            connection.request("GET", f"/{path}tapes.json")
            assert b"calls.tape" in connection.getresponse().read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
