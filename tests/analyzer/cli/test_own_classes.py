"""Arguments of a user's own classes: the model's package has them, or ``--classes`` names them. A
call of which they are unknown is not tried, and is nobody's failure."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from calltape_analyzer import open_tape, replay
from calltape_recorder import record
from tests.analyzer.cli.commands import run

STATES = """
import dataclasses
import torch

@dataclasses.dataclass
class Layer:
    keys: torch.Tensor

@dataclasses.dataclass
class State:
    layers: list
    step: int = 0
"""
BLIND = """
import torch

class Model(torch.nn.Module):
    def forward(self, ids, state=None):
        return ids * 2 if state is None else ids * 2 + state.layers[0].keys

    def decode(self, ids, state=None):
        return self(ids, state)

class Wrong(Model):
    def forward(self, ids, state=None):
        return super().forward(ids, state) + (state is not None)

def make():
    return Model()

def wrong():
    return Wrong()
"""
NAMED = ("--classes", "own.states:State", "--classes", "own.states:Layer")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Modules with classes, with a model of their package, and with one of another, which imports
    one of the classes."""
    blind = f"from own.states import State\n{BLIND}"
    sources = {"own": "", "own.states": STATES, "own.model": blind, "own_blind": blind}
    (tmp_path / "own").mkdir()
    for name, source in sources.items():
        file = "own/__init__" if name == "own" else name.replace(".", "/")
        (tmp_path / f"{file}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield {name: importlib.import_module(name) for name in sources}
    for name in sources:
        sys.modules.pop(name, None)


@pytest.fixture
def tape(modules: dict[str, ModuleType], tmp_path: Path) -> Path:
    states = modules["own.states"]
    model = modules["own.model"].make()
    with record(model, tmp_path / "own.tape"):
        for rows in (2, 3):
            model(torch.ones(rows, 4))
            model(torch.ones(rows, 4), states.State([states.Layer(torch.ones(rows, 4))]))
    return tmp_path / "own.tape"


def test_the_package_of_the_model_has_the_classes(
    tape: Path, modules: dict[str, ModuleType]
) -> None:
    assert run("replay", tape, "--model", "own.model:make").code == 0
    assert run("replay", tape, "--model", "own.model:make", "--bisect").code == 0
    assert run("replay", tape, "--model", "own.model:wrong", "--bisect").code == 1
    model = modules["own.model"].make()
    with open_tape(tape) as opened:
        assert replay(opened, model).reproduced == 4
        assert replay(opened, model.decode).reproduced == 4
        assert replay(opened, torch.nn.Sequential(model)[0]).reproduced == 4
        assert replay(opened, torch.compile(model, backend="eager")).reproduced == 4


def test_a_call_of_an_unknown_class_is_not_tried(
    tape: Path, modules: dict[str, ModuleType]
) -> None:
    result = run("replay", tape, "--model", "own_blind:make")
    assert result.code == 1
    assert "2 calls were not tried: pass --classes own.states:State" in result.out
    assert "not tried: its arguments hold objects that cannot be rebuilt: own.states:State" in (
        result.out
    )
    assert "Placeholder" not in result.out
    rows = json.loads(run("replay", tape, "--model", "own_blind:make", "--json").out)["rows"]
    assert [row["against"] for row in rows] == ["tape", "nothing"] * 2
    assert run("replay", tape, "--model", "own_blind:make", "--bisect").code == 125
    assert run("replay", tape, "--model", "own_blind:make", *NAMED).code == 0
    assert run("replay", tape, "--model", "own_blind:wrong", *NAMED, "--bisect").code == 1
    with open_tape(tape) as opened:
        report = replay(opened, modules["own_blind"].make())
        assert not report
        assert report.unmade == dict.fromkeys(
            ("own.states:State", "own.states:Layer"), "class not known here"
        )


def test_a_class_that_has_other_fields_now_is_no_bad_commit(
    tape: Path, modules: dict[str, ModuleType]
) -> None:
    other = dataclasses.make_dataclass("State", ["others"])
    other.__module__ = "own.states"
    modules["own.states"].State = other  # type: ignore[attr-defined]
    words = ("replay", tape, "--model", "own_blind:make", *NAMED)
    result = run(*words)
    assert result.code == 1
    assert "State has no field 'layers' here" in result.out
    assert run(*words, "--bisect").code == 125


def test_a_tape_imports_nothing(tape: Path) -> None:
    del sys.modules["own.states"], sys.modules["own_blind"]
    Path("own_blind.py").write_text(BLIND)
    assert run("replay", tape, "--model", "own_blind:make").code == 1
    assert "own.states" not in sys.modules


@pytest.mark.parametrize(
    ("name", "code", "bisecting"),
    [("own.states:Gone", 2, 125), ("own.states:torch", 2, 125), ("no form", 2, 128)],
)
def test_a_wrong_name_of_a_class_is_rejected(
    tape: Path, name: str, code: int, bisecting: int
) -> None:
    words = ("replay", tape, "--model", "own_blind:make", "--classes", name)
    assert run(*words).code == code
    assert run(*words, "--bisect").code == bisecting
    assert run("export", tape, "--model", "own_blind:make", "--classes", name).code == 2


def replaying(*words: str) -> str:
    """A command that replays a tape, and tells whether it can be tested."""
    command = shlex.join([sys.executable, "-m", "calltape_analyzer", "replay"])
    return f"{command} {{}} --bisect --model {shlex.join(words)}"


@pytest.mark.integration
def test_nothing_is_made_small_of_an_unknown_class(tape: Path) -> None:
    result = run("minimise", tape, "-o", "small.tape", "--check", replaying("own_blind:make"))
    assert result.code == 1
    assert "the check cannot be run: exit code 125; " in result.err
    assert not Path("small.tape").exists()


@pytest.mark.integration
def test_minimise_builds_the_objects_of_the_model(tape: Path) -> None:
    check = replaying("own_blind:wrong", *NAMED)
    result = run("minimise", tape, "-o", "small.tape", "--check", check)
    assert result.code == 0, result.err
    assert "1 of 4 calls" in result.out


@pytest.mark.integration
def test_python_of_a_variant_wants_all_classes_at_once(tape: Path) -> None:
    def ran(*options: str) -> subprocess.CompletedProcess[str]:
        source = run("variants", tape, "--variant", "1", "--python", *options).out
        command = [sys.executable, "-c", f"{source}\nprint(args, kwargs)"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    bare = ran()
    assert bare.returncode == 1
    assert "open_tape(path, classes=[State, Layer])" in bare.stderr
    named = ran(*NAMED)
    assert (named.returncode, named.stderr) == (0, "")
    assert "State" in named.stdout


def test_a_cache_of_a_dataclass_is_shown_as_a_cache(tape: Path) -> None:
    """It is recorded by its attributes, so that the tape says object of it and dataclass of the
    one around it."""

    @dataclasses.dataclass
    class LayerCache:
        keys: torch.Tensor

    states = sys.modules["own.states"]
    model = sys.modules["own.model"].make()
    state = states.State([LayerCache(torch.ones(2, 4))])
    with record(model, "cache.tape"):
        model(torch.ones(2, 4), state)
    out = run("show", "cache.tape", 0).out
    assert "state: dataclass own.states:State" in out, out
    assert re.search(r"0: cache \S+LayerCache$", out, re.MULTILINE)
