"""The site of the documentation: what is added to the pages that the theme makes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
_EXTENSIONS = Path(__file__).parents[1] / "docs" / "extensions"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            '<p class="caption" role="heading"><span>',
            '<p class="caption" role="heading" aria-level="2"><span>',
        ),
        ("<pre>x</pre>", '<pre tabindex="0">x</pre>'),
        (
            '<div class="table-wrapper docutils container">',
            '<div class="table-wrapper docutils container" tabindex="0">',
        ),
        ("<p>&lt;pre&gt;</p>", "<p>&lt;pre&gt;</p>"),
    ],
)
def test_what_is_scrolled_can_have_the_focus(
    made: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(_EXTENSIONS))
    from accessible import accessible

    assert accessible(made) == expected
    assert accessible(expected) == expected
    sys.modules.pop("accessible")


def test_rows_of_a_file_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("calltape_analyzer")
    monkeypatch.syspath_prepend(str(_EXTENSIONS))
    from generated_parts import rows_as_markdown

    file = tmp_path / "rows.csv"
    file.write_text('kind,name,one,two\na,x,1,\na,y,"p|q <b> *",\nb,z,,2\n')
    assert rows_as_markdown(file).splitlines() == [
        "### a", "", "| name | one |", "| --- | --- |", "| `x` | 1 |",
        r"| `y` | p\|q \<b> \* |", "",
        "### b", "", "| name | two |", "| --- | --- |", "| `z` | 2 |",
    ]  # fmt: skip
