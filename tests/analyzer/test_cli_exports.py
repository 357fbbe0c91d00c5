"""``calltape export``, ``replay``, ``check`` and ``script``: with a model from a module in the
current directory."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.errors import UsageError
from calltape_analyzer.scripting import is_factory, script
from calltape_recorder import record
from tests.analyzer.tapes import write_tape
from tests.analyzer.test_cli import run
from tests.analyzer.test_explaining import CHATS, record_chats

MODULE = "models_for_calltape_tests"
SOURCE = """
import torch


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x, mask=None):
        y = self.dropout(self.linear(x))
        return y if mask is None else y * mask


def classifier():
    torch.manual_seed(0)
    return Classifier()


def other():
    torch.manual_seed(1)
    return Classifier()


def failing():
    raise ValueError("no weights\\nhere")


def text():
    return "a text"


made = classifier()


class Zoo:
    @staticmethod
    def classifier():
        return classifier()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a module of models in it; the module is forgotten afterwards."""
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    sys.modules.pop(MODULE, None)
    yield tmp_path
    sys.modules.pop(MODULE, None)


@pytest.fixture
def tape_file(folder: Path) -> Path:
    scope: dict[str, Any] = {"__name__": MODULE}
    exec(SOURCE, scope)
    model = scope["classifier"]().eval()
    path = folder / "a.tape"
    with record(model, path):
        for rows in (3, 5, 2):
            model(torch.randn(rows, 4))
        model(torch.randn(4, 4), mask=torch.ones(4, 2))
    return path


# Models.


@pytest.mark.parametrize("name", ["classifier", "made", "Classifier", "Zoo.classifier"])
def test_replay_of_the_model_itself(tape_file: Path, name: str) -> None:
    code, out, err = run("replay", tape_file, "--model", f"{MODULE}:{name}", "--atol", 100)
    assert (code, err) == (0, "")
    assert "4 of 4 recorded calls reproduced" in out


def test_replay_that_differs(tape_file: Path, folder: Path) -> None:
    failing = folder / "failing.tape"
    arguments = ("replay", tape_file, "--model", f"{MODULE}:other")
    code, out, err = run(*arguments, "--failing", failing)
    assert (code, err) == (1, "")
    assert "0 of 4 recorded calls reproduced" in out
    with open_tape(failing) as tape:
        assert len(tape) >= 1
    assert run(*arguments, "--atol", 100.0).code == 0
    document = json.loads(run(*arguments, "--json").out)
    assert document["ok"] is False
    assert [row["call"] for row in document["rows"]] == [0, 1, 2, 3]


def test_the_model_is_in_evaluation_mode(tape_file: Path) -> None:
    arguments = ("replay", tape_file, "--model", f"{MODULE}:classifier")
    assert run(*arguments).code == 0
    assert run(*arguments, "--train").code == 1  # dropout


@pytest.mark.parametrize("verb", ["export", "replay"])
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        (MODULE, 2, "not of the form"),
        (f"{MODULE}:", 2, "not of the form"),
        ("os;x:y", 2, "not of the form"),
        ("no_such_module:f", 1, "No module named 'no_such_module'"),
        (f"{MODULE}:absent", 1, "has no attribute 'absent'"),
        (f"{MODULE}:failing", 1, "failing() failed: ValueError: no weights here"),
        (f"{MODULE}:text", 1, "gives a builtins.str"),
    ],
)
def test_models_that_cannot_be_made(
    tape_file: Path, verb: str, name: str, code: int, said: str
) -> None:
    got, out, err = run(verb, tape_file, "--model", name)
    assert (got, out) == (code, "")
    assert said in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
    assert code == 2 or err.count("\n") == 1


def test_the_traceback_of_a_model_can_be_had(
    tape_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLTAPE_DEBUG", "1")
    with pytest.raises(ValueError, match="no weights"):
        run("replay", tape_file, "--model", f"{MODULE}:failing")


def test_usage(tape_file: Path) -> None:
    model = ("--model", f"{MODULE}:classifier")
    for arguments in (
        ("export", tape_file), ("replay", tape_file), ("check", tape_file),
        ("replay", tape_file, "x.onnx", *model), ("export", tape_file, *model, "--to", "jax"),
        ("export", tape_file, *model, "--opset", 20), ("replay", tape_file, *model, "--rtol", -1),
        ("script", tape_file, "--model", "x"),
    ):  # fmt: skip
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert "Traceback" not in err


@pytest.mark.parametrize("verb", ["replay", "check"])
def test_targets_that_do_not_exist(tape_file: Path, verb: str) -> None:
    for name in ("absent.onnx", "absent.pt2", "absent"):
        code, out, err = run(verb, tape_file, name)
        assert (code, out) == (1, "")
        assert err == f"calltape: {name}: no such file. Check the path.\n"


def test_help() -> None:
    for verb in ("export", "replay", "check", "script"):
        assert f"  {verb} " in run("--help").out
        text = run(verb, "--help").out
        assert f"  calltape {verb} runs/" in text
        assert "--json" in text


# Scripts.


def test_script_to_fill_in(tape_file: Path) -> None:
    code, out, err = run("script", tape_file)
    assert (code, err) == (0, "")
    compile(out, "script", "exec")
    assert "To be filled in" in out
    assert json.loads(run("script", tape_file, "--json").out) == {"source": out, "saved": None}
    assert 'to="onnx"' in run("script", tape_file, "--to", "onnx").out
    scope: dict[str, Any] = {"__name__": "script"}
    exec(out, scope)
    with pytest.raises(SystemExit, match="build_model"):
        scope["main"]()


def test_script_of_a_hostile_tape(tmp_path: Path) -> None:
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
        "Expr", "Import", "Import", "ImportFrom", "Assign", "FunctionDef", "FunctionDef", "If"
    ]  # fmt: skip
    (assigned,) = [node for node in tree.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(assigned.value) == [str(path)]


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


def test_what_is_there_is_not_replaced(tape_file: Path, folder: Path) -> None:
    mine, elsewhere = folder / "mine.py", folder / "elsewhere.py"
    mine.write_text("mine")
    code, out, err = run("script", tape_file, "-o", mine)
    assert (code, out, mine.read_text()) == (1, "", "mine")
    assert err.startswith(f"calltape: {mine}: it is there already.")
    assert err.count("\n") == 1
    (folder / "link.py").symlink_to(elsewhere)
    assert run("script", tape_file, "-o", folder / "link.py").code == 1
    assert not elsewhere.exists()
    assert run("script", tape_file, "-o", mine, "--force").code == 0
    assert "def main()" in mine.read_text()
    assert run("script", tape_file, "-o", folder, "--force").code == 1
    assert run("script", tape_file, "-o", folder / "absent" / "a.py").code == 1
    model = ("--model", f"{MODULE}:other")
    code, out, err = run("replay", tape_file, *model, "--failing", tape_file)
    assert (code, out) == (1, "")
    assert "it is there already" in err
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_script_names_all_files(tmp_path: Path) -> None:
    paths = [
        write_tape(tmp_path / f"{n}.tape", [((torch.zeros(n),), {})], tape_id=bytes([n] * 16))
        for n in (2, 3)
    ]
    out = run("script", *paths).out
    scope: dict[str, Any] = {"__name__": "script"}
    exec(out, scope)
    assert scope["TAPES"] == [str(path) for path in paths]


def test_script_takes_no_code_for_a_model(tape_file: Path) -> None:
    with open_tape(tape_file) as tape:
        for name in ("os:system('id')", "a.b", "a:b:c", "import:x", "é:f", ""):
            assert not is_factory(name)
            with pytest.raises(UsageError):
                script(tape, model=name)
        with pytest.raises(UsageError):
            script(tape, to="os")  # type: ignore[arg-type]


# With torch.export.


@pytest.mark.integration
def test_export_replay_and_check(tape_file: Path, folder: Path) -> None:
    out_dir = folder / "exported"
    model = ("--model", f"{MODULE}:classifier")
    code, out, err = run("export", tape_file, *model, "--out", out_dir)
    assert (code, err) == (0, "")
    assert out.split("\n", 1)[0].split() == [
        "variant", "tried", "reproduced", "unseen", "sizes", "seconds", "error"
    ]  # fmt: skip
    assert "4 of 4 recorded calls reproduced" in out
    assert f"saved in {out_dir}" in out
    code, out, err = run("replay", tape_file, out_dir, "--trust")
    assert (code, err) == (0, "")
    assert "4 of 4 recorded calls reproduced" in out
    code, out, err = run("check", tape_file, out_dir)
    assert (code, err) == (0, "")
    assert "4 of 4 recorded calls would be accepted" in out
    wider = write_tape(folder / "b.tape", [((torch.zeros(3, 9),), {})])
    code, out, err = run("check", wider, out_dir, "--json")
    assert (code, err) == (1, "")
    document = json.loads(out)
    assert document["ok"] is False
    assert document["rows"][0]["accepted"] is False


@pytest.mark.integration
def test_a_language_model(folder: Path) -> None:
    tape, out_dir = record_chats(folder / "llm.tape", CHATS), folder / "llm"
    model = ("--model", "tests.analyzer.test_explaining:toy_lm")
    assert run("replay", tape, *model).code == 0
    code, out, err = run("export", tape, *model, "--merge", "never", "-o", out_dir)
    assert (code, err) == (0, ""), out
    assert "9 of 9 recorded calls reproduced (prefill: 3, decode: 6)" in out
    assert run("replay", tape, out_dir, "--trust").code == 0
    assert run("check", tape, out_dir).code == 0
    # Two tokens at a time, which the programs were never shown.
    other = record_chats(folder / "other.tape", ((2, 5), (3, 4)), step=2)
    assert run("diff", tape, other).code == 4
    code, out, _ = run("check", other, out_dir)
    assert code == 1
    assert "2 of 6 recorded calls would be accepted" in out
    code, out, _ = run("replay", other, out_dir, "--trust", "--failing", folder / "failing.tape")
    assert code == 1
    assert "2 of 6 recorded calls reproduced" in out
    with open_tape(folder / "failing.tape") as failing:
        assert "past_key_values" in failing[0].inputs.kwargs


@pytest.mark.integration
def test_export_json(tape_file: Path) -> None:
    model = ("--model", f"{MODULE}:classifier")
    code, out, err = run("export", tape_file, *model, "--merge", "never", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert len(document["programs"]) == 2
    assert document["missing"] == {}
    assert document["saved"] is None
    assert document["report"]["ok"] is True
    attempt = document["attempts"][0]
    assert attempt["reproduced"] == attempt["tried"] > 0
    assert set(attempt) >= {
        "variant", "what", "reproduced", "tried", "held", "probed", "wrong", "error", "seconds"
    }  # fmt: skip
    assert "rows" not in attempt


@pytest.mark.integration
def test_export_of_another_model_is_exit_code_1(tape_file: Path) -> None:
    code, out, err = run("export", tape_file, "--model", f"{MODULE}:other")
    assert code == 1
    assert "Traceback" not in err
    assert "0 of 4" in out or err.startswith("calltape: nothing could be exported")


@pytest.mark.integration
def test_export_isolated(tape_file: Path) -> None:
    arguments = ("export", str(tape_file), "--model", f"{MODULE}:classifier", "--isolate", "--json")
    result = subprocess.run(
        [sys.executable, "-m", "calltape_analyzer.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["report"]["ok"] is True


@pytest.mark.integration
def test_export_to_onnx(tape_file: Path, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out_dir = folder / "onnx"
    arguments = ("--model", f"{MODULE}:classifier", "--to", "onnx", "--opset", 20)
    code, out, _ = run("export", tape_file, *arguments, "-o", out_dir)
    assert code == 0, out
    assert len(list(out_dir.glob("*.onnx"))) >= 1
    assert run("replay", tape_file, out_dir).code == 0
    assert run("check", tape_file, out_dir).code == 0


@pytest.mark.integration
def test_the_script_runs(tape_file: Path, folder: Path) -> None:
    file = folder / "report.py"
    arguments = ("script", tape_file, "--model", f"{MODULE}:classifier", "-o", file)
    assert run(*arguments) == (0, f"wrote {file}\n", "")
    result = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "4 of 4 recorded calls reproduced" in result.stdout
