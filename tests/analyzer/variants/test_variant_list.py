"""``tape.variants()`` is a list that a REPL and a notebook show as ``calltape variants`` does."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
import torch

from calltape_analyzer import Variant, VariantList, open_tape
from calltape_analyzer import text as words
from calltape_analyzer.variants.variant_findings import VariantTable
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three variants: by rank, with an int, a constant, a layout and a warning."""
    calls = [Recorded((torch.zeros(2 + i, 8),), {"n": i, "mode": "a"}) for i in range(4)]
    calls += [Recorded((torch.zeros(4, 2 + i).t(),), {"mask": torch.ones(1)}) for i in range(2)]
    calls += [Recorded((torch.zeros(1, 2, 3),))]
    return write_tape(tmp_path / "a.tape", calls)


def test_a_repl_shows_what_the_command_prints(path: Path) -> None:
    with open_tape(path) as tape:
        variants = tape.variants()
        assert len(variants) == 3
        assert f"{variants!r}\n" == run("variants", path).out
        assert str(variants) == repr(variants)
        assert repr(variants[1:]) in repr(variants)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_repl_fits_the_terminal_as_the_command_does(
    path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(words, "is_terminal", lambda stream: True)
    with open_tape(path) as tape:
        shown = repr(tape.variants())
    assert max(map(len, shown.splitlines())) <= columns
    assert f"{shown}\n" == re.sub(r"\x1b\[\d*m", "", run("variants", path).out)


def test_variants_are_a_list(path: Path) -> None:
    with open_tape(path) as tape:
        variants = tape.variants()
        assert isinstance(variants, list)
        assert isinstance(variants[0], Variant)
        assert isinstance(variants[:2], VariantList)
        assert [variant.name for variant in variants[:2]] == [variant.name for variant in variants][
            :2
        ]
        assert isinstance(tape.only(variant=0).variants(), VariantList)
        assert repr(variants[:0]) == "[]"


def test_a_notebook_shows_the_same_rows(path: Path) -> None:
    with open_tape(path) as tape:
        variants = tape.variants()
        shown = variants._repr_html_()
        assert shown is not None
        cells = set(map(unescape, re.findall(r"<t[dh]>(.*?)</t[dh]>", shown)))
        for variant in variants:
            table = VariantTable.of(variant)
            assert f"<strong>{table.name}: {table.calls}</strong>" in unescape(shown)
            assert {cell for row in (*table.arguments, *table.symbols) for cell in row} - {
                ""
            } <= cells
            assert variant._repr_html_() in shown


def test_the_page_of_the_viewer_gets_the_same_rows(path: Path) -> None:
    with open_tape(path) as tape:
        for variant in tape.variants():
            table = VariantTable.of(variant)
            tables = {tuple(given["head"]): given["rows"] for given in table.document()["tables"]}
            assert tables[("argument", "dtype", "shape or value")] == table.arguments
            assert tables.get(("symbol", "sizes", "always"), ()) == table.symbols


def test_of_many_the_first_are_shown(tmp_path: Path) -> None:
    calls = [Recorded((torch.zeros([1] * rank),)) for rank in range(23)]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        variants = tape.variants()
        assert len(variants) == 23
        assert repr(variants).endswith("\n\nand 3 more variants")
        assert "and 3 more variants" in str(variants._repr_html_())


def test_without_an_answer_it_is_shown_as_a_list(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Variant) -> None:
        raise RuntimeError

    with open_tape(path) as tape:
        found = tape.variants()[2:]
        monkeypatch.setattr("calltape_analyzer.variant.VariantTable.of", fail)
        assert repr(found) == f"[<Variant {found[0].name}: 1 call>]"
        assert found._repr_html_() is None
