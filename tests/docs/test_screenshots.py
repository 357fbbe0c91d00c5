"""The pictures of the pages are what the script makes, and what the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from tests.browser import MISSING
from tests.docs.page import DOCS
from tests.docs.screenshots import FOLDER, NAMES, make

SHOWN = re.compile(r"!\[([^\]]+)\]\(screenshots/([\w-]+)\.png\)")


def test_each_picture_is_shown_with_words_and_made_by_the_script() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))]
    shown = [name for text in texts for _, name in SHOWN.findall(text)]
    assert sorted(shown) == sorted(NAMES)
    assert sorted(path.stem for path in FOLDER.glob("*.png")) == sorted(NAMES)
    assert sum(text.count(".png)") for text in texts) == len(shown), "others are made by nobody"


@pytest.mark.integration
@pytest.mark.skipif(MISSING, reason="no chromium and chromium-driver on this machine")
def test_the_script_makes_them(tmp_path: Path) -> None:
    for made in make(tmp_path / "made"):
        there = FOLDER / made.name
        with Image.open(made) as new, Image.open(there) as old:
            assert new.size == old.size
            assert len(new.getcolors() or ()) > 16, "something is drawn"
