"""The command calltape-record: the environment that it makes, and wrong usage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder.launch.launcher import STARTUP, main, prepare
from calltape_recorder.launch.startup import calltape_startup
from calltape_recorder.launch.startup.calltape_startup import models_there
from calltape_recorder.options import help_of

PID = os.getpid()


def test_the_command_gets_its_settings_by_the_environment(tmp_path: Path) -> None:
    settings = {"target": "a.b:c.d", "tape": str(tmp_path / "tapes"), "keep": "novelty()"}
    environment = prepare(settings, {"PYTHONPATH": "/x:/y", "OTHER": "1"})
    assert environment["PYTHONPATH"] == f"{STARTUP}:/x:/y"
    assert environment["OTHER"] == "1"
    said = calltape_startup.split(environment["CALLTAPE"])
    assert said == {**settings, "pid": PID}
    assert (tmp_path / "tapes").is_dir()
    assert prepare(said, environment)["PYTHONPATH"] == f"{STARTUP}:/x:/y"
    assert {"sitecustomize.py", "calltape_startup.py"} <= set(os.listdir(STARTUP))


def test_the_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, says in help_of().items():
        assert f"--{name.replace('_', '-')} … {says}" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--target", "a:b", "--tape", "{}"], "no command is given"),
        (["--target", "a.b", "--tape", "{}", "--", "true"], "package.module:attribute"),
        (
            ["--target", "a:b.<locals>.c", "--tape", "{}", "--", "true"],
            "for a class, all instances",
        ),
        (["--target", "a:b c", "--tape", "{}", "--", "true"], "package.module:attribute"),
        (["--tape", "{}", "--", "true"], "package.module:attribute"),
        (["--target", "a:b", "--", "true"], "no directory for the tapes"),
        (["--target", "a:b", "--tape", "/dev/null", "--", "true"], "/dev/null"),
        (["--target", "a:b", "--tape", "{}", "--keep", "often()", "--", "true"], "often"),
        (["--target", "a:b", "--tape", "{}", "--wait", "soon", "--", "true"], "soon"),
    ],
)
def test_wrong_usage_is_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main([argument.replace("{}", str(tmp_path)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("calltape-record: ")
    assert said in error


def test_the_path_of_the_startup_file_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-path"]) == 0
    assert capsys.readouterr().out == f"{STARTUP}\n"


def test_a_missing_command_exits_with_127(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    arguments = ["--target", "a:b", "--tape", str(tmp_path), "--"]
    assert main([*arguments, "/nowhere/python"]) == 127
    assert main([*arguments, str(tmp_path)]) == 126
    assert "/nowhere/python: No such file" in capsys.readouterr().err


WITHOUT_TORCH = """
import json, sys
from calltape_recorder.launch.launcher import main
for words in json.loads(sys.argv[1]):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    print("ended", code, *sorted({"torch", "numpy"} & set(sys.modules)))
"""


def test_the_command_does_not_import_torch(tmp_path: Path) -> None:
    """Its help and wrong usage answer at once; importing torch takes seconds."""
    target = ["--target", "a:b", "--tape", str(tmp_path)]
    each = [
        (["--help"], 0), (["--print-path"], 0), (["--nonsense"], 2), (target, 2),
        ([*target, "--keep", "often()", "--", "true"], 2),
        ([*target, "--keep", "novelty()", "--", "/nowhere"], 127),
    ]  # fmt: skip
    words = json.dumps([words for words, _ in each])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, words], capture_output=True, text=True, timeout=120
    )
    ended = [line for line in done.stdout.splitlines() if line.startswith("ended")]
    assert ended == [f"ended {code}" for _, code in each], done.stderr


class Net(torch.nn.Module):
    pass


class Engine:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("not to be run by anybody but the host")


def test_models_that_are_a_part_of_no_other_are_named_by_class() -> None:
    models = [torch.nn.Sequential(Net()), Engine()]
    said = models_there()
    assert said.startswith(". There are models of the classes ")
    del models
