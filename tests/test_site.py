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
