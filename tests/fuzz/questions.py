"""Every way to read a tape. Some questions are asked of each mutant, the dear ones of some."""

from __future__ import annotations

import ast
import functools
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import (
    check,
    diagnose,
    diff,
    filter_tape,
    merge_tapes,
    open_tape,
    private_data,
    recover_tape,
    render,
    targets,
)
from calltape_analyzer.scripting import python_of_variants, script
from tests.fuzz import answers
from tests.fuzz.classes import CLASSES, Registered
from tests.fuzz.packing import FORMS, hostile
from tests.fuzz.program import onnx_model
from tests.fuzz.prompt import COMMANDS, command
from tests.fuzz.steps import SECONDS, Outcome, Steps, WrongAnswerError, measured

__all__ = ["DEAR", "chosen_for", "read", "read_a_copy", "read_some", "warm_up"]

_CALLS, _VARIANTS = 4, 3
"""Of how many of each a mutant is asked for values: they have few."""

_TAGS = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "wbr"}
_MOST_HTML = 1_000_000
"""What a notebook may show of one object, in characters."""


class _Questions:
    def __init__(self, steps: Steps, path: Path, other: Path) -> None:
        self.steps = steps
        self.path = path
        self.other = other

    def cheap(self, tape: Any) -> None:
        """What each mutant is asked."""
        step, shown = self.steps.step, self.steps.shown
        shown("repr", lambda: tape)
        for call in step("calls", lambda: tape.calls[:_CALLS]) or ():
            shown("render record", lambda call=call: render(call.record.inputs))
            for side in ("inputs", "outputs"):
                value = step(side, functools.partial(getattr, call, side))
                shown(f"render {side}", lambda value=value: render(value))
        step("verify", tape.verify)
        step("shapes", lambda: tape.single.findings)
        for error in tape.damage:
            self.steps.text("damage", str(error))

    def facts(self, tape: Any) -> None:
        for name, ask in _OF_A_TAPE.items():
            self.steps.step(name, functools.partial(ask, tape))
        self.steps.step("records_read", lambda: tape.records_read)
        for name in ("coverage", "counters", "dumps", "missing_files", "under_way", "target",
                     "manifest", "signature", "sealed", "unfinished"):  # fmt: skip
            self.steps.step(name, functools.partial(getattr, tape, name))
        for call in self.steps.step("calls", lambda: tape.calls[:_CALLS]) or ():
            for name in ("duration", "time", "error", "address", "under_way"):
                self.steps.step(name, functools.partial(getattr, call, name))
            self.steps.shown("call", lambda call=call: call)
            plain = self.steps.step("plain", lambda call=call: _without_tensors(call.inputs))
            self.steps.shown("print inputs", lambda plain=plain: plain)
        self.steps.step("iterate", lambda: list(tape))

    def one_program(self, tape: Any) -> None:
        findings = self.steps.step("shapes", lambda: tape.single.findings)
        if findings is not None:
            self.steps.step("findings", lambda: findings.model_dump_json())
        self.steps.step("dynamic", lambda: tape.infer_dynamic_shapes(True, dim_names=True))
        self.steps.step("arguments", tape.infer_arguments)
        if self.steps.step("length", lambda: len(tape)):
            self.steps.step("arguments of one", lambda: tape.infer_arguments(len(tape) - 1))
        self.steps.step("by name", lambda: tape.infer_dynamic_shapes(dim_names={"x": {0: "b"}}))

    def variants(self, tape: Any) -> None:
        step = self.steps.step
        for variant in (step("variants", tape.variants) or ())[:_VARIANTS]:
            self.steps.shown("variant", lambda variant=variant: f"{variant!r} {variant.name}")
            step("variant findings", lambda variant=variant: variant.findings.model_dump_json())
            for text in step("warnings", lambda v=variant: v.findings.warnings()) or ():
                self.steps.text("warnings", str(text))
            shown = step("python", lambda v=variant: python_of_variants([v], []))
            step("python is Python", lambda shown=shown: shown and ast.parse(shown))
            step("variant dynamic", lambda v=variant: v.infer_dynamic_shapes(dim_names=True))
            given = step("variant arguments", variant.infer_arguments)
            if given is not None:
                step("accepts", lambda v=variant, given=given: v.accepts(*given))
            for name, ask in _OF_A_VARIANT.items():  # also if the table of its tape lied
                step(f"variant {name}", functools.partial(ask, variant))

    def explain(self, tape: Any) -> None:
        observed = self.steps.step("observations", tape.observations)
        parts = observed.parts()[:3] if observed is not None else []
        leaves = [leaf for part in parts for leaf in (*part.layout.tensors, *part.layout.scalars)]
        names = dict.fromkeys(name for leaf in leaves for name in (str(leaf), leaf.argument))
        for name in [*list(names)[:6], "*"]:
            self.steps.shown("explain", lambda name=name: tape.explain(name))
            self.steps.shown("explain an axis", lambda name=name: tape.explain(name, 0))

    def script(self, tape: Any) -> None:
        made = self.steps.step("script", lambda: str(script(tape)))
        if made is not None:
            self.steps.text("script", made)
            self.steps.step("script is Python", lambda: ast.parse(made))

    def differences(self, tape: Any) -> None:
        with open_tape(self.other) as other:
            self.steps.shown("diff", lambda: diff(tape, other))
            self.steps.shown("diff back", lambda: diff(other, tape))
        self.steps.shown("diff with itself", lambda: diff(tape, tape))

    def edits(self, tape: Any) -> None:
        """Makes tapes of it. A result is sound, or there is none."""
        out = self.path.with_suffix(".edited")
        drop = ["x", "*.0"]
        how: dict[str, Callable[[], Any]] = {
            "recover": lambda: recover_tape(tape, out, overwrite=True),
            "merge": lambda: merge_tapes(tape, out, overwrite=True),
            "filter": lambda: filter_tape(tape, out, overwrite=True, novel=True, drop=drop),
        }
        for name, edit in how.items():
            self.steps.shown(name, edit)
            if out.exists():
                self.steps.step(f"{name} result", lambda name=name: _is_sound(name, out))
                out.unlink()
        self.steps.shown("diagnose", lambda: diagnose(tape))

    def compressed(self, tape: Any) -> None:
        """The same bytes, compressed, are the same tape; hostile ones are one error or a tape."""
        data = self.path.read_bytes()
        rng = random.Random(zlib.crc32(data))
        form = rng.choice(sorted(FORMS))
        packed = self.path.with_name(f"{self.path.stem}.packed.tape{form}")
        packed.write_bytes(FORMS[form](data))
        self.steps.step(f"open {form}", lambda: _is_same(packed, self.path))
        packed.write_bytes(hostile(data, form, rng))
        self.steps.step(f"open hostile {form}", lambda: _verified(packed))
        packed.unlink()

    def check(self, tape: Any) -> None:
        self.steps.shown("check", lambda: check(tape, onnx_model()))

    def parts(self, tape: Any) -> None:
        step = self.steps.step
        for words in ({"calls": "0..1"}, {"ignore": ["x"]}, {"ignore": [0]}, {"variant": 0}):
            part = step(f"only {words}", lambda words=words: tape.only(**words))
            if part is not None:
                step("shapes of a part", lambda part=part: part.single.findings)
        step("together", lambda: self._together())

    def _together(self) -> None:
        with open_tape([self.path, self.other], classes=CLASSES) as both:
            self.steps.step("shapes of both", lambda: both.single.findings)
            self.steps.step("variants of both", both.variants)
            self.steps.step("verify both", both.verify)

    def exporters(self, tape: Any) -> None:
        step = self.steps.step
        variants = step("variants", tape.variants) or ()
        for source in (tape, *variants[:1]):
            for name in ("shapes_collection", "additional_inputs", "optimization_profile",
                         "partial_shapes", "dynamic_axes"):  # fmt: skip
                step(name, lambda name=name, source=source: getattr(targets, name)(source))
            step("trtexec", lambda s=source: targets.optimization_profile(s).trtexec_flags())

    def notebook(self, tape: Any) -> None:
        """What a notebook shows: bounded, and no markup of the tape's in it."""
        step = self.steps.step
        shown = [
            tape,
            *(step("calls", lambda: tape.calls[:_CALLS]) or ()),
            *(step("variants", tape.variants) or ())[:_VARIANTS],
            step("shapes", lambda: tape.single.findings),
        ]
        for thing in shown:
            if thing is not None:
                step("notebook", lambda thing=thing: _is_plain(thing._repr_html_() or ""))

    def answers(self, tape: Any) -> None:
        for name, compare in answers.COMPARISONS.items():
            self.steps.step(name, lambda compare=compare: compare(self.path, tape))


_OF_A_VARIANT: dict[str, Callable[[Any], Any]] = {
    "calls": lambda variant: variant.calls,
    "iterate": list,
    "arguments of one": lambda variant: variant.infer_arguments(0),
    "arguments of the last": lambda variant: variant.infer_arguments(len(variant) - 1),
    "arguments as recorded": lambda variant: variant.infer_arguments(layout="recorded"),
    "arguments completed": lambda variant: variant.infer_arguments({}),
    "findings": lambda variant: variant.findings,
}
_OF_A_TAPE: dict[str, Callable[[Any], Any]] = {
    "each position": lambda tape: [tape[at] for at in range(len(tape))][:_CALLS],
    "the last position": lambda tape: tape[-1],
    "find": lambda tape: tape.find(0).inputs,
    "distinct inputs": lambda tape: list(tape.calls.by_inputs()),
    "observations": lambda tape: tape.observations(),
    "private data": private_data,
    "calls of a variant": lambda tape: list(tape.only(variant=0).calls),
}
"""What a table that lies may reach: each raises a ``TapeError``, or nothing."""


_METHODS = ("facts", "one_program", "variants", "explain", "script", "differences", "check",
            "edits", "parts", "exporters", "compressed", "notebook", "answers")  # fmt: skip
DEAR: tuple[str, ...] = (*_METHODS, *(f"$ {' '.join(words)}" for words in COMMANDS))
"""The questions that cost more than all others together: names of groups, and command lines."""

_ONE_DEAR, _ALL_DEAR = 2, 400
"""Every second mutant is asked one of these, chosen by its bytes; every 400th all of them."""


def chosen_for(data: bytes) -> list[str]:
    """The dear questions for a mutant: the same for the same bytes, so that coverage guides."""
    digest = zlib.crc32(data)
    if digest % _ALL_DEAR == 0:
        return list(DEAR)
    # The answers are compared as often as all commands together.
    names = (*_METHODS, *("answers",) * 6, *DEAR[len(_METHODS) :])
    return [names[(digest >> 8) % len(names)]] if digest % _ONE_DEAR == 0 else []


def read(path: Path, other: Path, dear: Iterable[str] = DEAR, times: float = 1.0) -> Outcome:
    """Reads a tape.

    Args:
        path: the tape.
        other: a good one, to compare it with.
        dear: which of the dear questions are asked.
        times: how many times as long as a mutant it may take.
    """
    steps = Steps()
    wanted = set(dear)
    questions = _Questions(steps, path, other)
    with measured(steps.outcome):
        tape = steps.step("open", lambda: open_tape(path, classes=CLASSES))
        if tape is not None:
            with tape:
                questions.cheap(tape)
                for name in _METHODS:
                    if name in wanted:
                        steps.begin()
                        ask: Callable[[Any], None] = getattr(questions, name)
                        ask(tape)
        for words in COMMANDS:
            if f"$ {' '.join(words)}" in wanted:
                steps.begin()
                command(steps, path, other, words)
    steps.outcome.limited(times * SECONDS)
    return steps.outcome


def read_a_copy(path: Path, other: Path, folder: Path) -> Outcome:
    """Reads a tape in another folder: what is made of it is written beside it."""
    return read(Path(shutil.copy(path, folder)), other)


def read_some(path: Path, other: Path, rng: random.Random, count: int) -> Outcome:
    """Reads a tape with some of the dear questions, but for those that import for seconds."""
    quick = [name for name in DEAR if name not in ("exporters", "check")]
    return read(path, other, rng.sample(quick, count))


def warm_up() -> None:
    """What torch imports when it makes its first nested tensor is no tape's."""
    torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged)


def _is_same(packed: Path, path: Path) -> None:
    with open_tape(packed, classes=CLASSES) as tape, open_tape(path, classes=CLASSES) as other:
        if (len(tape.calls), tape.sealed) != (len(other.calls), other.sealed):
            raise WrongAnswerError(f"{len(tape.calls)} calls of {len(other.calls)}")


def _verified(path: Path) -> None:
    with open_tape(path, classes=CLASSES) as tape:
        tape.verify()


def _is_sound(name: str, path: Path) -> None:
    with open_tape(path) as tape:
        wrong = tape.verify() if name == "recover" else tape.damage
        if wrong or not tape.sealed:
            raise WrongAnswerError(f"{name} made a tape with damage: {wrong}")


def _is_plain(html: str) -> None:
    """Looks at markup that is made of a tape."""
    tags = set(re.findall(r"<\s*/?\s*([^\s>]*)", html))
    if not tags <= _TAGS or len(html) > _MOST_HTML:
        raise WrongAnswerError(f"{len(html):,} characters, tags {sorted(tags - _TAGS)!r:.200}")
    if bad := {c for c in html if not c.isprintable() and c != "\n"}:
        raise WrongAnswerError(f"raw {sorted(bad)!r:.60}")


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
