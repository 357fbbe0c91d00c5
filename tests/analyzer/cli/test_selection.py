"""Parts of tapes at the prompt: --calls, --variant and --ignore, several files, and addresses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import diff, open_tape, render
from calltape_analyzer.cli.verbs import VERBS
from tests.analyzer.cli.commands import run, script_of
from tests.analyzer.cli.models import MODULE
from tests.analyzer.tapes import Recorded, write_tape

A, B = bytes.fromhex("3f9a01bc" * 4), bytes.fromhex("77000000" * 4)
CALLS = ["ls", "variants", "export", "replay", "filter", "bundle", "convert"]
IGNORING = ["variants", "export", "replay"]


class Model(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None, past: Any = None) -> Any:
        return x


def written(path: Path, first: int = 2, tape_id: bytes = A) -> Path:
    calls: list[Any] = [((torch.zeros(first + i, 4),), {}) for i in range(3)]
    calls += [
        {"x": torch.zeros(2, 4), "mask": torch.ones(2, 5 + i), "past": [torch.ones(i + 2)] * 2}
        for i in range(2)
    ]
    return write_tape(path, calls, target=Model(), tape_id=tape_id)


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    return written(tmp_path / "a.tape")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    written(tmp_path / "a.tape")
    written(tmp_path / "b.tape", 7, B)
    return tmp_path


def test_the_options_for_a_part_are_those_of_the_verbs_that_take_one() -> None:
    for verb in VERBS:
        text = " ".join(run(verb.name, "--help").out.split())
        has = {option: option in text for option in ("--calls CALLS", "--variant", "--ignore")}
        takes = verb.name in CALLS
        assert has["--calls CALLS"] is takes, verb.name
        assert has["--variant"] is (takes or verb.name == "explain"), verb.name
        assert has["--ignore"] is (verb.name in IGNORING), verb.name


def test_calls_selects_by_number(tape: Path) -> None:
    assert len(run("ls", tape, "--calls", "0,3..4").out.splitlines()) == 4
    assert "2..3 (2 sizes)" in run("variants", tape, "--calls", "0..1").out
    code, out, err = run("ls", tape, "--calls", "9")
    assert (code, out) == (2, "")
    assert "no call 9 on this tape" in err
    assert run("ls", tape, "--calls", "0-9").code == 2


def test_a_variant_is_selected_by_name_or_number(tape: Path) -> None:
    with open_tape(tape) as opened:
        names = [variant.name for variant in opened.variants()]
    for which in (names[1], "1"):
        (found,) = json.loads(run("variants", tape, "--variant", which, "--json").out)
        assert found["name"] == names[1]
    assert len(run("ls", tape, "--variant", 0).out.splitlines()) == 4
    out = run("explain", tape, "x", 0, "--variant", 1).out
    assert f"in {names[1]}" in out
    assert f"in {names[0]} (" not in out
    code, _, err = run("ls", tape, "--variant", "none")
    assert code == 2
    assert "there is no variant 'none'" in err


def test_ignore_drops_arguments_and_rejects_unknown_names(tape: Path) -> None:
    out = run("variants", tape, "--ignore", "mask", "--ignore", "past").out
    assert "mask" not in out
    assert "float32" in out
    code, _, err = run("variants", tape, "--ignore", "masc")
    assert code == 2
    assert "no call passes masc" in err


def test_directory_pattern_and_list_of_files_are_one_tape(directory: Path) -> None:
    files = [directory / "a.tape", directory / "b.tape"]
    pattern = str(directory / "*.tape")
    for given in ([directory], [pattern], files):
        assert len(run("ls", *given).out.splitlines()) == 11
        assert "77000000:0" in run("show", *given, "77000000:0").out
        assert "9 values" not in run("explain", *given, "x", 0).out
        assert "6 values" in run("explain", *given, "x", 0).out
        assert run("explain", *given, "x", 0).out == run("explain", directory, "x", 0).out


def test_diff_splits_several_files_before_the_last(directory: Path, tmp_path: Path) -> None:
    a, b = directory / "a.tape", directory / "b.tape"
    code, out, _ = run("diff", a, a, b, "--json")
    with open_tape(a) as one, open_tape(b) as other:
        assert json.loads(out) == json.loads(diff(one, other).model_dump_json())
    assert code == 4
    assert run("diff", a, b, directory).code == 0


def test_replay_takes_several_tapes_and_one_program(directory: Path, folder: Path) -> None:
    files = [directory / "a.tape", directory / "b.tape"]
    code, out, err = run("replay", *files, "absent.onnx")
    assert (code, out, err) == (1, "", "calltape: absent.onnx: no such file. Check the path.\n")
    assert run("replay", *files, "absent.onnx", "--model", f"{MODULE}:made").code == 2
    assert run("replay", files[0]).code == 2


def test_an_address_that_is_printed_is_taken(directory: Path) -> None:
    lines = run("ls", directory).out.splitlines()[1:]
    addresses = [line.split()[0] for line in lines]
    assert len(set(addresses)) == 10
    for address in addresses:
        assert f"call {address} of " in run("show", directory, address).out
        assert len(run("ls", directory, "--calls", address).out.splitlines()) == 2
    listed = json.loads(run("ls", directory, "--json").out)
    assert [call["address"] for call in listed] == addresses
    assert run("show", directory, 0).code == 2


def test_every_command_prints_addresses(directory: Path) -> None:
    form = re.compile(r"\b(?:3f9a01bc|77000000):\d+\b")
    with open_tape(directory) as tape:
        known = {call.address for call in tape.calls}
    a, b = directory / "a.tape", directory / "b.tape"
    wide = directory / "wide"
    wide.mkdir()
    for path in (a, b):
        (wide / path.name).write_bytes(path.read_bytes())
    printed = [
        run("variants", wide).out, run("explain", wide, "x").out,
        run("diff", a, wide).out,
    ]  # fmt: skip
    for out in printed:
        found = set(form.findall(out))
        assert found
        assert found <= known
        assert not re.search(r"call \d+\b(?!:)", out), out


def test_a_path_that_is_printed_is_taken(tape: Path) -> None:
    out = run("variants", tape).out
    assert "past.* (2 of them)" in out
    code, out, err = run("explain", tape, "past.*", 0)
    assert (code, err) == (0, "")
    assert "past.* (2 of them)" in out
    assert run("explain", tape, "past.*[0]").out == out
    shown = run("variants", tape, "--variant", 1).out
    names = set(re.findall(r"^(\w[\w.*]*) ", shown, re.M)) - {"argument", "symbol", "warning"}
    assert {"x", "mask", "past.*"} <= names
    for name in names:
        assert run("explain", tape, name).code == 0, name


def test_printed_python_names_arguments_and_shapes_by_variant(tmp_path: Path) -> None:
    calls: list[Any] = [{"x": [torch.zeros(2 + i)] * 2} for i in range(2)]
    calls += [{"x": torch.zeros(2 + i, 3)} for i in range(2)]
    path = write_tape(tmp_path / "a.tape", calls, target=Model())
    with open_tape(path) as tape:
        variants = tape.variants()
        scope: dict[str, Any] = {}
        exec(run("variants", path, "--python").out, scope)
        assert scope["dynamic_shapes"] == {
            variant.name: variant.infer_dynamic_shapes() for variant in variants
        }
        assert scope["arguments"].keys() == scope["dynamic_shapes"].keys()
        for variant in variants:
            given, expected = scope["arguments"][variant.name], variant.infer_arguments()
            assert render(given) == render(expected)
        only: dict[str, Any] = {}
        exec(run("variants", path, "--python", "--variant", 1).out, only)
        assert only["dynamic_shapes"] == scope["dynamic_shapes"][variants[1].name]
        part: dict[str, Any] = {}
        exec(run("variants", path, "--python", "--calls", "2..3").out, part)
        assert part["dynamic_shapes"] == only["dynamic_shapes"]
        assert render(part["kwargs"]) == render(only["kwargs"])


def test_json_output_is_that_of_the_python_results(tape: Path) -> None:
    with open_tape(tape) as opened:
        variants = opened.variants()
        answers = {
            ("variants", tape): [
                json.loads(variant.findings.model_dump_json()) for variant in variants
            ],
            ("explain", tape, "x"): json.loads(opened.explain("x").model_dump_json()),
        }
    for words, expected in answers.items():
        assert json.loads(run(*words, "--json").out) == expected, words


def test_the_script_of_a_part_selects_that_part(tape: Path) -> None:
    out = script_of(tape, "--variant", 1)
    assert "tape.only(variant=[1])" in out
    compile(out, "script", "exec")
    assert "tape.only(calls=" in script_of(tape, "--calls", "0..1")


def test_raised_calls_have_addresses(tmp_path: Path) -> None:
    failing = Recorded(kwargs={"x": torch.ones(2)}, error=("builtins:ValueError", "no"))
    write_tape(tmp_path / "a.tape", [{"x": torch.ones(2)}], target=Model(), tape_id=A)
    write_tape(tmp_path / "b.tape", [failing], target=Model(), tape_id=B)
    out = run("ls", tmp_path).out
    assert "77000000:0" in out
    assert "raised ValueError" in out


def test_arguments_of_any_number_are_left_out_by_their_places(tmp_path: Path) -> None:
    class Sums(torch.nn.Module):
        def forward(self, x, *more, **others):
            return x

    calls = [((torch.ones(n), torch.ones(2), torch.ones(3)), {"y": torch.ones(4)}) for n in (2, 3)]
    path = write_tape(tmp_path / "a.tape", calls, target=Sums())

    def left(*words: str) -> list[str]:
        rows = run("variants", path, *words).out.splitlines()
        return [row.split()[0] for row in rows if "float32" in row]

    assert left() == ["x", "more.0", "more.1", "y"]
    assert left("--ignore", "more.1") == ["x", "more.0", "y"]
    assert left("--ignore", "more.0", "--ignore", "more.1", "--ignore", "y") == ["x"]
    assert run("variants", path, "--ignore", "more.2").code == 2
    explained = run("explain", path, "more").out
    assert "more.0: tensor float32" in explained
    assert "more.1: tensor float32" in explained
    assert run("filter", path, "-o", tmp_path / "b.tape", "--where", "more.1[0] > 2").code == 0
    for option in ("--drop", "--keep"):
        verb, out = ("filter" if option == "--drop" else "redact"), tmp_path / f"{option}.tape"
        assert run(verb, path, "-o", out, option, "more.1", option, "others.y").code == 0
        lines = [line.strip() for line in run("show", out, 0).out.splitlines()]
        assert ("more.1: float32[3] = [1.0, 1.0, 1.0]" in lines) is (option == "--keep")
        assert ("y: float32[4] = [1.0, 1.0, 1.0, 1.0]" in lines) is (option == "--keep")
        assert ("more.0: float32[2] = [1.0, 1.0]" in lines) is (option == "--drop")
