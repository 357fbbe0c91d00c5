"""What the analysis says of a tape, but for texts and keys that users wrote. It knows nothing of
the code that redacts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from calltape_analyzer import Tape, TapeError, Variant, check, filter_tape, open_tape
from calltape_analyzer.editing.omission import names_of_path
from calltape_analyzer.plain_data import plain
from calltape_analyzer.pytree.nodes import nodes_with_paths
from calltape_analyzer.text import printable
from calltape_schema.privacy import is_name
from calltape_schema.tree import DictNode, FieldsNode, OpaqueNode, ScalarNode, walk
from tests.analyzer.redacting.leaks import texts

__all__ = ["answers", "assert_same", "differing", "programs_of", "without_omitted_numbers"]

_HIDDEN = frozenset({"path", "address", "range"})
"""Where the file is; and the ranges of a variant, which a redacted tape does not have."""

_OF_PLACES = frozenset({"subject", "places", "argument"})
"""What says the path of an argument, and never a text that was passed."""

_OF_WORDS = frozenset({"name", "dtype", "kind", "reason"})
"""What may quote a text that was passed (the name of a variant), and is never one as a whole: a
model that gets the text "float32" has tensors of this dtype as well."""


def answers(tape: Tape, programs: Sequence[Any] = (), *, counts: bool = True) -> dict[str, str]:
    """What ``shapes``, ``variants``, ``explain`` and ``check`` say, as JSON.

    Args:
        tape: is asked.
        programs: whose declarations are compared with the calls.
        counts: whether counts of calls that are not on the tape are told, which `filter --drop`
            does not keep.
    """
    hidden = _HIDDEN if counts else _HIDDEN | {"all_calls", "whole"}
    variants = _asked(tape.variants)
    listed = [] if isinstance(variants, str) else list(variants)
    names = {name: None for one in listed for name in one.facts.group.layout.arguments}
    said = {
        "shapes": [_asked(lambda one=one: one.findings) for one in listed],
        "variants": variants if isinstance(variants, str) else [one.findings for one in listed],
        "explain": [_asked(lambda name=name: tape.explain(name)) for name in names],
        "check": [_asked(lambda one=one: check(tape, one).rows) for one in programs],
    }
    first = {one.name: f"<variant of call {one.findings.first_call}>" for one in listed}
    veil = _Veil(tape, {one: first[one] for one in sorted(first, key=len, reverse=True)})
    return {
        question: json.dumps(veil.over(_plain(answer), hidden), sort_keys=True)
        for question, answer in said.items()
    }


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The questions that two tapes answer differently."""
    return [question for question in before if before[question] != after[question]]


def without_omitted_numbers(source: Path, result: Path) -> Path | None:
    """The source; a copy without the numbers that a redacted tape lacks, if it lacks any. None if
    there is no such copy, because other calls have something else at their places."""
    omitted, kept = dict[str, None](), set[str]()
    with open_tape(source) as old, open_tape(result) as new:
        for one, other in zip(old.calls, new.calls, strict=True):
            roots = one.record.inputs.spec().root, other.record.inputs.spec().root
            for (path, node), (_, now) in zip(*map(nodes_with_paths, roots), strict=True):
                name = list(names_of_path(path, old.signature))[-1]
                if isinstance(node, ScalarNode) and isinstance(now, OpaqueNode):
                    omitted[name] = None
                else:
                    kept.add(name)
        if not omitted or not kept.isdisjoint(omitted):
            return None if omitted else source
        path = result.with_suffix(".reference.tape")
        filter_tape(old, path, drop=list(omitted), overwrite=True)
    return path


def assert_same(source: Path, result: Path) -> None:
    """Two tapes give the same answers, but for the numbers that were omitted."""
    reference = without_omitted_numbers(source, result)
    if reference is None:
        return
    with open_tape(reference) as old, open_tape(result) as new:
        # A program names its inputs by keys.
        programs = [] if any(_private_keys(old)) else programs_of(old)
        counts = reference == source
        before, after = (answers(tape, programs, counts=counts) for tape in (old, new))
    assert differing(before, after) == []


def programs_of(tape: Tape, *, most: int = 2) -> list[Any]:
    """ONNX programs that declare the inputs of the first variants: dtypes, sizes that were
    constant, and names of those that varied together."""
    variants = _asked(tape.variants)
    made = [] if isinstance(variants, str) else [_program(one) for one in variants[:most]]
    return [one for one in made if one is not None]


def _program(variant: Variant) -> Any:
    from onnx import TensorProto, helper

    from calltape_analyzer.arguments.plan import identifier

    inputs = []
    for tensor in variant.findings.tensors:
        kind = {"float32": "FLOAT", "float64": "DOUBLE"}.get(tensor.dtype, tensor.dtype.upper())
        if not hasattr(TensorProto, kind):
            return None
        dims = [axis if isinstance(axis, int) else str(axis) for axis in tensor.shape]
        name = identifier(f"{tensor.argument}{tensor.path}")
        inputs.append(helper.make_tensor_value_info(name, getattr(TensorProto, kind), dims))
    nodes = [helper.make_node("Identity", [inputs[0].name], ["result"])] if inputs else []
    return helper.make_model(helper.make_graph(nodes, "program", inputs, []))


def _asked(question: Any) -> Any:
    try:
        return question()
    except TapeError as error:
        return f"{type(error).__name__}: {error.reason}"


def _plain(answer: Any) -> Any:
    if isinstance(answer, list | tuple):
        return [_plain(one) for one in answer]
    return plain(answer.model_dump()) if hasattr(answer, "model_dump") else answer


_NO_TEXTS = frozenset({"dtype", "device", "layout", "none", "bool"})
"""Kinds of constants whose value is a word of torch or Python."""


class _Veil:
    """Hides texts and keys that users wrote, and names of variants, which are made of them."""

    def __init__(self, tape: Tape, variants: dict[str, str]) -> None:
        self._variants = variants
        every = {*texts(tape)}
        self._texts = {str(one) for one in every} | {plain(one) for one in every}
        self._quoted = _any_of({repr(one) for one in every}, "(?<![^= ])")
        keys = {str(key) for key in _private_keys(tape)}
        self._keys = _any_of(keys | {printable(key) for key in keys})

    def over(self, value: Any, hidden: frozenset[str], within: str = "") -> Any:
        if isinstance(value, dict):
            is_word = value.get("kind") in _NO_TEXTS
            return {
                self._path(str(name)): self.over(
                    one, hidden, "dtype" if name == "value" and is_word else name
                )
                for name, one in value.items()
                if name not in hidden
            }
        if isinstance(value, list):
            # What is listed follows the order of keys.
            shown = [self.over(one, hidden, within) for one in value]
            are_facts = all(isinstance(one, dict) for one in shown)
            return sorted(shown, key=json.dumps) if are_facts else shown
        if isinstance(value, str) and within != "argument":
            for name, shown in self._variants.items():
                value = value.replace(name, shown)
        if not isinstance(value, str) or within in _OF_PLACES:
            return self._path(value) if isinstance(value, str) else value
        if within not in _OF_WORDS and value in self._texts:
            return "<text>"
        if self._quoted is not None:
            value = self._quoted.sub("<text>", value)
        return self._path(_LENGTH.sub("<text>", value))

    def _path(self, value: str) -> str:
        return self._keys.sub("<key>", value) if self._keys else value


_LENGTH = re.compile(r"text of \d+ characters?|\d+ bytes?")


def _any_of(words: set[str], before: str = "") -> re.Pattern[str] | None:
    ordered = sorted(filter(None, words), key=len, reverse=True)
    either = "|".join(map(re.escape, ordered))
    return re.compile(f"{before}(?:{either})") if ordered else None


def _structures(tape: Tape) -> Iterator[Any]:
    known = {call.record.inputs.structure: call for call in tape.calls}
    return (call.record.inputs.spec().root for call in known.values())


def _private_keys(tape: Tape) -> Iterator[Any]:
    for root in _structures(tape):
        for node in walk(root):
            if isinstance(node, DictNode):
                yield from (key for key in node.keys if key and not is_name(key))
            if isinstance(node, FieldsNode):
                yield from (name for name in node.fields if not name.isidentifier())
