"""What the analysis says of a tape, but for texts that users wrote. It knows nothing of the code
that redacts, which has a comparison of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from calltape_analyzer import Tape, TapeError, Variant, check
from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.plain_data import plain
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.text import printable
from calltape_schema.privacy import is_name
from calltape_schema.records import Tree
from calltape_schema.tree import DictNode, FieldsNode, OpaqueNode, ScalarNode, walk
from tests.analyzer.redacting.leaks import texts

__all__ = ["answers", "differing", "programs_of", "replaced_numbers", "withheld_arguments"]

_HIDDEN = frozenset({"path", "address"})
"""Where the file is."""

_OF_PLACES = frozenset({"subject", "places", "argument"})
"""What says the path of an argument, and never a text that was passed."""

_OF_WORDS = frozenset({"name", "dtype", "kind", "reason"})
"""What may quote a text that was passed (the name of a variant), and is never one as a whole: a
model that gets the text "float32" has tensors of this dtype as well."""


def answers(
    tape: Tape, programs: Sequence[Any] = (), replaced: Collection[str] = (), *, ranges: bool = True
) -> dict[str, str]:
    """What ``shapes``, ``variants``, ``explain`` and ``check`` say, as JSON.

    Args:
        tape: is asked.
        programs: whose declarations are compared with the calls.
        replaced: the places of numbers that are not compared.
        ranges: whether ranges of elements are told, and counts of calls that are not on the tape,
            which `filter --drop` does not keep.
    """
    hidden = _HIDDEN if ranges else _HIDDEN | {"range", "all_calls", "whole"}
    variants = _asked(tape.variants)
    listed = [] if isinstance(variants, str) else list(variants)
    names = {name: None for one in listed for name in one.facts.group.layout.arguments}
    said = {
        "shapes": [_asked(tape.shape_findings)]
        + [_asked(lambda one=one: one.shape_findings().findings) for one in listed],
        "variants": variants if isinstance(variants, str) else [one.findings for one in listed],
        "explain": [
            _parted(_plain(_asked(lambda name=name: tape.explain(name))), replaced)
            for name in names
        ],
        "check": [_asked(lambda one=one: check(tape, one).rows) for one in programs],
    }
    veil = _Veil(tape, frozenset(replaced))
    veiled = {question: veil.over(_plain(answer), hidden) for question, answer in said.items()}
    if replaced:
        veiled["explain"] = [_in_order(one) for one in veiled["explain"]]
    return {question: json.dumps(answer, sort_keys=True) for question, answer in veiled.items()}


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The questions that two tapes answer differently."""
    return [question for question in before if before[question] != after[question]]


def replaced_numbers(source: Tape, result: Tape) -> set[str]:
    """The places of ints and floats that are others on a new tape, as findings name them. One that
    stayed beside others in its list is another one too: it became itself by chance."""
    found: set[str] = set()
    for one, other in zip(source.calls, result.calls, strict=True):
        before, after = one.record.inputs, other.record.inputs
        roots = before.spec().root, after.spec().root
        numbers = [
            (path, new_path, not _has(after, now, before.scalars[node.scalar]))
            for (path, node), (new_path, now) in zip(*map(nodes_with_paths, roots), strict=True)
            if isinstance(node, ScalarNode) and node.kind not in ("str", "bytes")
        ]
        changed = {_list_of(path) for path, _, is_other in numbers if is_other}
        for path, new_path, is_other in numbers:
            if is_other or (_list_of(path) in changed and path[-1].isdecimal()):
                both = path, new_path  # keys may be others
                found.update(list(names_of_path(one, source.signature))[-1] for one in both)
    return found


def _has(tree: Tree, node: Any, value: Any) -> bool:
    """Whether a node of a new tape has this value."""
    return isinstance(node, ScalarNode) and repr(tree.scalars[node.scalar]) == repr(value)


def _list_of(path: str) -> str:
    return path.rpartition(".")[0]


def withheld_arguments(source: Tape, result: Tape) -> dict[bytes, set[str]]:
    """By structure of the inputs, the paths of values of which only the length is left on a new
    tape."""
    gone: dict[bytes, set[str]] = {}
    for one, other in zip(source.calls, result.calls, strict=True):
        inputs = one.record.inputs
        roots = inputs.spec().root, other.record.inputs.spec().root
        for (path, node), (_, now) in zip(*map(nodes_with_paths, roots), strict=True):
            if isinstance(node, ScalarNode) and isinstance(now, OpaqueNode):
                gone.setdefault(inputs.structure, set()).add(path)
    return gone


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
    for found in variant.findings.tensors:
        kind = {"float32": "FLOAT", "float64": "DOUBLE"}.get(found.dtype, found.dtype.upper())
        if not hasattr(TensorProto, kind):
            return None
        dims = [axis if isinstance(axis, int) else str(axis) for axis in found.shape]
        name = identifier(f"{found.argument}{found.path}")
        inputs.append(helper.make_tensor_value_info(name, getattr(TensorProto, kind), dims))
    nodes = [helper.make_node("Identity", [inputs[0].name], ["result"])] if inputs else []
    return helper.make_model(helper.make_graph(nodes, "program", inputs, []))


def _asked(question: Any) -> Any:
    try:
        return question()
    except TapeError as error:
        return f"{type(error).__name__}: {error.reason}"


def _parted(explanation: Any, replaced: Collection[str]) -> Any:
    """An explanation in which each number that was replaced is a part of its own: equal ones are
    one part, and which others a replaced number equals is chance, also one that is kept beside
    it."""
    if isinstance(explanation, str) or not replaced:
        return explanation
    parts: list[Any] = []
    for part in explanation["parts"]:
        others = [place for place in part["places"] if place not in replaced]
        numbers = [place for place in part["places"] if place in replaced]
        parts += [
            {**part, "places": places} for places in (others, *([n] for n in numbers)) if places
        ]
    return {**explanation, "parts": parts}


def _in_order(explanation: Any) -> Any:
    """An explanation whose parts are in the order of what is told of them."""
    if isinstance(explanation, str):
        return explanation
    return {**explanation, "parts": sorted(explanation["parts"], key=json.dumps)}


def _plain(answer: Any) -> Any:
    if isinstance(answer, list | tuple):
        return [_plain(one) for one in answer]
    return plain(answer.model_dump()) if hasattr(answer, "model_dump") else answer


_NO_TEXTS = frozenset({"dtype", "device", "layout", "none", "bool"})
"""Kinds of constants whose value is a word of torch or Python."""


class _Veil:
    """Hides texts and keys that users wrote: of a text its length stays, of a key its order. Hides
    what is said of numbers that were replaced."""

    def __init__(self, tape: Tape, replaced: frozenset[str]) -> None:
        self._replaced = replaced
        shown = replaced | set(map(printable, replaced))  # as names of variants have them
        quoted = {f"{place}=": "" for place in shown} | {f"'{one}': ": "" for one in shown}
        self._numbers = _any_of(quoted, "(?<![^ {])", "[^ ,;)}]+")
        self._shown = {str(one): f"<text of {len(one)}>" for one in texts(tape)}
        quoted = {repr(one): shown for one, shown in self._shown.items()}
        self._shown |= {plain(one): shown for one, shown in self._shown.items()}
        self._quoted = quoted
        self._pattern = _any_of(quoted, "(?<![^= ])")
        private = list(_private_keys(tape))
        keys = sorted({key for key in private if isinstance(key, str)}, key=repr)
        # A number or bytes among the keys has no order that the analysis follows.
        keys += dict.fromkeys(str(key) for key in private if not isinstance(key, str))
        self._keys = {key: f"<key {number}>" for number, key in enumerate(keys)}
        self._keys |= {printable(key): shown for key, shown in self._keys.items()}
        self._key_pattern = _any_of(self._keys)

    def over(self, value: Any, hidden: frozenset[str], within: str = "") -> Any:
        if isinstance(value, dict):
            if _places(value) and self._replaced.issuperset(_places(value)):
                return [self._path(place) for place in _places(value)]
            is_word = value.get("kind") in _NO_TEXTS
            return {
                self._path(str(name)): self.over(
                    one, hidden, "dtype" if name == "value" and is_word else name
                )
                for name, one in value.items()
                if name not in hidden and name not in self._replaced
            }
        if within == "notes" and isinstance(value, list):
            value = [one for one in value if not self._is_of_numbers(one)]
        if isinstance(value, list):
            return [self.over(one, hidden, within) for one in value]
        if within in ("keys", "fields"):
            return self._keys.get(str(value), value)
        if within in _OF_PLACES and isinstance(value, str):
            return self._path(value)  # the name of an argument may be a text as well
        whole = within not in _OF_WORDS
        return self._text(value, whole=whole) if isinstance(value, str) else value

    def _is_of_numbers(self, note: str) -> bool:
        """Whether it tells the values of a number that was replaced in calls that are not on the
        tape."""
        return note.partition(" is constant, but kept ")[0] in self._replaced

    def _text(self, value: str, *, whole: bool) -> str:
        if whole and value in self._shown:
            return self._shown[value]
        if self._pattern is not None:
            value = self._pattern.sub(lambda found: self._quoted[found[0]], value)
        return self._path(value)

    def _path(self, value: str) -> str:
        if self._numbers is not None:  # which a text quotes
            value = self._numbers.sub("<a number>", value)
        if self._key_pattern is not None:
            value = self._key_pattern.sub(lambda found: self._keys[found[0]], value)
        return value


def _any_of(words: dict[str, str], before: str = "", after: str = "") -> re.Pattern[str] | None:
    ordered = sorted(words, key=len, reverse=True)
    either = "|".join(map(re.escape, ordered))
    return re.compile(f"{before}(?:{either}){after}") if ordered else None


def _places(value: dict[str, Any]) -> list[str]:
    """The places that a finding is about; none if it is about something else."""
    if "argument" in value and "path" in value:
        return [f"{value['argument']}{value['path']}"]
    found = value.get("places") or (value.get("dimensions") if "expression" in value else ())
    return [one for one in found or () if isinstance(one, str)]


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
