"""``info --markdown``: nothing private, nothing that breaks out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.markdown import public_class, public_condition, tape_summary
from calltape_analyzer.observing.layout import ArgumentLayout, LeafPath
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


def test_a_key_is_never_taken_for_an_axis_or_a_name(tmp_path: Path) -> None:
    found = [
        Recorded(
            (torch.zeros(2, size),),
            {
                "ints": {"k[0]": TOKEN * size},
                "tensors": {f"u[{TOKEN}]": torch.zeros(size), f"{SECRET}@x": torch.zeros(2 * size)},
            },
        )
        for size in (3, 4, 7)
    ]
    with open_tape(write_tape(tmp_path / "a.tape", found, target=Model())) as tape:
        text = tape_summary(tape)
    for secret in (SECRET, *(str(TOKEN * factor) for factor in (1, 3, 7))):
        assert secret not in text, (secret, text)
    assert "| `x_dim_1` | `3..7` | `3` |" in text
    assert "| `?` | `6..14` | `3` |" in text


@pytest.mark.parametrize(
    ("key", "condition", "shown"),
    [
        ("x", Fixed(Column(0, 0), 1), "x.x[0] = 1"),
        ("x", Fixed(Column(0, 0), 1, negated=True), "x.x[0] > 1"),
        ("n[0]", Fixed(Column(0, None), TOKEN), "x.? = ?"),
        (f"{SECRET} key", Fixed(Column(0, 0), 3, negated=True), "x.? != 3"),
        (f"u[{TOKEN}]", Fixed(Column(0, 0), 3), "x.? = 3"),
        ("x", CounterIs(Column(0, None), Column(0, 2), open=False), "window full"),
        (SECRET, object(), "?"),
    ],
)
def test_conditions_keep_sizes_and_no_values(key: str, condition: Any, shown: str) -> None:
    layout = ArgumentLayout(
        keys=(), nodes={}, positional=0,
        tensors=(LeafPath("x", f".{key}", "tensor", 0, is_public=key == "x"),),
        scalars=(LeafPath("x", f".{key}", "int", 0),),
    )  # fmt: skip
    assert public_condition(condition, layout) == shown


def test_classes_are_names() -> None:
    assert public_class("builtins:ValueError") == "builtins:ValueError"
    assert public_class(f"a:{SECRET} b") == public_class("a" * 129) == "?"


def test_markdown_and_json_exclude_each_other(tape_path: Path) -> None:
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
