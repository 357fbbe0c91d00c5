"""Hostile files: refused or read around, never obeyed."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import TapeError, open_tape, render
from calltape_schema.reader import TapeReader
from calltape_schema.storage import BytesSource
from calltape_schema.tar import END_MEMBER
from tests.fixture_files import FIXTURES
from tests.schema.container.tapes import counted, tensor

HOSTILE = FIXTURES / "hostile"
EXPECTED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(HOSTILE.glob("*.json"))
}


_ANSWERS = "refused", "calls", "damage"


def outcome(path: Path) -> dict[str, Any]:
    """What a reader makes of a file: everything that can be asked is asked."""
    try:
        tape = open_tape(str(path))
    except TapeError as error:
        check_message(error)
        return {"refused": error.kind}
    readable, errors = [], []
    for call in tape.calls if tape.calls.has_single_calls else ():
        try:
            assert call.inputs is not None
            assert render(call.record.inputs).isprintable()
            assert render(call.inputs).isprintable()
            assert call.outputs is None
            readable.append(str(call.number))
        except TapeError as error:
            errors.append(error)
    errors += tape.verify()
    try:
        _ = tape.single.findings
    except TapeError as error:
        check_message(error)
    for error in errors:
        check_message(error)
        assert error.offset is not None or error.member == END_MEMBER
    tape.close()
    return {"calls": readable, "damage": sorted({e.kind for e in errors})}


def check_message(error: TapeError) -> None:
    assert str(error).isprintable()
    assert str(error).endswith(".")
    assert len(str(error)) < 3000


@pytest.mark.parametrize("name", EXPECTED)
def test_a_reader_does_exactly_what_it_must(name: str) -> None:
    expected = {key: value for key, value in EXPECTED[name].items() if key in _ANSWERS}
    assert outcome(HOSTILE / f"{name}.tape") == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_the_schema_alone_raises_nothing_else(name: str) -> None:
    data = (HOSTILE / f"{name}.tape").read_bytes()
    damage: list[TapeError] = []
    try:
        reader = TapeReader(BytesSource(data))
    except TapeError as error:
        check_message(error)
        return
    for at in range(len(reader.scan())):
        try:
            record = reader.record_at(at)
            for tree in (record.inputs, record.outputs):
                for leaf in () if tree is None else tree.facts():
                    if leaf.key is not None:
                        tensor(reader, record, leaf)
                if tree is not None:
                    tree.spec()
        except TapeError as error:
            damage.append(error)
    counted(reader, damage.append)
    damage += reader.scan().damage
    for error in damage:
        check_message(error)


def test_every_hostile_file_is_expected() -> None:
    assert {path.stem for path in HOSTILE.glob("*.tape")} == set(EXPECTED)
    assert len(EXPECTED) > 130


# An audit hook cannot be removed, so this runs in a process of its own.
PROGRAM = """
import sys, pathlib, resource
import torch, transformers.cache_utils, transformers.modeling_outputs
sys.path.insert(0, {root!r})
from tests.test_hostile_fixtures import outcome, HOSTILE
outcome(pathlib.Path({golden!r}))  # whatever reading imports by itself is imported now
before = set(sys.modules)
allowed = pathlib.Path(torch.__file__).parent.parent
forbidden = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "exec",
             "compile", "socket.connect", "os.remove", "os.rename", "shutil", "urllib.Request")
met = []
def hook(event, args):
    if event == "import":
        met.append((event, args[0]))
    elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        met.append((event, args[0]))
    elif event.startswith(forbidden):
        met.append((event, str(args)[:100]))
sys.addaudithook(hook)
usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(HOSTILE.glob("*.tape")):
    outcome(path)
print(met)
print(sorted(set(sys.modules) - before))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - usage)
"""


@pytest.mark.integration
def test_nothing_is_imported_run_or_written_and_memory_stays() -> None:
    program = PROGRAM.format(
        root=str(FIXTURES.parent), golden=str(FIXTURES / "v1" / "custom_classes.tape")
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    met, modules, kilobytes = done.stdout.splitlines()[-3:]
    assert met == "[]"
    assert modules == "[]"
    assert int(kilobytes) < 200_000


@pytest.mark.integration  # every hostile tape once more
def test_memory_stays_without_torch_too() -> None:
    program = "import sys, resource\n"
    program += "from calltape_analyzer import open_tape, TapeError, render\n"
    program += "from pathlib import Path\n"
    program += "for path in Path(sys.argv[1]).glob('*.tape'):\n"
    program += "    try:\n        tape = open_tape(str(path))\n        tape.verify()\n"
    program += "        [render(call.record.inputs) for call in tape]\n"
    program += "    except TapeError:\n        pass\n"
    program += "assert 'torch' not in sys.modules\n"
    limit = 1 << 31

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-c", program, str(HOSTILE)], capture_output=True, text=True, check=False,
        preexec_fn=bounded, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
