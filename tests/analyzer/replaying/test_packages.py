"""A package of AOTInductor, which does not look at the strides of its inputs, gets copies; and that
is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import Tape, export, replay
from calltape_analyzer.programs.notes import SeveralLayouts
from tests.analyzer.exported import call, taped


class AOTICompiledModel:
    """Stands for the class of that name: it computes on the memory of its input."""

    def __init__(self) -> None:
        self.were_contiguous: list[bool] = []

    def __call__(self, x: Any) -> Any:
        self.were_contiguous.append(x.is_contiguous())
        return x.as_strided(x.shape, (x.shape[1], 1)) * 2


class Twice(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2


def tape_of(folder: Path, *, spread: bool) -> Tape:
    plain = [torch.rand(n, 3) for n in (2, 4)]
    other = [torch.rand(3, n).t() for n in (3, 5)] if spread else [torch.rand(3, 3)]
    return taped(folder, Twice(), [call(x) for x in (*plain, *other)])


def test_what_was_copied_is_said(tmp_path: Path) -> None:
    target = AOTICompiledModel()
    report = replay(tape_of(tmp_path, spread=True), target)
    assert report.ok
    assert all(target.were_contiguous)
    (note,) = report.notes
    assert str(note).startswith("2 calls got contiguous copies of tensors")


def test_nothing_is_said_where_nothing_was_copied(tmp_path: Path) -> None:
    report = replay(tape_of(tmp_path, spread=False), AOTICompiledModel())
    assert report.ok
    assert report.notes == []


def test_an_export_warns_where_layouts_vary(tmp_path: Path) -> None:
    (note,) = export(tape_of(tmp_path, spread=True), Twice()).notes
    assert note == SeveralLayouts(("x",))
    other = tmp_path / "other"
    other.mkdir()
    assert export(tape_of(other, spread=False), Twice()).notes == ()
