"""The modules of the viewer by themselves, under Node's own test runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.viewer.node import node

HERE = Path(__file__).parent


@pytest.mark.integration
@pytest.mark.parametrize("file", sorted(HERE.glob("*.test.mjs")), ids=lambda file: file.stem)
def test_modules(file: Path) -> None:
    done = node("--test", file)
    assert done.returncode == 0, done.stdout + done.stderr
