"""The Python file that ``calltape bundle`` writes for a tape."""

from __future__ import annotations

import ast
import contextlib
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.errors import UsageError
from calltape_analyzer.scripting import is_factory, script
from calltape_recorder import record
from tests.analyzer.cli.commands import run, script_of
from tests.analyzer.cli.models import MODULE
from tests.analyzer.tapes import write_tape


def test_a_script_without_a_model_says_what_to_fill_in(classifier_tape: Path) -> None:
    out = script_of(classifier_tape)
    compile(out, "script", "exec")
    assert "To be filled in" in out
    assert 'to="onnx"' in script_of(classifier_tape, "--to", "onnx")
    scope: dict[str, Any] = {"__name__": "script"}
    exec(out, scope)
    with pytest.raises(SystemExit, match="build_model"):
        scope["main"]()


def test_texts_of_a_hostile_tape_stay_literals_in_the_script(tmp_path: Path) -> None:
    text = '\x1b]0;x\x07"""\nimport os; os.abort()\n\u2028\u202e😀\\'
    name = 'a"; raise SystemExit; "\n\r😀\x7f.tape'
    calls = [{text: torch.zeros(2 + n), "s": text, "d": {text: n}} for n in range(2)]
    path = write_tape(tmp_path / name, calls, producer={"platform": text})
    with open_tape(path) as tape:
        source = script(tape)
    assert source.isascii()
    assert all(line.isprintable() for line in source.split("\n"))
    tree = ast.parse(source)
    statements = [type(node).__name__ for node in tree.body]
    assert statements == [
        "Expr", "Import", "Import", "Import", "ImportFrom", "Assign", "FunctionDef", "FunctionDef",
        "FunctionDef", "If",
    ]  # fmt: skip
    (assigned,) = [node for node in tree.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(assigned.value) == [str(path)]


def test_each_argument_has_one_line(tmp_path: Path) -> None:
    calls = [
        {"boxes": [torch.zeros(n, 4), torch.zeros(n, 4), torch.zeros(1, 4)], "state": [n, n]}
        for n in (2, 3)
    ]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        lines = script(tape).splitlines()
    (boxes,) = [line for line in lines if "boxes" in line]
    assert boxes == "#     boxes: float32[2..3, 4] (2 of them) and float32[1, 4]"
    assert [line for line in lines if "state" in line] == ["#     state: int (2 of them)"]


def test_a_dynamic_size_that_a_variant_has_once_is_a_number(tmp_path: Path) -> None:
    calls = [((torch.zeros(2, 5),), {}), ((torch.zeros(2, 7),), {}), ((torch.zeros(2, 5), 0.5), {})]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        lines = [line.strip("# ") for line in script(tape).splitlines() if "float32[" in line]
    assert lines == ["args.0: float32[2, 5..7]", "args.0: float32[2, 5]"]


SECRET = "SECRETPROMPT"


def private_calls(position: int) -> list[Any]:
    """Calls with a private text in one place, and with another one in each."""
    places: list[Any] = [
        lambda text: {"prompt": text, "x": torch.zeros(3)},
        lambda text: {"x": torch.zeros(3), "options": {"prompt": [text]}},
        lambda text: {"x": torch.zeros(3), "prompt": text.encode()},
        lambda text: {"x": {text: torch.zeros(3)}},
        lambda text: {"x": torch.zeros(3), text: torch.zeros(2)},
        lambda text: {"x": torch.zeros(3), text: 3},
        lambda text: {"x": torch.zeros(3), "card": f"4111 {len(text)}"},
    ]
    make = places[position]
    return [((), make(f"{SECRET} {n}" + "x" * n)) for n in range(3)]


@pytest.mark.parametrize("position", range(7))
def test_script_holds_no_text_of_a_call(position: int, tmp_path: Path) -> None:
    class Taking(torch.nn.Module):
        def forward(self, x: Any, prompt: str = f"{SECRET} 9", **more: Any) -> Any: ...

    path = write_tape(
        tmp_path / "a.tape", private_calls(position), target=Taking(),
        producer={"host": f"{SECRET}.example"},
    )  # fmt: skip
    with open_tape(path) as tape:
        source = script(tape)
    for part in (SECRET, SECRET[:5], "4111"):
        assert part not in source
    assert "x: float32[" in source
    assert "3 calls" in source or "variant 0" in source or "1 call" in source


def test_what_is_there_is_not_replaced(classifier_tape: Path, folder: Path) -> None:
    mine, elsewhere = folder / "mine.py", folder / "elsewhere.py"
    mine.write_text("mine")
    code, out, err = run("bundle", classifier_tape, "-o", mine)
    assert (code, out, mine.read_text()) == (1, "", "mine")
    assert err.startswith(f"calltape: {mine}: it is there already.")
    assert err.count("\n") == 1
    (folder / "link.py").symlink_to(elsewhere)
    assert run("bundle", classifier_tape, "-o", folder / "link.py").code == 1
    assert not elsewhere.exists()
    assert run("bundle", classifier_tape, "-o", mine, "--force").code == 0
    assert "def main()" in mine.read_text()
    (folder / "folder.py").mkdir()
    assert run("bundle", classifier_tape, "-o", folder / "folder.py", "--force").code == 1
    assert run("bundle", classifier_tape, "-o", folder / "absent" / "a.py").code == 1
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_script_names_all_files(tmp_path: Path) -> None:
    paths = [
        write_tape(tmp_path / f"{n}.tape", [((torch.zeros(n),), {})], tape_id=bytes([n] * 16))
        for n in (2, 3)
    ]
    out = script_of(*paths)
    scope: dict[str, Any] = {"__name__": "script"}
    exec(out, scope)
    assert scope["TAPES"] == [str(path) for path in paths]


def test_script_takes_no_code_for_a_model(classifier_tape: Path) -> None:
    with open_tape(classifier_tape) as tape:
        for name in ("os:system('id')", "a.b", "a:b:c", "import:x", "é:f", ""):
            assert not is_factory(name)
            with pytest.raises(UsageError):
                script(tape, model=name)
        with pytest.raises(UsageError):
            script(tape, to="os")  # type: ignore[arg-type]


@pytest.mark.integration
def test_the_script_runs(classifier_tape: Path, folder: Path) -> None:
    file = folder / "report.py"
    arguments = ("bundle", classifier_tape, "--model", f"{MODULE}:classifier", "-o", file)
    assert run(*arguments) == (0, f"wrote {file}\n", "")
    result = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "4 of 4 recorded calls reproduced" in result.stdout


FAILING = """
import collections
import dataclasses

import torch



@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    scale: float = 1.0


Pair = collections.namedtuple("Pair", ["left", "right"])


class Failing(torch.nn.Module):
    def forward(self, batch, pair):
        if len(batch.ids) == 3:
            raise ValueError(f"cannot add {len(batch.ids)}")
        return batch.ids * batch.scale + pair.left + pair.right


def failing():
    return Failing()
"""

WITHOUT_LIBRARY = """
import torch


class Failing(torch.nn.Module):
    def forward(self, batch, pair):
        if len(batch.ids) == 3:
            raise ValueError(f"cannot add {len(batch.ids)}")
        return batch.ids * batch.scale + pair.left + pair.right


def failing():
    return Failing()
"""


@pytest.fixture
def failing_tape(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tape with arguments of classes whose module goes away again."""
    module = types.ModuleType("failing_models")
    monkeypatch.setitem(sys.modules, "failing_models", module)
    exec(FAILING, vars(module))
    model = module.failing()
    path = folder / "failing.tape"
    with record(model, path):
        for rows in (2, 3, 3, 5):
            one = torch.ones(rows, 2)
            with contextlib.suppress(ValueError):
                model(module.Batch(one), module.Pair(one, one))
    return path


def test_the_script_of_a_call_that_raised_runs_that_call(failing_tape: Path) -> None:
    out = script_of(failing_tape)
    scope: dict[str, Any] = {"__name__": "script"}
    exec(out, scope)
    with open_tape(failing_tape) as tape:
        assert [scope["CALL"]] == [tape.calls[1].address]
    assert "open_tape(TAPES, stand_ins=True)" in out
    assert "Batch" not in out, "no class is looked up by a name of the tape"
    assert "the first of 2 calls that raised" in out
    assert "replay(" in out
    assert "export(" not in out
    assert "cannot add" not in out
    scope = {"__name__": "script"}
    exec(script_of(failing_tape, "--call", 3), scope)
    assert scope["CALL"].endswith(":3") or scope["CALL"] == "3"
    assert "export(" in script_of(failing_tape, "--to", "torch")
    out_file = ("-o", failing_tape.with_name("none.py"))
    assert run("bundle", failing_tape, "--to", "torch", "--call", 3, *out_file).code == 1
    assert run("bundle", failing_tape, "--call", 99, *out_file).code == 1
    assert run("bundle", failing_tape, "--model-code", __file__, *out_file).code == 2


@pytest.mark.integration
@pytest.mark.parametrize(("options", "code"), [([], 0), (["--call", "0"], 0)])
def test_the_script_runs_without_the_library(
    failing_tape: Path, folder: Path, options: list[str], code: int
) -> None:
    """Where only torch and calltape are: what else was there when it was recorded is blocked."""
    (folder / "bare_models.py").write_text(WITHOUT_LIBRARY)
    file = folder / "report.py"
    model = ("--model", "bare_models:failing")
    assert run("bundle", failing_tape, *model, *options, "-o", file).code == 0
    blocked = (
        "import runpy, sys\n"
        "for name in ('transformers', 'onnx', 'calltape_recorder'):\n"
        "    sys.modules[name] = None\n"
        f"runpy.run_path({str(file)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == code, done.stderr
    assert "1 of 1 recorded call" in done.stdout
    (folder / "bare_models.py").write_text(WITHOUT_LIBRARY.replace("cannot", "can"))
    if not options:
        done = subprocess.run(
            [sys.executable, "-c", blocked], capture_output=True, text=True, check=False, cwd=folder
        )
        assert done.returncode == 1
        assert "can add 3" in done.stdout
