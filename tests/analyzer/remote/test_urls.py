"""What of a URL people may see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, diff, open_tape
from calltape_analyzer.reading.files import files_of
from calltape_analyzer.reading.urls import (
    displayed_url,
    file_url,
    is_url,
    local_path,
    without_secrets,
)
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import write_tape


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3://bucket/a.tape", "s3://bucket/a.tape"),
        ("s3://bucket/a?b#c.tape", "s3://bucket/a?b#c.tape"),
        ("https://h/a.tape?X-Amz-Signature=1234&x=y#z", "https://h/a.tape?…"),
        ("https://user:pass@h:8/a.tape", "https://h:8/a.tape"),
        ("HTTPS://user:p@ss@h/a.tape", "https://h/a.tape"),
        ("sftp://user:pa/ss@h/a.tape", "sftp://h/a.tape"),  # "/" must be written %2F
        ("sftp://h:22/a@b.tape", "sftp://h:22/a@b.tape"),
        ("sftp://user:123456/7@h/a.tape", "sftp://h/a.tape"),  # no port has six digits
        ("https://user:pa?ss@h/a.tape", "https://h/a.tape"),
        ("https://user:pa#s/s@h/a.tape?t=1", "https://h/a.tape?…"),
        ("https://h:80?x=a@b", "https://h:80?…"),
        ("s3://b/a.tape?_sig=1", "s3://b/a.tape?…"),
        ("az://b/a.tape?%73ig=1", "az://b/a.tape?…"),
        ("sftp://[::1]:22/a@b.tape", "sftp://[::1]:22/a@b.tape"),
        ("s3://b/a.tape?X-Amz-Credential=AK/1/us&X-Amz-Signature=1", "s3://b/a.tape?…"),
        ("gs://b/day=1/?/a.tape", "gs://b/day=1/?/a.tape"),
        ("sftp://user:pa%2Fss@h/a@b.tape", "sftp://h/a@b.tape"),
        ("runs/a.tape", "runs/a.tape"),
        ("a?b", "a?b"),
    ],
)
def test_urls_are_shown_without_secrets(given: str, expected: str) -> None:
    assert displayed_url(given) == expected


def test_urls_are_told_from_paths() -> None:
    assert is_url("s3://b/a.tape")
    assert is_url("GS://b")
    for path in ("runs/a.tape", "file:///a.tape", "local:///a", "c:/x", "a://", "/s3://b", ""):
        assert not is_url(path), path
    assert local_path("file:///a b.tape") == "/a b.tape"
    assert local_path("a.tape") == "a.tape"
    assert file_url("https://u@h/a.tape.gz?t=1").endswith(".tape.gz")


def test_messages_of_others_lose_their_secrets() -> None:
    url = "https://alice:hunter22@h/a.tape?token=s%2Fcret&short=1"
    text = (
        f"GET {url} failed: hunter22, alice:hunter22, token=s%2Fcret, s/cret, http://bob:x@i/?k=v"
    )
    found = without_secrets(text, url)
    for secret in ("hunter22", "s%2Fcret", "s/cret", "bob", "k=v"):
        assert secret not in found
    assert "https://h/a.tape" in found


def test_messages_about_a_signed_key_lose_its_signature() -> None:
    url = "s3://b/a.tape?X-Amz-Signature=deadbeef"
    assert "deadbeef" not in without_secrets(f"{url}: no key a.tape?X-Amz-Signature=deadbeef", url)


def test_local_paths_do_not_import_what_urls_need(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.ones(2),), {})])
    code = (
        "import sys; from calltape_analyzer import open_tape\n"
        f"with open_tape({str(path)!r}) as tape: list(tape.calls); tape.variants()\n"
        f"open_tape({str(tmp_path)!r}).close()\n"
        "from calltape_analyzer.cli.verbs import app\n"
        "found = {'fsspec', 's3fs', 'aiohttp', 'yarl', 'botocore'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.ones(2),), {})])
    with open_tape(f"file://{path}") as tape:
        assert tape.paths == (str(path),)
    assert files_of([f"file://{tmp_path}/*.tape", str(path)]) == [str(path)]


def test_without_the_extra_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(TapeError, match=r"analyzer\[remote\]") as caught:
        open_tape("s3://bucket/a.tape")
    assert caught.value.kind == "usage"


@pytest.mark.parametrize("url", ["nothing://a.tape", "simplecache::s3://a", "zip://a.tape::s3://b"])
def test_what_is_no_file_system_is_said(url: str) -> None:
    with pytest.raises(TapeError) as caught:
        open_tape(url)
    assert caught.value.kind in ("usage", "not_found")


def test_a_url_in_place_of_a_tape_is_not_repeated() -> None:
    with pytest.raises(TapeError) as caught:
        diff("https://h/a.tape?token=secret", "b")  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


URL = "https://alice:hunter22@h/runs/a.tape?X-Signature=s3cret"


@pytest.mark.parametrize("url", [URL, URL.replace("https", "HTTP"), "http://h/runs/*.tape"])
@pytest.mark.parametrize("has_extra", [True, False])
def test_a_web_server_is_not_asked(
    url: str, has_extra: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_extra:
        monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(TapeError, match=r"does not read tapes from web servers.*curl") as caught:
        open_tape(url)
    assert caught.value.kind == "usage"
    assert not re.search("alice|hunter22|s3cret", str(caught.value))


@pytest.mark.parametrize(
    "words",
    [("info", URL), ("ls", URL), ("variants", URL), ("survey", URL), ("diff", URL, URL),
     ("view", URL, "--no-browser"), ("view", URL, "-o", "a.html"), ("merge", URL, "-o", "a.tape")],
    ids=" ".join,
)  # fmt: skip
def test_a_command_says_to_download_it(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*words)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "calltape: https://h/runs/a.tape?…: calltape does not read tapes from web servers. "
        "Download the file, for example with `curl -O URL`, and open it from disk.\n"
    )
