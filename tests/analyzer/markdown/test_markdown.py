"""``info --markdown``: nothing private, nothing that breaks out."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.markdown import public_class, public_condition, public_place, tape_summary
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.variants.facts import CounterIs, Fixed
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape

SECRET = "SECRETprompt"
TOKEN = 31337
ATTACK = f"{SECRET} `x` ```\n| a | </details> <img src=x> \x1b[31m @octocat #1 \u202e"


class Model(torch.nn.Module):
    def forward(self, x: Any, prompt: str = f"{SECRET} default", n: int = 0, **more: Any) -> Any:
        return x + 1


def calls(sizes: tuple[int, ...]) -> list[Any]:
    found: list[Any] = [
        Recorded(
            (torch.full((size, 3), float(TOKEN)),),
            {"prompt": f"{ATTACK}{size}", "n": TOKEN, ATTACK: torch.zeros(size)},
            outputs={"y": torch.zeros(size, 3), ATTACK: torch.zeros(2)},
        )
        for size in sizes
    ]
    found.append(
        Recorded((torch.zeros(2, 3),), {"prompt": "bad"}, error=("builtins:ValueError", ATTACK))
    )
    return found


@pytest.fixture
def tape_path(tmp_path: Path) -> Path:
    folder = tmp_path / f"{SECRET}folder"
    folder.mkdir()
    return write_tape(
        folder / "a.tape", calls((2, 5)), target=Model(),
        producer={"host": f"{SECRET}host", "torch": "2.15.0", "platform": ATTACK},
        dropped={ATTACK: 2},
    )  # fmt: skip


@pytest.fixture
def text(tape_path: Path) -> str:
    code, out, _ = run("info", tape_path, "--markdown")
    assert code == 0
    return out


def test_nothing_private_is_told(text: str, tmp_path: Path) -> None:
    for secret in (SECRET, SECRET.lower(), str(TOKEN), "octocat", str(tmp_path), "<img"):
        assert secret not in text, (secret, text)


def test_what_is_of_use_is_told(text: str) -> None:
    assert "recorded with" in text
    assert "2.15.0" in text
    assert "float32" in text
    assert "ValueError" in text
    assert "`2..5`" in text
    assert "3 of 5 kept" in text


def test_nothing_breaks_out(text: str) -> None:
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text) <= 60_000
    outside = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    for mark in ("<", "@", "#1", "http", "[", "\\"):
        assert mark not in outside, (mark, outside)
    for line in outside.split("\n"):
        if line.startswith("|"):
            assert set(line) <= set("| -,abcdefghijklmnopqrstuvwxyz"), line


def test_places_keep_names_and_axes() -> None:
    assert public_place(f"x.{SECRET} key.0") == "x.?"
    assert public_place("x.layers.*.keys[2]") == "x.layers.*.keys[2]"
    assert public_place(f"x[{SECRET}]") == "x"


@pytest.mark.parametrize(
    ("name", "condition", "shown"),
    [
        ("x[0]", Fixed(Column(0, 0), 1), "x[0] = 1"),
        ("x[0]", Fixed(Column(0, 0), 1, negated=True), "x[0] > 1"),
        ("n", Fixed(Column(0, None), TOKEN), "n = ?"),
        (f"x.{SECRET} key[0]", Fixed(Column(0, 0), 3, negated=True), "x.? != 3"),
        ("x", CounterIs(Column(0, None), Column(0, 2), open=False), "window full"),
        (SECRET, object(), "?"),
    ],
)
def test_conditions_keep_sizes_and_no_values(name: str, condition: Any, shown: str) -> None:
    layout: Any = SimpleNamespace(column_name=lambda column: name)
    assert public_condition(condition, layout) == shown


def test_classes_are_names() -> None:
    assert public_class("builtins:ValueError") == "builtins:ValueError"
    assert public_class(f"a:{SECRET} b") == public_class("a" * 129) == "?"


def test_forms_that_contradict(tape_path: Path) -> None:
    assert run("info", tape_path, "--markdown", "--json").code == 2


def test_the_function_and_the_command_agree(tape_path: Path) -> None:
    with open_tape(tape_path) as tape:
        assert tape_summary(tape) == run("info", tape_path, "--markdown").out


def test_damage_is_counted_and_not_quoted(tape_path: Path) -> None:
    data = bytearray(tape_path.read_bytes())
    at = data.find(torch.full((1, 3), float(TOKEN)).numpy().tobytes())
    data[at] ^= 0xFF
    tape_path.write_bytes(data)
    code, out, err = run("info", tape_path, "--markdown")
    assert code == 3
    assert "| `damaged` | `1` |" in out
    assert SECRET not in out
    assert "checksum" in err
