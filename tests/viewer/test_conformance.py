"""The viewer's reader is the second implementation of the format: it conforms, and on mutants it
says what calltape's own reader says."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixture_files import FIXTURES
from tests.schema.container.test_mutants import SOURCE, mutant
from tests.viewer.node import NODE, VIEWER, node

import calltape_reader  # isort: skip
import run_conformance  # isort: skip

pytestmark = pytest.mark.integration

READER = VIEWER / "conformance.mjs"


def test_the_viewer_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, FIXTURES / "run_conformance.py", "--", NODE, READER]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    with capsys.disabled():
        print(f"\nthe viewer under Node: {', '.join(done.stdout.splitlines()[:3])}")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in run_conformance.PARTS:
        tapes = len(list(run_conformance.tapes(part)))
        assert tapes > (5 if part == "future" else 60)
        assert f"{part}: {tapes} of {tapes} tapes" in done.stdout
    # Nothing is left out.
    assert "without" not in done.stdout


def test_a_reader_without_a_rule_does_not_conform(tmp_path: Path) -> None:
    """The run can fail: without the check of a checksum, the hostile tape of it does."""
    copy = tmp_path / "viewer"
    copy.mkdir()
    for file in VIEWER.rglob("*.mjs"):
        place = copy / file.relative_to(VIEWER)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        changed = text.replace("if (crc32(payload) !== checksum) {", "if (false) {")
        assert (changed != text) == (file.name == "documents.mjs")
        place.write_text(changed, encoding="utf-8")
    command = [sys.executable, FIXTURES / "run_conformance.py", "--only", "envelope_wrong", "--"]
    done = subprocess.run(
        [*command, NODE, copy / "conformance.mjs"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "hostile: 0 of 1 tapes" in done.stdout


def test_a_command_line_without_a_tape_is_wrong() -> None:
    done = node(READER)
    assert done.returncode == 2
    assert re.match("usage: ", done.stderr)


def test_equal_tapes_give_equal_json(tmp_path: Path) -> None:
    """The name of the file is no part of it."""
    path, other = tmp_path / "one.tape", tmp_path / "other name.tape"
    for file in (path, other):
        file.write_bytes(SOURCE)
    one, two = (json.loads(node(READER, file).stdout) for file in (path, other))
    assert one == two


def test_both_readers_say_the_same_of_mutants(tmp_path: Path) -> None:
    """Tapes changed by grammar, with right checksums: two readers that share no code agree."""
    paths = [tmp_path / f"{seed}.tape" for seed in range(150)]
    for seed, path in enumerate(paths):
        path.write_bytes(mutant(random.Random(seed)))
    done = node(READER, *paths)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    found = [json.loads(json.dumps(calltape_reader.document(str(path)))) for path in paths]
    assert sum(bool(one.get("damage")) for one in found) > 50
    assert sum(len(one.get("calls", ())) for one in found) > 1000
    for path, theirs, ours in zip(paths, answers, found, strict=True):
        differences = list(run_conformance.differences(plain(ours), plain(theirs), "", frozenset()))
        assert differences == [], path.name


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """What was found, without the kinds of errors: of two things that are wrong, a reader may see
    the one first or the other."""
    if "refused" in found:
        return {"refused": True}
    calls = [call | {"values": call["values"] == "ok"} for call in found["calls"]]
    return found | {"calls": calls, "damage": bool(found["damage"])}
