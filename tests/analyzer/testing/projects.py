"""A project of somebody else, in a folder of its own, with a test suite that uses the plugin.

pytest finds the plugin by an entry point, as in an environment where the analyzer is installed: the
one that ``analyzer/pyproject.toml`` declares.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from calltape_analyzer.testing import call, write_tape

ROOT = Path(__file__).resolve().parents[3]

MODEL = """
import torch


class House(torch.nn.Module):
    def __init__(self, extra=0.0, at=None):
        super().__init__()
        self.extra, self.at = extra, at

    def forward(self, x, scale=1.0):
        if x.shape[0] == 13:
            raise ValueError("13 is unlucky")
        y = x * 2 * scale
        if self.at is not None and x.shape[0] == self.at:
            y[0, 1] += self.extra
        return {"y": y, "n": x.shape[0]}
"""

TESTS = """
import pytest

from calltape_analyzer.testing import assert_replays
from house import House


@pytest.mark.tape("fixtures/house.tape")
def test_house(tape):
    assert_replays(tape, House())
"""


def entry_point() -> str:
    """The declaration of the plugin, as installers write it down."""
    text = (ROOT / "analyzer/pyproject.toml").read_text()
    match = re.search(r'^\[project\.entry-points\.pytest11\]\n(\w+) = "([\w.:]+)"$', text, re.M)
    assert match is not None
    return f"[pytest11]\n{match[1]} = {match[2]}\n"


class Ran:
    """A run of pytest: its exit code, what it printed, and how each test ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.text = done.stdout + done.stderr
        found = re.findall(
            r"^(?:\[gw\d\] *\[ *\d+%\] )?(PASSED|FAILED|ERROR) (\S+)", self.text, re.M
        )
        found += [
            (b, a) for a, b in re.findall(r"^(\S+::\S+) (PASSED|FAILED|ERROR)", self.text, re.M)
        ]
        self.outcomes = {name.partition("::")[2]: outcome for outcome, name in found}


class Project:
    """Files of a project, and its tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "their_house"
        self.folder.mkdir()
        installed = folder / "site"
        info = installed / "calltape_plugin_of_tests-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: calltape-plugin-of-tests\nVersion: 0\n"
        )
        (info / "entry_points.txt").write_text(entry_point())
        paths = [str(installed), *(str(Path(one).resolve()) for one in sys.path if one)]
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))},
            "PYTHONPATH": ":".join([str(self.folder), *paths]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "160",
        }
        self.write("house.py", MODEL)
        self.write("pytest.ini", "[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def tape(self, name: str = "tests/fixtures/house.tape") -> Path:
        """A tape of four calls: two sizes, an exception, a number."""
        scope: dict[str, Any] = {"__name__": "house"}
        exec(MODEL, scope)
        house = scope["House"]()
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        import torch

        x, wide = torch.arange(12.0).reshape(4, 3), torch.ones(5, 3)
        unlucky = torch.zeros(13, 3)
        return write_tape(
            path,
            [
                call(x).returns(house(x)),
                call(wide).returns(house(wide)),
                call(unlucky).raises(ValueError("13 is unlucky")),
                call(x, scale=0.5).returns(house(x, scale=0.5)),
            ],
            house,
        )

    def run(self, *options: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", *options],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
            timeout=240,
        )  # fmt: skip
        return Ran(done)
