"""docs/remote.md has the numbers and the errors of the code, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calltape_analyzer import opening
from calltape_analyzer.reading import files, remote, tape_file

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "remote.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"{remote.SECONDS:g} seconds" in TEXT
    assert f"`{remote.VARIABLE}`" in TEXT
    assert (remote.MOST_FAILED, remote.SILENT_SECONDS) == (2, 30)
    assert (
        "two files in a row failed, so calltape sends the server no requests for half a minute"
        in TEXT
    )
    assert remote.TRUSTED_SECONDS == 2
    assert "and every two seconds in other stores" in TEXT
    assert f"{files.MOST_NAMES:,} files" in TEXT
    assert f"an unsealed tape | one for up to {remote.LAST_PIECE // 2**20} MiB |" in TEXT
    assert f"of a call | one for up to {remote.MOST_ASKED // 2**20} MiB |" in TEXT
    assert f"caches up to {remote.MOST_CACHED // 2**20} MiB" in TEXT
    assert f"opens {opening.AT_A_TIME} files in a directory at a time" in TEXT


@pytest.mark.parametrize("error", re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)[-5:])
def test_its_errors_are_those_of_the_code(error: str) -> None:
    sources = (Path(module.__file__ or "") for module in (remote, files, tape_file))
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    # What varies in a message is between braces there.
    words = re.escape(error).replace("60", r"\{[^}]+\}").replace("100,000", r"\{[^}]+\}")
    assert re.search(words, code)


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)[^)]*\)", PAGE))
def test_links_lead_somewhere(target: str) -> None:
    assert (DOCS / target).exists() or target.startswith("https")
