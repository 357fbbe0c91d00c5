"""The ``calltape`` command in a process of its own: imports, pipes and terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.core import TyperGroup

from calltape_analyzer.__main__ import main
from calltape_analyzer.interruption import Terminated
from tests.analyzer.cli.commands import COMMAND, process, run, without_torch
from tests.analyzer.tapes import Recorded, write_tape


def test_torch_is_not_imported(tape_file: Path) -> None:
    path = str(tape_file)
    commands = [
        ["info", path],
        ["ls", path],
        ["variants", path],
        ["variants", path, "--python"],
        ["show", path, "0"],
    ]
    assert len(without_torch(commands)) == len(commands)


def test_a_closed_pipe_ends_the_command_silently(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [Recorded(args=("x" * 30,) * 40)] * 500)
    command = [*COMMAND, "ls", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == -signal.SIGPIPE


IMPORTED = """
import os
import time

try:
    os.kill(os.getpid(), {number})
    for _ in range(10):
        time.sleep(0)
except BaseException as error:  # as numpy does
    raise ImportError("numpy is broken") from error


def build_model():
    import torch

    return torch.nn.Identity()
"""


def ended(command: list[str], **options: Any) -> tuple[int, str, str]:
    """How a command ends that signals end as they do at a prompt."""

    def usual() -> None:
        # A shell without a terminal lets what it starts in the background ignore SIGINT, nohup
        # SIGHUP.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=usual, timeout=250, check=False,
        **options,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_while_something_is_imported(
    tape_file: Path, tmp_path: Path, number: int, code: int
) -> None:
    """An import that is interrupted tells of another error, and a module may be half there."""
    (tmp_path / "slow.py").write_text(IMPORTED.format(number=int(number)))
    command = [*COMMAND, "replay", str(tape_file), "--model", "slow:build_model"]
    assert ended(command, cwd=tmp_path) == (code, "", "")


@pytest.mark.parametrize(
    "module",
    [
        "calltape_analyzer.interruption",  # no signal is handled yet
        "calltape_analyzer.cli",
        "typer",
        "calltape_analyzer.cli.verbs",
        "calltape_analyzer.cli.variants",  # once the verb is known
        "calltape_schema.tar",
    ],
)
def test_a_signal_while_the_command_itself_is_imported(tape_file: Path, module: str) -> None:
    """At once before a module is looked for, however fast the machine is."""
    script = f"""if True:
        import os, signal, sys
        from calltape_analyzer.__main__ import main

        class Sends:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    sys.meta_path.remove(self)
                    os.kill(os.getpid(), signal.SIGINT)

        assert {module!r} not in sys.modules
        sys.meta_path.insert(0, Sends())
        sys.exit(main())
    """
    command = [sys.executable, "-c", script, "variants", str(tape_file)]
    assert ended(command) == (130, "", "")


@pytest.mark.integration
@pytest.mark.parametrize("nth", range(1, 8))
def test_a_signal_while_handlers_are_set(tape_file: Path, nth: int) -> None:
    """At once after the n-th is set, or put back at the end."""
    script = f"""if True:
        import os, signal, sys
        from calltape_analyzer.__main__ import main

        set_one, times = signal.signal, []

        def set_and_send(number, handler):
            before = set_one(number, handler)
            times.append(number)
            if len(times) == {nth}:
                print("sent")
                os.kill(os.getpid(), signal.SIGINT)
            return before

        signal.signal = set_and_send
        sys.exit(main())
    """
    command = [sys.executable, "-uc", script, "info", str(tape_file)]
    code, out, err = ended(command)
    assert (code, err) in {(130, ""), (-signal.SIGINT, "")}
    assert "sent" in out


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("words", "beside"),
    [
        (["redact"], ".redact-*/new.tape"),
        (["filter", "--calls", "0..299"], ".out.*"),
        (["merge"], ".out.*"),
        (["bundle"], ".out.*"),
        (["minimise", "--check", "false"], "tmp/calltape-*/whole.tape"),
    ],
)
def test_a_signal_leaves_no_temporary_files(
    tmp_path: Path, words: list[str], beside: str, number: int
) -> None:
    """At the first thing that the command does once there are some."""
    calls = [{"x": torch.ones(n % 7 + 1), "n": n, "text": f"text {n}"} for n in range(300)]
    path = write_tape(tmp_path / "in.tape", calls)
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    script = f"""if True:
        import glob, os, sys
        from calltape_analyzer.__main__ import main

        own, sent = os.getpid(), []

        def look(event, _):
            if sent or os.getpid() != own or event not in ("open", "os.rename", "os.remove"):
                return
            sent.append(0)  # glob is seen here as well
            if glob.glob({beside!r}, root_dir={str(tmp_path)!r}):
                os.kill(own, {int(number)})
            else:
                sent.clear()

        sys.addaudithook(look)
        sys.exit(main())
    """
    command = [sys.executable, "-c", script, words[0], str(path), *words[1:]]
    found = ended([*command, "-o", str(tmp_path / "out")], env=env)
    assert found == (128 + number, "", "")
    left = {one.relative_to(tmp_path).as_posix() for one in tmp_path.rglob("*")}
    assert left == {"in.tape", "tmp"}


def test_an_ascii_terminal_gets_escapes(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [(("漢",), {})])
    result = process("ls", path, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == 0, result.stderr
    assert "\\u6f22" in result.stdout


def test_the_installed_command_runs(tape_file: Path) -> None:
    script = Path(sys.executable).parent / "calltape"
    if not script.exists():
        pytest.skip("the command is not installed here")
    result = subprocess.run(
        [script, "info", tape_file], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_on_a_terminal_tables_fit(tape_file: Path) -> None:
    leader, follower = os.openpty()
    env = {**os.environ, "COLUMNS": "50", "TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, "variants", str(tape_file)], stdout=follower, env=env
    ) as running:
        os.close(follower)
        shown = b""
        while True:
            try:
                data = os.read(leader, 4096)
            except OSError:  # Linux says so when the other end is gone
                break
            if not data:
                break
            shown += data
        assert running.wait() == 0
    os.close(leader)
    assert b"x_dim_0" in shown
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", shown).decode()
    assert max(map(len, plain.splitlines())) <= 50


def test_a_signal_before_a_verb_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typer takes each KeyboardInterrupt for Ctrl-C, and ends with 130."""

    def interrupted(*_: Any, **__: Any) -> Any:
        raise Terminated(signal.SIGTERM)

    monkeypatch.setattr(TyperGroup, "make_context", interrupted)
    assert run("variants", "a.tape") == (143, "", "")


def test_the_command_in_a_thread_sets_no_signal_handlers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread than the main one may handle signals."""
    monkeypatch.setattr(sys, "argv", ["calltape", "--help"])
    codes: list[Any] = []

    def called() -> None:
        try:
            main()
        except SystemExit as end:
            codes.append(end.code)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=called)
    thread.start()
    thread.join()
    assert codes == [0]
    assert "Usage" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == before
