"""The page in one file, made of the modules as they are now."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.viewer.node import VIEWER


@pytest.fixture(scope="session", autouse=True)
def _page() -> None:
    subprocess.run([sys.executable, str(VIEWER / "bundle.py")], check=True, capture_output=True)
