"""A reader of this version, as it is today, reads what later versions write as FORMAT.md promises,
whatever becomes of the code that it was made from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixture_files import FIXTURES
from tests.frozen.__main__ import ARCHIVE

sys.path.insert(0, str(FIXTURES))

from run_conformance import compare  # isort: skip


@pytest.mark.parametrize("part", ["future", "v1"])
def test_the_frozen_reader_reads_all_fixtures(part: str) -> None:
    paths = sorted((FIXTURES / part).glob("*.tape"))
    command = [sys.executable, "-I", ARCHIVE, *paths]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths) > 10
    name = {"v1": "golden"}.get(part, part)
    wrong = {
        path.stem: why
        for path, line in zip(paths, lines, strict=True)
        for expected in [json.loads(path.with_suffix(".json").read_text())]
        for is_right, why in [compare(name, expected, json.loads(line))]
        if not is_right
    }
    assert wrong == {}


def test_the_frozen_reader_reads_with_its_own_schema() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import calltape_schema as one; "
    code += "print(one.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, ARCHIVE], check=True, stdout=subprocess.PIPE, text=True
    )
    assert Path(done.stdout.strip()).is_relative_to(ARCHIVE)
