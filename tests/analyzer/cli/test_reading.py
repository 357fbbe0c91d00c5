"""The ``calltape`` command: what it prints, its exit codes, and what it does not import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from calltape_analyzer import open_tape, render
from calltape_analyzer.cli.recordings import size
from calltape_analyzer.observing.signature import signature_text
from tests.analyzer.cli.commands import run
from tests.analyzer.cli.models import Model
from tests.analyzer.tapes import Recorded, write_tape


class Pair(NamedTuple):
    a: Any
    b: Any


def test_info_says_target_coverage_and_checksums(tape_file: Path) -> None:
    code, out, err = run("info", tape_file)
    assert (code, err) == (0, "")
    facts = dict(line.split(None, 1) for line in out.splitlines())
    assert facts["tape"] == str(tape_file)
    assert facts["sealed"] == "yes"
    assert facts["target"].endswith("cli.models:Model.forward (seen by hook)")
    assert facts["signature"] == "(x, mask=None, *, scale=1.0, **extra)"
    assert facts["calls"] == "3 with 1 input signature"
    assert facts["coverage"] == "3 of 5 calls seen were kept; 2 lost: queue full"
    assert facts["producer"].endswith("torch 2.15.0")
    assert facts["checksums"] == "all match"
    assert facts["time"].startswith("2023-11-14T22:13:20.000Z to ")


def test_a_message_is_shown_line_by_line(tmp_path: Path) -> None:
    message = "first\n  second \x1b[31m\n" + "third " * 2000
    call = Recorded((torch.zeros(2),), error=("builtins:ValueError", message))
    out = run("show", write_tape(tmp_path / "a.tape", [call]), 0).out.splitlines()
    at = out.index("outputs raised ValueError")
    assert out[at + 1 : at + 3] == ["  first", "    second \\x1b[31m"]
    assert out[at + 3].startswith("  third third")
    assert out[at + 4] == f"  ({len(message) - 4000} more characters, with --json)"
    assert len(out) == at + 5


def test_info_prints_the_same_facts_as_json(tape_file: Path) -> None:
    code, out, err = run("info", tape_file, "--json", "--quick")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert (facts["calls"], facts["input_signatures"], facts["sealed"]) == (3, 1, True)
    assert facts["bytes"] == tape_file.stat().st_size
    assert facts["coverage"] == {"seen": 5, "kept": 3, "dropped": {"queue full": 2}}
    assert (facts["unwanted"], facts["lost"]) == (0, 2)
    assert (facts["coverage_is_lower_bound"], facts["seen_since"]) == (False, [])
    assert facts["checksums"] == "skipped"
    assert facts["damage"] == []


def test_info_says_that_a_tape_is_unsealed(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.ones(3),), {})] * 2, sealed=False)
    path.write_bytes(path.read_bytes()[:-700])
    code, out, err = run("info", path)
    assert (code, err) == (0, "")
    assert "no: begun 2023-11-14T22:13:20.000Z, still recording, killed, or cut off" in out
    assert "unfinished calls" in out
    assert "1 of at least 1 calls seen were kept" in out


def test_info_counts_no_calls_on_an_empty_tape(tmp_path: Path) -> None:
    code, out, _ = run("info", write_tape(tmp_path / "a.tape", []))
    assert code == 0
    assert "0 with 0 input signatures" in out


def test_ls_prints_a_line_per_call(tape_file: Path) -> None:
    code, out, err = run("ls", tape_file)
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split() == ["call", "at", "s", "ms", "arguments", "->", "outputs"]
    assert lines[1].split(None, 3) == [
        "1", "1.000", "1.500", "(x=float32[3,8], mask=int64[3,5]) -> float32[3,1]"
    ]  # fmt: skip
    assert len(run("ls", tape_file, "--calls", 0).out.splitlines()) == 2


def test_ls_prints_the_same_calls_as_json(tape_file: Path) -> None:
    listed = json.loads(run("ls", tape_file, "--json").out)
    assert [call["call"] for call in listed] == [0, 1, 2]
    assert listed[0]["inputs"] == "(x=float32[2,8], mask=int64[2,5])"
    (one,) = json.loads(run("ls", tape_file, "--json", "--calls", 2).out)
    assert one == listed[2] | {"index": 0}


def test_ls_says_why_a_call_has_no_outputs(tmp_path: Path) -> None:
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
    assert "args.0: int64[3,2] = [[0, 3], [1, 4], [2, 5]] # strides [1, 3]" in lines
    assert "args.1: namedtuple tests.analyzer.cli.test_reading:Pair" in lines
    assert "args.1.a: list" in lines
    assert "args.1.a.1: 'x'" in lines
    assert "args.1.b: None" in lines
    assert "o: object(?) # builtins:object: unknown class" in lines
    assert "r: float32[1] = [1.0] # requires_grad" in lines
    assert "outputs.y: slice(1, 2, None)" in lines


def test_show_json_is_json(tmp_path: Path) -> None:
    given = ((float("nan"), float("-inf"), 1j, b"\xff", {b"k": 1, (1, None): 2}, torch.ones(2)), {})
    path = write_tape(tmp_path / "a.tape", [given], outputs=[None])

    def refuse(text: str) -> None:
        raise ValueError(text)

    document = json.loads(run("show", path, 0, "--json").out, parse_constant=refuse)
    values = document["inputs"]["values"]
    assert [value.get("value") for value in values[:4]] == ["nan", "-inf", [0.0, 1.0], "b'\\xff'"]
    assert (values[5]["shape"], values[5]["elements"]) == ([2], [1.0, 1.0])
    assert [value["name"] for value in values] == [f"args.{at}" for at in range(6)]
    assert [value["kind"] for value in document["outputs"]["values"]] == ["none"]


def test_show_of_no_such_call(tape_file: Path) -> None:
    code, out, err = run("show", tape_file, 7)
    assert (code, out) == (2, "")
    assert err == "calltape: no call 7 on this tape. `calltape ls` shows which there are.\n"


def test_printed_python_has_any_keys_in_ascii(tmp_path: Path) -> None:
    keys = ["\U0001f600", '"\n\u202e', "a'b", b"\xff'", float("inf"), -1, (1, "b")]
    calls = [((), {"x": {key: torch.zeros(2 + n) for key in keys}}) for n in range(2)]
    path = write_tape(tmp_path / "a.tape", calls, target=Model())
    out = run("variants", path, "--python").out
    assert out.isascii()
    assert all(line.isprintable() for line in out.splitlines())
    scope: dict[str, Any] = {}
    exec(out, scope)
    assert set(scope["dynamic_shapes"]["x"]) == set(keys)


def test_python_runs_and_equals_the_api(tmp_path: Path) -> None:
    calls = [
        {
            "x": torch.zeros(2 + i, 3),
            "mask": [torch.ones(4, i + 1), {"k": torch.ones(i)}],
            "p": Pair(torch.ones(i), torch.ones(2)),
        }
        for i in range(1, 4)
    ]
    path = write_tape(tmp_path / "a.tape", calls, target=Model())
    source = run("variants", path, "--python", "--classes", f"{__name__}:Pair").out
    assert "from torch.export import Dim" in source
    assert f"from {__name__} import Pair" in source
    scope: dict[str, Any] = {}
    exec(source, scope)
    with open_tape(path, classes=(Pair,)) as tape:
        (variant,) = tape.variants()
        assert scope["dynamic_shapes"] == variant.infer_dynamic_shapes()
        args, kwargs = variant.infer_arguments()
    assert render((scope["args"], scope["kwargs"])) == render((args, kwargs))
    assert type(scope["kwargs"]["p"]) is Pair


def test_python_of_hostile_names(tmp_path: Path) -> None:
    evil = type("P", (Pair,), {"__module__": "os;x", "__qualname__": "system('id')"})
    calls = [
        {
            'q"]; print(1)\n': torch.ones(i + 2),
            "p": evil(torch.ones(i + 2), torch.ones(2)),
            "d": {"\x1b": torch.ones(i + 2)},
        }
        for i in range(2)
    ]
    path = write_tape(tmp_path / "a.tape", calls)
    source = run("variants", path, "--python").out
    assert all(line.isprintable() and line.isascii() for line in source.splitlines())
    assert [line for line in source.splitlines() if "import" in line] == [
        "from calltape_analyzer import open_tape", "from torch.export import Dim"
    ]  # fmt: skip
    scope: dict[str, Any] = {}
    exec(source.partition("with open_tape")[0], scope)  # the arguments are of an unknown class
    axis = {0: torch.export.Dim.AUTO}
    assert scope["dynamic_shapes"]["kwargs"] == {
        'q"]; print(1)\n': axis, "p": (axis, {}), "d": {"\x1b": axis}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**40 * 3, "3.0 TiB")]
)
def test_sizes_are_printed_in_binary_units(count: int, text: str) -> None:
    assert size(count) == text


def test_a_signature_is_printed_as_python_writes_it() -> None:
    from tests.analyzer.tapes import target_of

    def f(a, b=1, /, c="x", *args, d, e=None, **kw): ...  # type: ignore[no-untyped-def]

    assert signature_text(target_of(f)) == "(a, b=1, /, c='x', *args, d, e=None, **kw)"
    assert signature_text(target_of(lambda a, /: a)) == "(a, /)"
    assert signature_text(target_of(lambda: 0)) == "()"
    assert signature_text(None) is None
