"""``make house`` counts what it says it counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house import code_lines, main, private_functions, private_touches

MODULE = '''"""About it."""

import os  # counted


# not counted
class Shelf:
    """Not counted,
    on both lines."""

    width: int = 1
    """Not counted either."""

    def _once(self) -> str:
        return """counted,
        on both lines"""

    def _twice(self) -> str:
        return self._once() + self._never() + _of_the_module()


def _of_the_module() -> str:
    return _of_the_module() + Shelf()._twice() + Shelf()._twice()
'''


def test_lines_of_code_have_no_docstrings_comments_and_blanks() -> None:
    assert code_lines(MODULE) == 10
    assert code_lines("") == 0


def test_uses_of_private_functions_are_counted_by_module(tmp_path: Path) -> None:
    path = tmp_path / "shelf.py"
    path.write_text(MODULE)
    assert private_functions(path) == {"_once": 1, "_twice": 2, "_of_the_module": 2}


def test_what_a_test_touches_of_others_is_counted() -> None:
    private = {"_once", "_twice", "_of_the_module"}
    touches = """
from calltape_analyzer.shelf import Shelf, _of_the_module
from elsewhere import _twice
class Own(Shelf):
    def ask(self): return self._once()
shelf._twice = 1
shelf._of_torch()
monkeypatch.setattr(shelf, "_once", None)
monkeypatch.setattr("calltape_analyzer.shelf._twice", None)
"""
    names = sorted(name for _, name in private_touches(touches, private))
    assert names == ["_of_the_module", "_once", "_twice", "_twice"]


def test_a_name_that_the_test_defines_itself_is_its_own() -> None:
    defines = "class Own:\n    def _once(self): ...\nOwn()._once()"
    assert private_touches(defines, {"_once"}) == []


@pytest.mark.integration  # parses every module several times
def test_the_command_prints_a_line_for_each_distribution(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main()
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[1:4]] == [
        "schema", "recorder", "analyzer",
    ]  # fmt: skip
    assert re.search(r"tests touch: [\d,]+\n", printed)
