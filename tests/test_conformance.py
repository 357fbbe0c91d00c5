"""The conformance suite: readers that conform, and what the runner says of one that does not."""

from __future__ import annotations

import ast
import json
import math
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixture_files import FIXTURES
from tests.schema import independent_command

import calltape_reader  # isort: skip
import run_conformance  # isort: skip
from elements import elements, float_text  # isort: skip

RUNNER = FIXTURES / "run_conformance.py"
GOLDEN = sorted(run_conformance.tapes("golden"))
EVERY = [(part, path) for part in run_conformance.PARTS for path in run_conformance.tapes(part)]


def judged(part: str, path: Path, found: dict[str, Any]) -> tuple[bool, str]:
    expected = json.loads(path.with_suffix(".json").read_text())
    verdict: tuple[bool, str] = run_conformance.compare(
        part, expected, json.loads(json.dumps(found))
    )
    return verdict


@pytest.mark.parametrize(
    ("part", "path"), EVERY, ids=lambda one: one.stem if isinstance(one, Path) else one
)
def test_our_reader_finds_what_it_must(part: str, path: Path) -> None:
    assert judged(part, path, calltape_reader.document(str(path))) == (True, "")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_independent_reader_finds_the_same(path: Path) -> None:
    found = independent_command.document(path.read_bytes())
    assert judged("golden", path, found) == (True, "without damage")


def ran(*words: str | Path, folder: Path = FIXTURES) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "run_conformance.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_the_runner_needs_nothing_of_ours(tmp_path: Path) -> None:
    """A copy of the folder, a reader of somebody else, and no calltape on the path."""
    suite = tmp_path / "suite"
    shutil.copytree(FIXTURES, suite, ignore=shutil.ignore_patterns("__pycache__", "hostile"))
    imported = {
        name.name.split(".")[0]
        for node in ast.walk(ast.parse(RUNNER.read_text())) if isinstance(node, ast.Import)
        for name in node.names
    }  # fmt: skip
    assert imported <= set(sys.stdlib_module_names)
    reader = Path(independent_command.__file__)
    done = ran(
        "--part", "golden", "--only", "zero", "-v", "--", sys.executable, reader, folder=suite
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "golden: 3 of 3 tapes" in done.stdout
    assert "zero_sizes" in done.stdout
    assert done.stdout.endswith("conforms\n")


BROKEN = {
    "crashes": ("import sys; sys.exit('no luck')", "the command ended with 1: 'no luck'"),
    "prints no JSON": ("print('{')", "no JSON: "),
    "prints a list": ("print([])", "the JSON is no object"),
    "says nothing": ("print({})", '.version is missing, not "1"'),
    "hangs": ("import time; time.sleep(60)", "no answer in 0.5 s"),
}


@pytest.mark.parametrize("way", BROKEN)
def test_the_runner_says_why_a_reader_does_not_conform(way: str) -> None:
    program, reason = BROKEN[way]
    timeout = "0.5" if way == "hangs" else "60"
    done = ran("--part", "golden", "--only", "nothing", "--timeout", timeout, "--",
               sys.executable, "-c", program)  # fmt: skip
    assert done.returncode == 1
    assert reason in done.stdout
    assert "does not conform: 1 of 1 tapes" in done.stdout


def test_no_such_tape_is_a_wrong_command_line() -> None:
    assert ran("--only", "no such tape", "--", "true").returncode == 2


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda found: found["calls"][0].update(thread="8"), '.calls[0].thread is "8", not "7"'),
        (lambda found: found["calls"].pop(), ".calls is "),
        (lambda found: found.update(more=1), ".more is 1, and should not be there"),
        (lambda found: found.update(sealed=1), ".sealed is 1, not true"),
        (lambda found: found.pop("target"), ".target is missing"),
        (lambda found: found.update(damage=["damaged"]), ".damage is "),
        (lambda found: found.clear() or found.update(refused="limit"), ".version is missing"),
    ],
)
def test_each_difference_is_told(change: Any, difference: str) -> None:
    path = FIXTURES / "v1" / "calls.tape"
    found = json.loads(path.with_suffix(".json").read_text())
    change(found)
    ok, text = judged("golden", path, found)
    assert not ok
    assert difference in text


def test_what_a_reader_leaves_out_is_not_compared() -> None:
    path = FIXTURES / "v1" / "calls.tape"
    document = json.loads(path.with_suffix(".json").read_text())
    for call in document["calls"]:
        for leaf in call["inputs"]["leaves"]:
            del leaf["elements"]
    assert not judged("golden", path, document)[0]
    assert judged("golden", path, document | {"leaves_out": ["elements"]}) == (
        True, "without elements"
    )  # fmt: skip


@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
     "float8_e8m0fnu"],
)  # fmt: skip
def test_elements_are_what_torch_says(dtype: str) -> None:
    width = getattr(torch, dtype).itemsize
    patterns = range(256) if width == 1 else range(0, 65536, 7)
    data = b"".join(number.to_bytes(width, "little") for number in patterns)
    values = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).to(torch.float64)
    assert elements(dtype, data) == [float_text(value) for value in values.tolist()]


def test_floats_as_text_are_exact() -> None:
    for value in (0.0, -0.0, 5e-324, math.inf, -math.inf, 0.1, 2.0**53 + 2):
        (back,) = struct.unpack(">d", bytes.fromhex(float_text(value)))
        assert (back, math.copysign(1, back)) == (value, math.copysign(1, value))
    assert float_text(math.nan) == "nan"


def _leaves_of_json(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves_of_json(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves_of_json(item)]
    return [value]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_expected_json_is_of_no_language(path: Path) -> None:
    """Only text, bools, lists and objects: no number that some JSON library would round."""
    text = path.with_suffix(".json").read_bytes()
    assert text.isascii()
    found = {type(leaf) for leaf in _leaves_of_json(json.loads(text))}
    assert found <= {str, bool}
    assert rb"\ud8" not in text.lower().replace(rb"\ud83c\udfac", b"")  # pairs, no lone surrogates
