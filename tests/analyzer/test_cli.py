"""The ``calltape`` command: what it prints, its exit codes, and what it does not import."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from typer.testing import CliRunner

from calltape_analyzer import open_tape
from calltape_analyzer.cli import app
from calltape_analyzer.cli.info import signature
from calltape_analyzer.cli.recording import size
from tests.analyzer.tapes import Recorded, write_tape
from tests.analyzer.test_tape import flip, member_list

COMMAND = [sys.executable, "-m", "calltape_analyzer.cli"]


class Pair(NamedTuple):
    a: Any
    b: Any


class Model(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None, *, scale: float = 1.0, **extra: Any) -> Any:
        return x


@pytest.fixture
def tape_file(tmp_path: Path) -> Path:
    calls = [
        ((torch.zeros(2 + i, 8),), {"mask": torch.ones(2 + i, 5, dtype=torch.int64)})
        for i in range(3)
    ]
    return write_tape(
        tmp_path / "a.tape",
        calls,
        target=Model(),
        outputs=[torch.zeros(2 + i, 1) for i in range(3)],
        dropped={"queue full": 2},
        producer={"torch": "2.15.0"},
    )


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: Any) -> Ran:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def test_info(tape_file: Path) -> None:
    code, out, err = run("info", tape_file)
    assert (code, err) == (0, "")
    facts = dict(line.split(None, 1) for line in out.splitlines())
    assert facts["tape"] == str(tape_file)
    assert facts["sealed"] == "yes"
    assert facts["target"].endswith("test_cli:Model.forward (seen by hook)")
    assert facts["signature"] == "(x, mask=None, *, scale=1.0, **extra)"
    assert facts["calls"] == "3 in 1 structure"
    assert facts["coverage"] == "3 of 5 calls seen were kept; 2 lost: queue full"
    assert facts["producer"].endswith("torch 2.15.0")
    assert facts["checksums"] == "all hold"
    assert facts["time"].startswith("2023-11-14T22:13:20.000Z to ")


def test_info_json(tape_file: Path) -> None:
    code, out, err = run("info", tape_file, "--json", "--quick")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert (facts["calls"], facts["structures"], facts["sealed"]) == (3, 1, True)
    assert facts["bytes"] == tape_file.stat().st_size
    assert facts["coverage"] == {
        "seen": 5, "kept": 3, "dropped": {"queue full": 2}, "unwanted": 0, "lost": 2,
        "is_lower_bound": False, "since": [],
    }  # fmt: skip
    assert facts["checksums"] == "skipped"
    assert facts["damage"] == []


def test_info_of_an_unsealed_tape(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.ones(3),), {})] * 2, sealed=False)
    path.write_bytes(path.read_bytes()[:-700])
    code, out, err = run("info", path)
    assert (code, err) == (0, "")
    assert "no: still recording, killed, or cut off" in out
    assert "unfinished call" in out


def test_info_of_an_empty_tape(tmp_path: Path) -> None:
    code, out, _ = run("info", write_tape(tmp_path / "a.tape", []))
    assert code == 0
    assert "0 in 0 structures" in out


def test_ls(tape_file: Path) -> None:
    code, out, err = run("ls", tape_file)
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split() == ["call", "at", "s", "ms", "arguments", "->", "outputs"]
    assert lines[1].split(None, 3) == [
        "1", "1.000", "1.500", "(float32[3,8], mask=int64[3,5]) -> float32[3,1]"
    ]  # fmt: skip
    assert len(run("ls", tape_file, "--limit", 1).out.splitlines()) == 2


def test_ls_json(tape_file: Path) -> None:
    listed = json.loads(run("ls", tape_file, "--json").out)
    assert [call["call"] for call in listed] == [0, 1, 2]
    assert listed[0]["inputs"] == "(float32[2,8], mask=int64[2,5])"
    assert json.loads(run("ls", tape_file, "--json", "-n", 0).out) == []


def test_ls_of_calls_without_outputs(tmp_path: Path) -> None:
    path = write_tape(
        tmp_path / "a.tape",
        [
            Recorded(error=("builtins:ValueError", "bad\nsecond line")),
            Recorded(outputs_missing="not asked for"),
            Recorded(duration_ns=None),
        ],
    )
    lines = run("ls", path).out.splitlines()[1:]
    assert lines[0].endswith("() -> raised ValueError: bad")
    assert lines[1].endswith("() -> not recorded (not asked for)")
    assert lines[2].endswith("() -> not recorded")


def test_show(tmp_path: Path) -> None:
    tied = torch.arange(6).reshape(2, 3)
    given = (
        (tied.t(), Pair([1, "x"], None)),
        {"o": object(), "r": torch.ones(1, requires_grad=True)},
    )
    path = write_tape(tmp_path / "a.tape", [given], outputs=[{"y": slice(1, 2)}], values="all")
    code, out, err = run("show", path, 0)
    assert (code, err) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0].startswith(f"call 0 of {path}, took 1.500 ms")
    assert "0: int64[3,2] # 0..5, strides [1, 3]" in lines
    assert "1: namedtuple tests.analyzer.test_cli:Pair" in lines
    assert "a: list" in lines
    assert "1: 'x'" in lines
    assert "b: None" in lines
    assert "o: object(?) # builtins:object: unknown class" in lines
    assert "r: float32[1] # requires_grad" in lines
    assert "y: slice(1, 2, None)" in lines


def test_show_json_is_json(tmp_path: Path) -> None:
    given = ((float("nan"), float("-inf"), 1j, b"\xff", {b"k": 1, (1, None): 2}, torch.ones(2)), {})
    path = write_tape(tmp_path / "a.tape", [given], outputs=[None])

    def refuse(text: str) -> None:
        raise ValueError(text)

    document = json.loads(run("show", path, 0, "--json").out, parse_constant=refuse)
    values = document["inputs"]["root"]["children"][0]["children"]
    assert [value.get("value") for value in values[:4]] == ["nan", "-inf", [0.0, 1.0], "b'\\xff'"]
    assert values[5]["shape"] == [2]
    assert document["outputs"]["root"]["kind"] == "none"


def test_show_of_no_such_call(tape_file: Path) -> None:
    code, out, err = run("show", tape_file, 7)
    assert (code, out) == (1, "")
    assert err == "calltape: no call 7 on this tape. `calltape ls` shows which there are.\n"


def test_shapes(tape_file: Path) -> None:
    code, out, err = run("shapes", tape_file)
    assert (code, err) == (0, "")
    head, *rows = (line.split() for line in out.splitlines())
    assert head[:4] == ["argument", "dtype", "shape", "calls"]
    assert " ".join(rows[0]) == "x float32 [dynamic, 8] 3/3 0: 2, 3, 4"
    assert " ".join(rows[1]) == "mask int64 [dynamic, 5] 3/3 0: 2, 3, 4"


def test_shapes_with_names_and_batch(tmp_path: Path) -> None:
    calls = [((torch.zeros(2, 4 + i),), {}) for i in range(9)]
    path = write_tape(tmp_path / "a.tape", calls, target=Model())
    assert "[2, dynamic]" in run("shapes", path).out
    out = run("shapes", path, "--batch", "all", "--names").out
    assert "0: 2 (declared); 1: 4..12 (9 sizes)" in out
    assert "dynamic" not in out
    assert "(declared)" in run("shapes", path, "--batch", "x").out


def test_shapes_python_of_any_keys(tmp_path: Path) -> None:
    keys = ["\U0001f600", '"\n\u202e', "a'b", b"\xff'", float("inf"), -1, (1, "b")]
    calls = [((), {"x": {key: torch.zeros(2 + n) for key in keys}}) for n in range(2)]
    path = write_tape(tmp_path / "a.tape", calls, target=Model())
    out = run("shapes", path, "--python").out
    assert out.isascii()
    assert all(line.isprintable() for line in out.splitlines())
    scope: dict[str, Any] = {}
    exec(out, scope)
    assert set(scope["dynamic_shapes"]["x"]) == set(keys)


def test_shapes_json(tape_file: Path) -> None:
    found = json.loads(run("shapes", tape_file, "--json").out)
    assert found["dynamic_shapes"] == {"x": {"0": None}, "mask": {"0": None}}
    assert found["calls"] == 3


def test_shapes_python_runs_and_equals_the_api(tmp_path: Path) -> None:
    calls = [
        {
            "x": torch.zeros(2 + i, 3),
            "mask": [torch.ones(4, i + 1), {"k": torch.ones(i)}],
            "p": Pair(torch.ones(i), torch.ones(2)),
        }
        for i in range(1, 4)
    ]
    path = write_tape(tmp_path / "a.tape", calls, target=Model())
    for options in ((), ("--names",), ("--batch", "all")):
        source = run("shapes", path, "--python", *options).out
        scope: dict[str, Any] = {}
        exec(source, scope)
        with open_tape(path, classes=(Pair,)) as tape:
            expected = tape.infer_dynamic_shapes(
                dim_names=True if "--names" in options else None,
                set_batch_dimension_for=True if "--batch" in options else None,
            )
        assert scope["dynamic_shapes"] == expected
        assert ("from torch.export import Dim" in source) == ("--names" not in options)


def test_python_of_hostile_names(tmp_path: Path) -> None:
    evil = type("P", (Pair,), {"__module__": "os;x", "__qualname__": "system('id')"})
    calls = [
        {
            'q"]; print(1)\n': torch.ones(i + 1),
            "p": evil(torch.ones(i + 1), torch.ones(2)),
            "d": {"\x1b": torch.ones(i + 1)},
        }
        for i in range(2)
    ]
    path = write_tape(tmp_path / "a.tape", calls)
    source = run("shapes", path, "--python").out
    assert all(line.isprintable() and line.isascii() for line in source.splitlines())
    assert [line for line in source.splitlines() if "import" in line] == [
        "from torch.export import Dim"
    ]
    scope: dict[str, Any] = {}
    exec(source, scope)
    axis = {0: torch.export.Dim.DYNAMIC}
    assert scope["dynamic_shapes"]["kwargs"] == {
        'q"]; print(1)\n': axis, "p": (axis, {}), "d": {"\x1b": axis}
    }  # fmt: skip


def test_args(tape_file: Path) -> None:
    code, out, err = run("args", tape_file)
    assert (code, err) == (0, "")
    assert "float32[" in out
    found = json.loads(run("args", tape_file, "--call", 1, "--json").out)
    shapes = [value["shape"] for value in (*found["args"], *found["kwargs"].values())]
    assert shapes == [[3, 8], [3, 5]]


# Exit codes and messages.


def test_damage_is_told_and_is_exit_code_3(tape_file: Path) -> None:
    blob, record = member_list(tape_file)[1], member_list(tape_file)[4]
    flip(tape_file, record.start + 30)
    code, out, err = run("ls", tape_file)
    assert code == 3
    assert len(out.splitlines()) == 3
    assert err.count("\n") == 1
    assert "calls/00000001.msgpack at byte" in err
    flip(tape_file, blob.start + blob.size - 1)
    code, out, err = run("info", tape_file)
    assert code == 3
    assert "2 damaged places" in out
    assert err.count("\n") == 2
    code, out, err = run("info", tape_file, "--json")
    assert code == 3
    assert [error["offset"] for error in json.loads(out)["damage"]] == [record.offset, blob.offset]
    assert run("info", tape_file, "--quick").err.count("\n") == 1
    assert run("shapes", tape_file).code == 3


@pytest.mark.parametrize("verb", ["info", "ls", "shapes", "args"])
def test_what_cannot_be_read_is_one_line_and_exit_code_1(tmp_path: Path, verb: str) -> None:
    for make in (lambda path: None, lambda path: path.write_bytes(b"")):
        path = tmp_path / "a.tape"
        make(path)
        code, out, err = run(verb, path)
        assert (code, out) == (1, "")
        assert err.startswith("calltape: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [("ls",), ("no-such-verb",), ("ls", "x", "--no-such-option"), ("show", "x", "one"),
     ("show", "x", "--", "-1"), ("shapes", "x", "--python", "--json"), ("ls", "x", "-n", "-1")],
)  # fmt: skip
def test_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def test_inference_that_has_no_answer(tmp_path: Path) -> None:
    code, out, err = run("shapes", write_tape(tmp_path / "a.tape", []))
    assert (code, out) == (1, "")
    assert err.startswith("calltape: No inputs were captured")


def test_unexpected_errors_are_one_line(tape_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("bug\nhere")

    monkeypatch.setattr("calltape_analyzer.tape.Tape.find", fail)
    code, out, err = run("show", tape_file, 0)
    assert (code, out) == (1, "")
    assert err.startswith("calltape: unexpected ZeroDivisionError: bug here.")
    monkeypatch.setenv("CALLTAPE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run("show", tape_file, 0)


def test_interrupt(tape_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("calltape_analyzer.tape.Tape.find", interrupted)
    assert run("show", tape_file, 0) == (130, "", "")


def test_help_shows_examples_for_every_verb() -> None:
    top = run("--help")
    assert top.code == 0
    assert "Exit codes: 0 clean, 1 failure, 2 usage, 3 readable but damaged." in top.out
    for verb in ("info", "ls", "show", "shapes", "args"):
        assert f"  {verb} " in top.out
        text = run(verb, "--help").out
        assert f"  calltape {verb} runs/" in text
        assert "--json" in text


def test_version() -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.split()[0] == "calltape"


def test_hostile_text_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    text = "\x1b]0;owned\x07\x1b[2J[bold red]\u202e"
    given = Recorded(
        args=(text, {text: [text]}),
        kwargs={text: torch.ones(2)},
        error=("builtins:ValueError", text),
    )
    calls = [given, Recorded(args=given.args, kwargs={text: torch.ones(3)}, outputs=text)]
    path = write_tape(tmp_path / "a.tape", calls, producer={"platform": text}, dropped={text: 1})
    for arguments in (("info",), ("ls",), ("shapes",), ("show", 0), ("show", 1), ("args",)):
        for option in ((), ("--json",)):
            _, out, err = run(arguments[0], path, *arguments[1:], *option)
            for line in (*out.split("\n"), *err.split("\n")):
                assert line.isprintable(), (arguments, line)
            if not option and arguments[0] != "args":
                assert "[bold red]" in out


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40 * 3, "3.0 TiB")]
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


def test_signature() -> None:
    from tests.analyzer.tapes import target_of

    def f(a, b=1, /, c="x", *args, d, e=None, **kw): ...  # type: ignore[no-untyped-def]

    assert signature(target_of(f)) == "(a, b=1, /, c='x', *args, d, e=None, **kw)"
    assert signature(target_of(lambda a, /: a)) == "(a, /)"
    assert signature(target_of(lambda: 0)) == "()"
    assert signature(None) is None


# In processes of their own.


def process(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.mark.parametrize(
    "arguments", [("info",), ("ls",), ("shapes", "--names"), ("shapes", "--python"), ("show", 0)]
)
def test_torch_is_not_imported(tape_file: Path, arguments: tuple[Any, ...]) -> None:
    given = [arguments[0], str(tape_file), *map(str, arguments[1:])]
    program = (
        "import sys\n"
        "from calltape_analyzer.cli import app\n"
        f"try: app({given!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'transformers', 'onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_a_pipe_that_closes(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [Recorded(args=("x" * 30,) * 40)] * 500)
    command = [*COMMAND, "ls", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == -signal.SIGPIPE


def test_an_ascii_terminal(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [(("漢",), {})])
    result = process("ls", path, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == 0, result.stderr
    assert "\\u6f22" in result.stdout


def test_the_installed_command(tape_file: Path) -> None:
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
        [*COMMAND, "shapes", str(tape_file)], stdout=follower, env=env
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
    assert b"dynamic" in shown
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", shown).decode()
    assert max(map(len, plain.splitlines())) <= 50
