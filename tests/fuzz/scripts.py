"""``python -m tests.fuzz scripts``: runs what ``bundle`` writes for forged tapes.

A forged tape has nodes of every kind that name classes; the classes are drawn from all that
``import torch, transformers`` loads, and the attributes from what their code reads. Each round
makes one such tape and a mutant of a golden one, lets the command write scripts and bundles of
them, and runs these in a sandbox (:mod:`tests.security.sandbox`), which
reports each process, each file that is written elsewhere, each socket, and each character that a
terminal would obey. What happens with a harmless tape is allowed: it is measured first.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.forging.strangers import ESCAPES, forged_failure, nodes_naming
from tests.fuzz.mutator import Mutator, seeds
from tests.security.sandbox import Event, watched

__all__ = ["Finding", "Fuzzing", "main"]

_ROOT = Path(__file__).parents[2]
_MODEL = """
import argparse, socket, tempfile, urllib.request  # more classes that a tape can name

import torch
import transformers


class Passes(torch.nn.Module):
    def forward(self, *args, **kwargs):
        return args[0] if args else None


def build_model():
    return Passes()
"""
_LOADED = """
import json, sys
import model
import calltape_analyzer.cli
from tests.fuzz.loaded_classes import attributes_of, loaded_classes
json.dump({name: attributes_of(cls) for name, cls in loaded_classes().items()}, sys.stdout)
"""
_OF_MODEL = "model:build_model"
_MOST_FIELDS = 12

_Command = tuple[tuple[str, ...], str]
"""The words of a command, the tape second and what it writes last; and the script to be run."""

_WRITTEN: list[_Command] = [
    (("bundle", "tape.tape", "--model", _OF_MODEL, "-o", "replay.py"), "replay.py"),
    (("bundle", "tape.tape", "--to", "torch", "--model", _OF_MODEL, "-o", "export.py"),
     "export.py"),
    (("bundle", "tape.tape", "--model-code", "model.py", "-o", "bug.zip"), "reproduce.py"),
]  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What a script did that it must not do.

    Attributes:
        tape: a copy of the tape.
        written: the command that wrote the script.
        what: in words.
    """

    tape: Path
    written: str
    what: str

    def __str__(self) -> str:
        return ascii(f"{self.tape}: {self.written}: {self.what}")[1:-1]


@dataclass
class Fuzzing:
    """Rounds of tapes, scripts and runs.

    Args:
        folder: gets the tapes of findings.
        seed: the same seed makes the same tapes.
        names: how many classes a tape names.
    """

    folder: Path
    seed: int = 1
    names: int = 300
    findings: list[Finding] = field(default_factory=list)
    tapes: int = 0
    runs: int = 0
    refused: int = 0
    _allowed: tuple[Event, ...] | None = None
    _classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def run(self, seconds: float = 0) -> None:
        """Fuzzes so long; the first round is always whole."""
        rng, mutator = random.Random(self.seed), Mutator()
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch).resolve() / "work"
            self.prepare(work)
            while not self.tapes or time.monotonic() - begin < seconds:
                self.attempt(self._forged(work, rng), work, of=_WRITTEN)
                self.attempt(self._mutant(work, rng, mutator), work, of=_WRITTEN[:2])

    def prepare(self, work: Path) -> None:
        """Asks which classes there are, and what harmless scripts do."""
        self._clear(work)
        loaded = subprocess.run(
            [sys.executable, "-c", _LOADED], cwd=work, capture_output=True, text=True, check=True,
            env={"PYTHONPATH": f"{work}:{_ROOT}", "PATH": ""},
        )  # fmt: skip
        self._classes = json.loads(loaded.stdout)
        allowed: list[Event] = []
        harmless = forged_failure(work / "tape.tape", [], has_values=True)
        for _, script in self._written(harmless, work, allowed):
            allowed += watched([script], work, allowed=None).events
        self._allowed = tuple(dict.fromkeys(allowed))

    def _clear(self, work: Path) -> None:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        (work / "model.py").write_text(_MODEL)

    def _forged(self, work: Path, rng: random.Random) -> Path:
        self._clear(work)
        marker = work.parent / "MARKER"
        scalars = (f"touch {marker}", 1, str(marker), ESCAPES)
        nodes: list[Any] = []
        for name in rng.sample(sorted(self._classes), self.names):
            fields = self._classes[name][:_MOST_FIELDS]
            node = rng.choice(nodes_naming(name, fields))
            nodes.append(_with_values(node, rng))
        return forged_failure(work / "tape.tape", nodes, scalars=scalars)

    def _mutant(self, work: Path, rng: random.Random, mutator: Mutator) -> Path:
        self._clear(work)
        path = work / "tape.tape"
        path.write_bytes(mutator.mutant(rng.choice(seeds()), rng))
        return path

    def attempt(self, tape: Path, work: Path, of: Sequence[_Command]) -> None:
        """Runs the scripts that commands write for a tape in its folder, after :meth:`prepare`."""
        self.tapes += 1
        for written, script in self._written(tape, work, of=of):
            self.runs += 1
            watch = watched([script], work, allowed=self._allowed)
            self._note(tape, written, [*watch.findings, *_unexpected(watch.output)])
        if (work.parent / "MARKER").exists():
            self._note(tape, "all of it", ["the command of the tape ran"])
            (work.parent / "MARKER").unlink()

    def _written(
        self,
        tape: Path,
        work: Path,
        measured: list[Event] | None = None,
        *,
        of: Sequence[_Command] | None = None,
    ) -> Iterator[tuple[str, Path]]:
        """The scripts that the commands write for a tape. The commands are watched as well.

        Args:
            tape: in the working directory.
            work: that directory.
            measured: gets what the commands do with a harmless tape.
            of: the commands; by default all of them.
        """
        for words, script in _WRITTEN if of is None else of:
            name = " ".join(words)
            is_measured = measured is not None
            ran = watched(
                ["-m", "calltape_analyzer", *words], work,
                allowed=None if is_measured else self._allowed,
            )  # fmt: skip
            if measured is not None:
                measured += ran.events
            else:
                self._note(tape, name, [*ran.findings, *_unexpected(ran.output)])
                self.refused += ran.code != 0
            if ran.code != 0:
                continue
            if words[-1].endswith(".zip"):
                with zipfile.ZipFile(work / words[-1]) as archive:
                    archive.extractall(work)
            yield name, work / script

    def _note(self, tape: Path, written: str, findings: Sequence[str]) -> None:
        for what in findings:
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = self.folder / f"{self.seed}-{self.tapes}.tape"
            shutil.copy(tape, kept)
            self.findings.append(Finding(kept, written, what))


def _unexpected(output: str) -> list[str]:
    """A traceback that is none of a TapeError, which says what is wrong."""
    if "Traceback (most recent call last)" not in output:
        return []
    last = next(line for line in reversed(output.splitlines()) if line.strip())
    return [] if re.match(r"calltape_\w+\.errors\.\w+: ", last) else [f"a traceback: {last[:200]}"]


def _with_values(node: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The node with something for its class to call, to open or to print in each place."""
    if "children" not in node:
        return node
    kinds: tuple[dict[str, Any], ...] = (
        {"kind": "str", "scalar": 0},
        {"kind": "str", "scalar": 2},
        {"kind": "str", "scalar": 3},
        {"kind": "int", "scalar": 1},
        {"kind": "none"},
        {"kind": "bool", "value": True},
        {"kind": "list", "children": ({"kind": "str", "scalar": 0},)},
        {"kind": "class", "type": "subprocess:Popen"},
        {"kind": "class", "type": "io:FileIO"},
    )
    return {**node, "children": tuple(rng.choice(kinds) for _ in node["children"])}


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz scripts", description=__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=0.0, help="how long (default: one round)")
    add("--seed", type=int, default=1, help="the same seed makes the same tapes")
    add("--folder", type=Path, default=Path("runs/fuzz-scripts"), help="for tapes of findings")
    given = parser.parse_args(words)
    fuzzing = Fuzzing(given.folder, given.seed)
    fuzzing.run(given.seconds)
    for finding in fuzzing.findings:
        print(finding)
    print(
        f"{fuzzing.tapes} tapes, {fuzzing.runs} scripts run, {fuzzing.refused} commands refused, "
        f"{len(fuzzing.findings)} findings"
    )
    return 1 if fuzzing.findings else 0
