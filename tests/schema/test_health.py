"""The health of a directory: each state, and what a directory may hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calltape_schema import health, health_command
from calltape_schema.health import CODES, Health, State, health_of
from calltape_schema.processes import Process, this_process
from calltape_schema.status import Status, encode_status

HERE = this_process()
SECOND = 10**9
NOW = 1_700_000_000 * SECOND
ELSEWHERE = replace(HERE, namespace=1)  # in a container whose processes are not visible
GONE = replace(HERE, started=1)  # its number was given again


def status(process: Process = HERE, *, ago: float = 5, **fields: Any) -> Status:
    """A status that was written some seconds ago, of a recorder that wrote a call just then."""
    beat = NOW - round(ago * SECOND)
    given: dict[str, Any] = {"began_ns": beat - 100 * SECOND, "last_write_ns": beat, **fields}
    return Status("00" * 16, process, given.pop("activity", "recording"), given.pop("began_ns"),
                  beat, target=given.pop("target", "m:Net.forward"), **given)  # fmt: skip


def put(folder: Path, *statuses: Status) -> Health:
    for number, one in enumerate(statuses):
        (folder / f"Net-{number}.00000000.status.json").write_bytes(encode_status(one))
    return health_of(str(folder), now_ns=NOW, here=HERE)


def losing(reason: str, seconds: float, process: Process = HERE) -> Status:
    since = NOW - round(seconds * SECOND)
    return status(process, losing=reason, losing_since_ns=since, last_error="No such luck")


CASES: list[tuple[Status, State, str]] = [
    (status(), "recording", "wrote a call 5 s ago"),
    (status(last_write_ns=None), "recording", "no call yet"),
    (status(ELSEWHERE), "recording", ""),
    (status(activity="paused"), "paused", "only counts"),
    (status(activity="stopped"), "ended", "all that it was asked for"),
    (status(activity="unsealed", last_error="no room"), "stale", "no room"),
    (status(GONE), "stale", "is gone"),
    (status(GONE, activity="paused"), "stale", "is gone"),
    (status(ELSEWHERE, ago=59), "recording", ""),
    (status(ELSEWHERE, ago=61), "stale", "wrote no status for 61 s"),
    (status(ago=61), "stale", "wrote no status for 61 s"),  # it hangs
    (status(ago=-5), "recording", ""),  # another clock
    (status(ago=-3600), "stale", "of the future"),
    (losing("disk_full", 1), "full", "disk_full"),
    (losing("max_disk_bytes", 1), "full", "max_disk_bytes"),
    (losing("io", 59), "recording", "loses calls: io (No such luck)"),
    (losing("io", 61), "stale", "written no call for 61 s, although calls came: io"),
    (losing("queue_full", 3600), "stale", "queue_full"),
    (replace(losing("disk_full", 1), activity="paused"), "paused", ""),
]


@pytest.mark.parametrize(("one", "state", "says"), CASES, ids=lambda value: str(value)[:20])
def test_one_recorder(tmp_path: Path, one: Status, state: State, says: str) -> None:
    found = put(tmp_path, one)
    assert (found.state, found.code) == (state, CODES[state])
    assert says in found.reason
    assert f"process {os.getpid()}" in found.reason


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell states")
def test_a_process_that_a_signal_stopped_does_not_record(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        one = status(replace(HERE, pid=child.pid, started=None))
        try:
            assert put(tmp_path, one).state == "recording"
            os.kill(child.pid, signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            found = put(tmp_path, one)
            assert (found.state, found.code) == ("stale", 12)
            assert "is stopped by a signal" in found.reason
            os.kill(child.pid, signal.SIGCONT)
            os.waitpid(child.pid, os.WCONTINUED)
            assert put(tmp_path, one).state == "recording"
        finally:
            child.kill()


def test_of_several_recorders_the_worst_counts(tmp_path: Path) -> None:
    good, paused, full = status(), status(activity="paused"), losing("disk_full", 1)
    ended = status(activity="stopped")
    assert put(tmp_path, good, ended).state == "recording"
    assert put(tmp_path, good, ended, paused).state == "paused"
    assert put(tmp_path, good, ended, paused, full).state == "full"
    assert put(tmp_path, good, ended, paused, full, status(GONE)).state == "stale"
    (tmp_path / "x.status.json").write_text("{")
    found = health_of(str(tmp_path), now_ns=NOW, here=HERE)
    assert (found.state, len(found.recorders)) == ("unknown", 6)


def test_a_recorder_whose_process_is_gone_may_be_replaced(tmp_path: Path) -> None:
    began = NOW - 3 * SECOND
    dead, later = status(GONE, ago=4), status(began_ns=began)
    found = put(tmp_path, dead, later)
    assert found.state == "recording"
    assert [one.replaced for one in sorted(found.recorders, key=lambda one: one.path)] == [
        True, False,
    ]  # fmt: skip
    # One recorder replaces one, of the same target, which it came after.
    assert put(tmp_path, dead, later, dead).state == "stale"
    assert put(tmp_path, dead, later, dead, later).state == "recording"
    assert put(tmp_path, dead, replace(later, target="m:Other.forward"), later, later).state == (
        "recording"
    )
    for path in tmp_path.iterdir():
        path.unlink()
    assert put(tmp_path, dead, replace(later, target="m:Other.forward")).state == "stale"
    assert put(tmp_path, dead, status(began_ns=NOW - 5 * SECOND)).state == "stale"
    # One that hangs is there, and is not replaced.
    assert put(tmp_path, status(ago=100), later).state == "stale"
    assert put(tmp_path, status(ELSEWHERE, ago=100), later).state == "recording"


def test_a_container_that_died_again_and_again(tmp_path: Path) -> None:
    dead = [status(GONE, ago=1000 - n, began_ns=NOW - (1001 - n) * SECOND) for n in range(900)]
    assert put(tmp_path, *dead).state == "stale"
    found = put(tmp_path, *dead, status(began_ns=NOW - 50 * SECOND))
    assert found.state == "recording"
    assert sum(one.replaced for one in found.recorders) == 900


def test_directories_below_are_looked_into_and_links_are_not(tmp_path: Path) -> None:
    (tmp_path / "tapes" / "pod").mkdir(parents=True)
    (tmp_path / "tapes" / "loop").symlink_to(tmp_path / "tapes")
    put(tmp_path / "tapes" / "pod", status())
    (tmp_path / "elsewhere").mkdir()
    put(tmp_path / "elsewhere", status(GONE))
    (tmp_path / "tapes" / "link").symlink_to(tmp_path / "elsewhere")
    found = health_of(str(tmp_path / "tapes"), now_ns=NOW, here=HERE)
    assert (found.state, len(found.recorders)) == ("recording", 1)


def test_nothing_is_there(tmp_path: Path) -> None:
    assert put(tmp_path).state == "nothing"
    (tmp_path / "a.tape").write_bytes(b"")
    found = put(tmp_path)
    assert (found.state, found.code) == ("nothing", 14)
    assert "tapes there: 1" in found.reason
    assert health_of(str(tmp_path / "missing")).state == "nothing"
    assert health_of(str(tmp_path / "a.tape")).state == "unknown"


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, status())
    real = os.scandir

    def refuses(path: str) -> Any:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuses)
    (tmp_path / "closed").mkdir()
    found = health_of(str(tmp_path), now_ns=NOW, here=HERE)
    assert (found.state, found.code) == ("unknown", 1)
    assert "closed cannot be read: Permission denied" in found.reason
    assert health_of(str(tmp_path / "closed")).state == "unknown"


def test_a_status_that_is_written_in_place_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, status())
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes(3996))
    monkeypatch.setattr(health.time, "sleep", lambda _: path.write_bytes(whole))
    assert health_of(str(tmp_path), now_ns=NOW, here=HERE).state == "recording"


def test_a_late_status_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        f_bavail, f_frsize, f_files, f_favail = 0, 4096, 0, 0

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    assert put(tmp_path, status(ELSEWHERE, ago=5)).state == "recording"
    found = put(tmp_path, status(ELSEWHERE, ago=100))
    assert (found.state, found.code) == ("full", 11)


# --- the command --------------------------------------------------------------------------------


def test_the_command_prints_and_ends_with_the_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health.time, "time_ns", lambda: NOW)
    put(tmp_path, status(activity="paused", target="m:\x1b[31mNet"))
    folder = str(tmp_path)
    assert health_command.main([folder]) == 10
    said = capsys.readouterr().out
    assert said.startswith("paused: process ")
    assert "m:\\x1b[31mNet" in said
    assert health_command.main([folder, "--ok", "paused,ended"]) == 0
    capsys.readouterr()
    assert health_command.main([folder, "--json"]) == 10
    document = json.loads(capsys.readouterr().out)
    assert (document["code"], document["state"]) == (10, "paused")
    assert document["recorders"][0]["status"]["process"]["pid"] == os.getpid()
    put(tmp_path, status(ELSEWHERE, ago=70))
    assert health_command.main([folder]) == 12
    assert health_command.main([folder, "--stale-after", "80"]) == 0


@pytest.mark.parametrize(
    "wrong", [[], ["a", "b"], ["a", "--stale-after", "0"], ["a", "--stale-after", "x"],
              ["a", "--stale-after", "inf"], ["a", "--ok", "fine"]],
)  # fmt: skip
def test_wrong_usage(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        health_command.main(wrong)
    assert caught.value.code == 2
    assert "usage: calltape health" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["calltape_recorder.health", "calltape_analyzer.__main__"])
def test_the_commands_import_nothing_heavy(tmp_path: Path, module: str) -> None:
    arguments = ["health", str(tmp_path)] if "analyzer" in module else [str(tmp_path)]
    program = (
        f"import runpy, sys\nsys.argv[1:] = {arguments!r}\n"
        f"try:\n    runpy.run_module({module!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'pydantic', 'typer', 'rich', 'msgpack'} & set(sys.modules)\n"
        "    print(end.code, sorted(heavy))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["nothing: no recorder is at work here", "14 []"]
