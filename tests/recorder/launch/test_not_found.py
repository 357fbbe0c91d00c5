"""What is said of a target that was not found: that nothing is recorded, and what could be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder.launch.startup.calltape_startup import models_there

ROOT = Path(__file__).parents[3]


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


SERVER = """
import sys
import time
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x

class Unused(torch.nn.Module):
    pass

alive = []

def main():
    model = Net()
    alive.append(model)  # when the process ends
    model(torch.ones(2))
    print("served")
    sys.exit(5)

if __name__ == "__main__":
    import server
    while sys.argv[1:] == ["Unused"] and "__init__" not in vars(server.Unused):
        time.sleep(0.01)  # until it is followed
    server.main()
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("server:model", "server:model did not appear before the process ended"),
        ("server:Unused", "no instance of server:Unused was created"),
        ("sevrer:Net", "sevrer was never imported, and .*/tapes has no tape"),
    ],
)
def test_the_command_says_it_at_the_end_and_changes_nothing(
    tmp_path: Path, target: str, says: str
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = [
        sys.executable, "-m", "calltape_recorder.launch.launcher", "--target", target, "--tape",
        str(tmp_path / "tapes"), "--", sys.executable, str(tmp_path / "server.py"),
        target.partition(":")[2],
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, "served\n")
    there = ": nothing is recorded. There are models of the classes server:Net\n$"
    assert re.search(says + there, done.stderr), done.stderr
    assert re.match(r"calltape, process \d+: ", done.stderr)
    assert done.stderr.count("\n") == 1
