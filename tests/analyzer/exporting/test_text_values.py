"""Texts and floats that vary from call to call: one program where they make no difference, one per
value where they do, and never a wrong result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import NoVariant, export, load_programs
from calltape_analyzer.programs.notes import ConstantTexts
from calltape_analyzer.programs.reasons import ValuesLeft
from tests.analyzer.exported import Call, call, made, taped

PROMPTS = [f"my secret number {n} is {n * n}" for n in range(6)]


class Scaled(torch.nn.Module):
    """Notes what it is told, and does not care."""

    def forward(self, x: Any, prompt: str = "", scale: float = 1.0) -> Any:
        return torch.tanh(x) * scale


class Raised(Scaled):
    """Has Python read the float, so that it is no input."""

    def forward(self, x: Any, prompt: str = "", scale: float = 1.0) -> Any:
        return torch.tanh(x) * math.exp(scale)


class Heard(Scaled):
    """Counts the characters."""

    def forward(self, x: Any, prompt: str = "", scale: float = 1.0) -> Any:
        return torch.tanh(x) * len(prompt)


def calls_with(name: str, values: list[Any], sizes: int = 3) -> list[Call]:
    return [call(torch.randn(2 + n % sizes, 4), **{name: v}) for n, v in enumerate(values)]


def test_a_text_that_makes_no_difference_is_no_reason_for_another_program(tmp_path: Path) -> None:
    module = Scaled().eval()
    programs = export(taped(tmp_path, module, calls_with("prompt", PROMPTS)), module)
    assert list(programs) == ["main"]
    assert programs.verify().ok
    notes = [str(n) for n in programs["main"].notes if isinstance(n, ConstantTexts)]
    assert notes[0].startswith("prompt varies from call to call and is a constant of it")
    tried = f"(texts of lengths {min(map(len, PROMPTS))}..{max(map(len, PROMPTS))}) were tried"
    assert tried in notes[0]
    assert notes[0].endswith("others are served too, and nothing was shown of them")
    x = torch.randn(7, 4)
    torch.testing.assert_close(programs(x, prompt="never seen"), torch.tanh(x))


@pytest.mark.integration
@pytest.mark.parametrize(("options", "sizes"), [({}, 1), ({"values": "none"}, 14)])
def test_a_float_that_matters_makes_a_program_per_value_and_never_a_wrong_result(
    tmp_path: Path, options: dict[str, Any], sizes: int
) -> None:
    values = [0.25 + n for n in range(14)]
    tape = taped(tmp_path, Raised(), calls_with("scale", values, sizes), **options)
    (variant,) = tape.variants()
    assert len(variant) == 14
    programs = export(tape, Raised())
    assert list(programs) == [f"main, scale={value}" for value in values[:3]]
    report = programs.verify()
    assert [row.ok for row in report] == [True] * 3 + [False] * 11
    assert not any(row.variant for row in report if not row.ok)  # refused, not wrong
    assert programs.missing["main, other values of scale"] == ValuesLeft(11, 14, 3)
    x = torch.randn(30 if sizes > 1 else 2, 4)  # a size that no call had with this value
    torch.testing.assert_close(programs(x, scale=2.25), torch.tanh(x) * math.exp(2.25))
    with pytest.raises(NoVariant, match=r"scale is 0\.5; this program has 0\.25"):
        programs(x, scale=0.5)


@pytest.mark.integration
def test_no_private_text_is_said(tmp_path: Path) -> None:
    module = Heard()
    programs = export(taped(tmp_path, module, calls_with("prompt", PROMPTS)), module)
    assert list(programs)[1] == "main, prompt of value 2"
    report = programs.verify()
    assert report.ok
    with pytest.raises(NoVariant) as refused:
        programs(torch.randn(2, 4), prompt="my secret of fifty")
    said = [str(refused.value), report.table(), repr(programs)]
    said += [f"{a!r} {a.error} {a.remark}" for a in programs.attempts]
    said += [f"{note!r} {note}" for program in programs.values() for note in program.all_notes]
    assert not [text for text in said if "secret" in text]


@pytest.mark.integration
def test_saved_programs_are_for_their_values_still(tmp_path: Path) -> None:
    values = [0.25, 1.5, 4.0]
    tape = taped(tmp_path, Raised(), calls_with("scale", values))
    export(tape, Raised()).save(tmp_path / "saved")
    programs = load_programs(tmp_path / "saved", trusted=True)
    assert len(programs) == 3
    assert programs.verify(tape).ok
    with pytest.raises(NoVariant):
        programs(torch.randn(2, 4), scale=0.5)


def test_a_switch_is_a_program_of_its_own(tmp_path: Path) -> None:
    calls = [call(torch.randn(n, 4), prompt=s) for n in (2, 3) for s in ("sum", "max")]
    programs = export(taped(tmp_path, Scaled(), calls), Scaled())
    assert list(programs) == ["prompt='sum'", "prompt='max'"]
    assert programs.verify().ok


class HeardAtLength(Scaled):
    """Counts the characters where there are many rows."""

    def forward(self, x: Any, prompt: str = "", scale: float = 1.0) -> Any:
        return torch.tanh(x) + len(prompt) if x.shape[0] > 6 else torch.tanh(x)


class HeardAbove(Scaled):
    """Counts the characters where values are large."""

    def forward(self, x: Any, prompt: str = "", scale: float = 1.0) -> Any:
        return torch.tanh(x) + len(prompt) if x.sum() > 0 else torch.tanh(x)


@pytest.mark.parametrize("model", [HeardAtLength(), HeardAbove()])
def test_a_text_is_a_constant_only_of_the_program_that_depends_on_it(
    tmp_path: Path, model: torch.nn.Module
) -> None:
    own = [(2, -1.0, "a"), (3, -1.0, "bb"), (4, -1.0, "ccc"), (8, 1.0, "dd"), (9, 1.0, "dd")]
    calls = [call(torch.full((rows, 4), value), prompt) for rows, value, prompt in own]
    programs = made(tmp_path, model, calls, [call(-torch.ones(5, 4), "another one")])
    with pytest.raises(NoVariant, match="prompt is text of 11 characters"):
        programs(torch.ones(10, 4), "another one")
