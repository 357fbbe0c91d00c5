"""What is said of a target that was not found: what it leads to, and what is there instead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import TapeError
from calltape_recorder.launch.launcher import prepare
from calltape_recorder.launch.startup import calltape_explaining as explaining
from tests.recorder.models import Add

ROOT = Path(__file__).parents[3]


class Net(torch.nn.Module):
    pass


class Engine:
    def __init__(self) -> None:
        self.network = Net()

    @property
    def model(self) -> Any:
        raise RuntimeError("not to be run by anybody but the host")

    def build(self) -> None:
        inner = [Net() for _ in range(2)]  # noqa: F841


def serve(device: str) -> None:
    llm = Net()

    def reply() -> Any:
        nested = [llm]
        return nested[0]

    reply()


class Application:
    """As Starlette's: its state is a dict behind __getattr__."""

    def __init__(self) -> None:
        self.state = types.SimpleNamespace(_state={"model": Net()})


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("serving")
    for value in (Net, Engine, serve):
        setattr(made, value.__name__, value)
        value.__module__ = "serving"
    monkeypatch.setattr(Engine.build, "__module__", "serving")
    vars(made).update(net=Net(), engine=Engine(), late=None, app=Application(), Add=Add)
    return made


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("nett", "serving has no nett; models there: "),
        ("engine.netwrok", "serving:engine has no netwrok; "),
        ("app.state.modle", "serving:app.state has no modle; "),
        ("late", "serving:late is None: nothing was assigned"),
        ("late.model", "serving:late is None"),
        ("llm", "serving has no llm; llm is a local variable of serving:serve,"),
        ("nested", "a local variable of serving:serve,"),
        ("inner", "a local variable of serving:Engine.build,"),
        ("serve.llm", "serving:serve is a function: llm is a local variable of it"),
        ("serve.other", "serving:serve is a function: it has only local variables"),
        ("Engine.network", "serving:Engine is a class: only an instance may have network"),
        ("net", "serving:net is there by now"),
        ("zzz", "serving has no zzz; models there: "),
    ],
)
def test_what_is_wrong_with_a_name(module: types.ModuleType, attribute: str, says: str) -> None:
    said = explaining.about_name([module, module], attribute, {"serving:x": 0.0}, ends=False)
    assert says in said
    assert said.startswith("serving:x was there at 00:00:00Z; ")
    # Models that the module imported are no answer, their classes are those of another module.
    assert said.endswith("models there: serving:Net (a class), serving:net")
    assert "\n" not in said


def test_at_the_end_all_models_are_told(module: types.ModuleType) -> None:
    outer = torch.nn.Sequential(Net())
    said = explaining.about_name([module], "zzz", {}, ends=True)
    assert "torch.nn.modules.container:Sequential (" in said
    assert re.search(r"serving:Net \(\d+\)", said)
    assert explaining.about_class("a:B").startswith("a:B is a class, and no instance of it was")
    del outer


def test_a_module_that_nobody_imported() -> None:
    said = explaining.about_module()
    assert said == "" or "itself is named __main__:attribute" in said


def test_a_local_variable_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match=r"leads to model, a local variable of a\.b:main") as caught:
        prepare({"target": "a.b:main.<locals>.model", "tape": str(tmp_path)}, {})
    assert caught.value.kind == "usage"


SERVER = """
import sys
import time
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x

class Unused(torch.nn.Module):
    pass

def main():
    model = Net()
    model(torch.ones(2))
    print("served")
    sys.exit(5)

if __name__ == "__main__":
    import server
    time.sleep(0.5)
    server.main()
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("server:model", "model is a local variable of server:main"),
        ("server:Unused", "server:Unused is a class, and no instance of it was made"),
        (
            "sevrer:Net",
            "nobody imported sevrer, .*; the script .*server.py itself is named __main__:",
        ),
    ],
)
def test_the_command_says_it_at_the_end_and_changes_nothing(
    tmp_path: Path, target: str, says: str
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = [
        sys.executable, "-m", "calltape_recorder.launch.launcher", "--target", target, "--tape",
        str(tmp_path / "tapes"), "--", sys.executable, str(tmp_path / "server.py"),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, "served\n")
    assert re.search(says, done.stderr), done.stderr
    assert re.match(r"calltape, process \d+: ", done.stderr)
    assert done.stderr.count("\n") == 1


@pytest.mark.integration
def test_a_variable_that_names_a_local_one_is_explained(tmp_path: Path) -> None:
    startup = Path(explaining.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", "print('served')"], capture_output=True, text=True, check=True,
        env={
            **os.environ, "PYTHONPATH": str(startup),
            "CALLTAPE": f"target=a:main.<locals>.model;tape={tmp_path}",
        },
    )  # fmt: skip
    assert done.stdout == "served\n"
    assert "leads to model, a local variable of a:main" in done.stderr
