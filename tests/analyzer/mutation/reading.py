"""Every way to read a tape, with what it must not do: raise anything but ``TapeError``, print what
a terminal obeys, take long, or take much memory."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import typer
from typer.testing import CliRunner

from calltape_analyzer import (
    TapeError,
    check,
    diagnose,
    diff,
    filter_tape,
    merge_tapes,
    open_tape,
    recover_tape,
    render,
)
from calltape_analyzer.cli import app
from calltape_analyzer.cli.source_code import python_source
from calltape_analyzer.scripting import script
from tests.analyzer.mutation.classes import CLASSES, Registered

__all__ = ["Finding", "Outcome", "read"]

_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("info",), ("info", "--json"), ("info", "--quick"), ("ls",), ("ls", "--json"), ("shapes",),
    ("shapes", "--json"), ("shapes", "--python"), ("shapes", "--names", "--batch", "all"),
    ("args",), ("args", "--json"), ("variants",), ("variants", "--json"), ("script",),
    ("script", "--json"),
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What should not have been: ``kind`` groups findings of one cause."""

    step: str
    kind: str
    text: str


@dataclass
class Outcome:
    """What reading one tape gave.

    Attributes:
        findings: everything that should not have been.
        kinds: how often which kind of ``TapeError`` was met.
        seconds: of the slowest step, and its name.
        rise: bytes by which the memory of the process rose at most.
    """

    findings: list[Finding] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    seconds: tuple[float, str] = (0.0, "")
    total: float = 0.0
    rise: int = 0


class _Reading:
    def __init__(self, path: Path, other: Path, rng: random.Random, commands: int) -> None:
        self.path = path
        self.other = other
        self.rng = rng
        self.commands = commands
        self.outcome = Outcome()

    def step(self, name: str, ask: Callable[[], Any]) -> Any:
        began = time.thread_time()
        try:
            return ask()
        except TapeError as error:
            kinds = self.outcome.kinds
            kinds[error.kind] = kinds.get(error.kind, 0) + 1
            self.text(name, str(error))
            for problem in error.problems:
                self.text(name, str(problem))
        except Exception as error:
            self.untyped(name, error)
        finally:
            took = time.thread_time() - began
            self.outcome.total += took
            self.outcome.seconds = max(self.outcome.seconds, (took, name))
        return None

    def untyped(self, name: str, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "calltape" in f.filename] or frames
        where = f"{os.path.basename(ours[-1].filename)}:{ours[-1].name}"
        text = "".join(traceback.format_exception(error)[-6:])
        self.outcome.findings.append(Finding(name, f"{type(error).__name__} in {where}", text))

    def text(self, name: str, text: str) -> None:
        """Notes a text for people with a character that a terminal acts on."""
        bad = {c for line in text.split("\n") for c in line if not c.isprintable()}
        if bad:
            self.outcome.findings.append(
                Finding(name, f"raw {sorted(bad)!r:.60}", repr(text)[:300])
            )

    def shown(self, name: str, value: Callable[[], Any]) -> None:
        text = self.step(name, lambda: str(value()))
        if text is not None:
            self.text(name, text)

    def everything(self) -> None:
        tape = self.step("open", lambda: open_tape(self.path, classes=CLASSES))
        if tape is not None:
            with tape:
                self.calls(tape)
                self.answers(tape)
                self.comparisons(tape)
                self.edits(tape)
        self.prompt()

    def calls(self, tape: Any) -> None:
        self.shown("repr", lambda: tape)
        for name in ("coverage", "counters", "dumps", "missing_files", "under_way", "target"):
            self.step(name, functools.partial(getattr, tape, name))
        for call in tape.calls:
            self.shown("render record", lambda call=call: render(call.record.inputs))
            for side in ("inputs", "outputs"):
                value = self.step(side, lambda call=call, side=side: getattr(call, side))
                self.shown(f"render {side}", lambda value=value: render(value))
                plain = _without_tensors(value)
                self.shown(f"print {side}", lambda plain=plain: plain)
            for name in ("duration", "time", "error", "parent", "tree"):
                self.step(name, functools.partial(getattr, call, name))
        self.step("iterate", lambda: list(tape))
        self.step("verify", tape.verify)
        for error in tape.damage:
            self.text("damage", str(error))

    def answers(self, tape: Any) -> None:
        self.step("observations", lambda: tape.observations().leaves())
        findings = self.step("shapes", tape.shape_findings)
        if findings is not None:
            self.shown("python", lambda: python_source(findings))
            self.step("findings", lambda: findings.model_dump())
        self.step("dynamic", lambda: tape.infer_dynamic_shapes(True, dim_names=True))
        self.step("arguments", tape.infer_arguments)
        if len(tape):
            self.step("arguments of one", lambda: tape.infer_arguments(len(tape) - 1))
        variants = self.step("variants", tape.variants) or ()
        for variant in variants[:3]:
            self.shown("variant", lambda variant=variant: f"{variant!r} {variant.name}")
            self.step("variant findings", lambda variant=variant: variant.findings.model_dump())
            for text in self.step("warnings", lambda v=variant: v.findings.warnings()) or ():
                self.text("warnings", str(text))
            self.step("variant dynamic", variant.infer_dynamic_shapes)
            self.step("variant arguments", variant.infer_arguments)
        names = [a.name for a in findings.arguments] if findings is not None else ["x"]
        for name in names[:3]:
            self.shown("explain", lambda name=name: tape.explain(name))
        self.shown("script", lambda: script(tape))

    def comparisons(self, tape: Any) -> None:
        with open_tape(self.other) as other:
            self.shown("diff", lambda: diff(tape, other))
            self.shown("diff back", lambda: diff(other, tape))
        self.shown("check", lambda: check(tape, _onnx_model()))

    def edits(self, tape: Any) -> None:
        """Makes tapes of it. A result is sound, or there is none."""
        out = self.path.with_suffix(".edited")
        how: dict[str, Callable[[], Any]] = {
            "recover": lambda: recover_tape(tape, out, overwrite=True),
            "merge": lambda: merge_tapes(tape, out, overwrite=True),
            "filter": lambda: filter_tape(
                tape, out, overwrite=True, novel=True, drop=["x", "*.0"], drop_outputs=True
            ),
        }
        for name, edit in how.items():
            self.shown(name, edit)
            if out.exists():
                self.step(f"{name} result", lambda name=name: self.sound(name, out))
                out.unlink()
        self.shown("diagnose", lambda: diagnose(tape))

    def sound(self, name: str, path: Path) -> None:
        with open_tape(path) as made:
            wrong = made.verify() if name == "recover" else made.damage
            if wrong or not made.sealed:
                self.outcome.findings.append(Finding(name, "a result with damage", str(wrong)))

    def prompt(self) -> None:
        commands = [*_COMMANDS, ("show", "0"), ("show", "0", "--json"), ("explain", "x"),
                    ("explain", "x", "0", "--json"), ("args", "--call", "0")]  # fmt: skip
        for name, *rest in self.rng.sample(commands, min(self.commands, len(commands))):
            self.command(name, str(self.path), *rest)
        if self.commands:
            self.command("diff", str(self.path), str(self.other))

    def command(self, *words: str) -> None:
        shown = " ".join((words[0], *words[2:]))
        result = self.step(shown, lambda: CliRunner().invoke(app, list(words)))
        if result is None:
            return
        output = result.output.replace(str(self.path), "")
        for text in (output, result.stderr):
            self.text(shown, text)
        if isinstance(result.exception, Exception) and not isinstance(result.exception, typer.Exit):
            self.untyped(shown, result.exception)
        elif result.exit_code not in (0, 1, 3, 4):
            self.outcome.findings.append(Finding(shown, f"exit {result.exit_code}", output[-500:]))
        elif "unexpected " in result.stderr:
            kind = result.stderr.partition("unexpected ")[2].partition(":")[0]
            self.outcome.findings.append(Finding(shown, f"unexpected {kind}", result.stderr[-500:]))


def _without_tensors(value: Any) -> Any:
    """The same, where printing is about names: torch prints the values of a tensor."""
    leaves = torch.utils._pytree.tree_leaves(value, is_leaf=_is_bare)
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda tensor: None, value, is_leaf=_is_bare
        )
    return value


def _is_bare(value: Any) -> bool:
    """Whether an object has not what the flatten function of its class, which is ours, asks for."""
    return isinstance(value, Registered) and not hasattr(value, "a")


@functools.cache
def _onnx_model() -> Any:
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    node = helper.make_node("Identity", ["x"], ["y"])
    return helper.make_model(helper.make_graph([node], "g", [x], [y]))


def _memory(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def _rise(outcome: Outcome) -> Iterator[None]:
    """By how much the process grew, at its peak."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now
    before = _memory("VmRSS")
    yield
    outcome.rise = max(_memory("VmHWM") - before, 0)


def read(path: Path, other: Path, rng: random.Random, *, commands: int = 3) -> Outcome:
    """Reads a tape in every way there is.

    Args:
        path: the tape.
        other: a good one, to compare it with.
        rng: chooses ``commands`` of the commands.
    """
    reading = _Reading(path, other, rng, commands)
    with _rise(reading.outcome), contextlib.redirect_stderr(io.StringIO()):
        reading.everything()
    return reading.outcome
