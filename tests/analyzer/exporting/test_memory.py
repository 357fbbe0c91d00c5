"""What a run takes, and what it may take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer.exporting.session import sandbox
from calltape_analyzer.exporting.session.observed_calls import measured
from calltape_analyzer.exporting.session.sandbox import half_of_free


def test_what_is_alive_at_once_is_counted_and_what_was_there_is_not() -> None:
    weight, x = torch.ones(10, 10), torch.ones(10, 10)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(20):
            y = y @ weight.t()  # a view of what was there
        return y

    with torch.no_grad():
        value, peak = measured(chain)
    assert value.shape == (10, 10)
    assert peak == 2 * 400


def test_a_view_is_counted_once_and_what_is_freed_no_more() -> None:
    def views() -> None:
        kept = torch.ones(100)
        assert kept.view(10, 10).t().shape == (10, 10)
        for _ in range(3):
            torch.ones(50)

    assert measured(views).peak == 600


@pytest.mark.integration
def test_what_compiles_itself_is_run_too() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    x = torch.rand(1, 2, 7, 8)
    value, peak = measured(lambda: flex_attention(x, x, x))
    assert value.shape == x.shape
    assert peak >= 4 * x.numel()


def groups(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    monkeypatch.setattr(sandbox, "control_groups", lambda: [folder / "none", folder])
    monkeypatch.setattr(sandbox, "available_bytes", lambda: 1000)


STAT = "anon 5\ninactive_file 40\ntotal_inactive_file 40\n"


def test_the_limit_of_a_group_counts_without_what_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups(tmp_path, monkeypatch, memory__max="400\n", memory__current="140\n", memory__stat=STAT)
    assert half_of_free() == 150


def test_the_limit_of_an_older_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups(tmp_path, monkeypatch, memory__limit_in_bytes="400", memory__usage_in_bytes="240",
           memory__stat=STAT)  # fmt: skip
    assert half_of_free() == 100


@pytest.mark.parametrize("most", ["max\n", str(2**63)])
def test_a_group_without_a_limit_leaves_what_is_available(
    most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups(tmp_path, monkeypatch, memory__max=most, memory__current="1\n", memory__stat=STAT)
    assert half_of_free() == 500


def test_something_is_free_here() -> None:
    assert half_of_free() > 2**20
