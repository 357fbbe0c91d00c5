"""Programs that are for one value of a tensor: what is said of them, and of calls with others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import ExportOptions, NoVariant, Programs, Tape, check, export
from calltape_analyzer.exporting import variant_export
from calltape_analyzer.exporting.inspection.untraceable import unread_inputs
from tests.analyzer.exported import call, taped
from tests.analyzer.exporting.models import Model

GRIDS = [[1, 2], [2, 2], [3, 2]]


class Windows(Model):
    """Takes as many windows as a tensor tells, in a loop of Python."""

    def forward(self, x, grid):
        ((count, width),) = grid.tolist()
        return torch.stack([x[:, i : i + width].sum() for i in range(count)])


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tape, Programs]:
    """A variant gets one program by the values of a call, and one with a constant tensor."""
    monkeypatch.setattr(variant_export, "MAX_PROGRAMS", 1)
    monkeypatch.setattr(variant_export, "MAX_CONSTANTS", 1)
    calls = [call(torch.ones(3, 5), torch.tensor([grid])) for grid in GRIDS]
    tape = taped(tmp_path, Windows(), calls)
    return tape, export(tape, Windows())


def test_a_report_says_what_is_constant(exported: tuple[Tape, Programs]) -> None:
    tape, programs = exported
    by_values, constant = programs
    assert (by_values, constant) == ("main", "main, grid=[[1, 2]]")
    report = programs.verify()
    assert [row.ok for row in report] == [True, False, False]
    notes = [*map(str, report.notes)]
    assert f"{constant}: grid is a constant of it: calls with another value of it are rejected" in (
        notes
    )
    values = "main: was traced with the values of one call: calls with others may be rejected"
    assert values in notes
    # Only a run tells whether a program takes the values of a call.
    found = check(tape, programs)
    assert found.ok
    assert [*map(str, found.notes)] == [
        "main: only a run checks guards on values of tensors, and may reject calls that are "
        "accepted here"
    ]


def test_calls_with_other_values_are_not_called_served(
    exported: tuple[Tape, Programs], tmp_path: Path
) -> None:
    tape, programs = exported
    only = Programs([programs["main, grid=[[1, 2]]"]], programs.sorter)
    only.save(tmp_path / "saved")
    for target in (only, tmp_path / "saved"):
        rows = check(tape, target).rows
        assert [row.ok for row in rows] == [True, False, False]
        assert str(rows[1].error) == (
            "main, grid=[[1, 2]]: grid is [[2, 2]]; this program has [[1, 2]]"
        )
    with pytest.raises(NoVariant, match=r"grid is .* this program has"):
        only(torch.ones(3, 5), torch.tensor([GRIDS[1]]))


class Told(Model):
    """Python makes a text of values, which a trace does not see."""

    def forward(self, x, ids):
        return x * len(str(ids.tolist()))


class Sized(Model):
    """Only the size of a tensor counts."""

    def forward(self, x, ids):
        return x * ids.shape[0]


class Filled(Model):
    """Writes values into what it returns, in place."""

    def forward(self, x, ids):
        made = torch.zeros_like(x)
        made[: ids.shape[0]] = ids[:, None]
        return x + made


class Checked(Model):
    """Values decide, and nothing else depends on them."""

    def forward(self, x, ids):
        torch._check(ids[0].item() > 0)
        return x + 1


@pytest.mark.parametrize(
    ("module", "is_read"), [(Told(), False), (Sized(), False), (Filled(), True), (Checked(), True)]
)
def test_inputs_that_nothing_reads_are_named(module: Model, is_read: bool) -> None:
    given = (torch.ones(5, 3), torch.tensor([1, 2, 3]))
    exported = torch.export.export(module, given, strict=False)
    assert unread_inputs(exported, ["x", "ids"]) == ([] if is_read else ["ids"])


def test_a_report_names_them(tmp_path: Path) -> None:
    calls = [call(torch.ones(n, 3), torch.tensor([1, 2, 3])) for n in (2, 3)]
    tape = taped(tmp_path, Sized(), calls)
    programs = export(tape, Sized(), options=ExportOptions(probe="none"))
    assert "main: nothing of it depends on the values of ids" in map(str, programs.verify().notes)
