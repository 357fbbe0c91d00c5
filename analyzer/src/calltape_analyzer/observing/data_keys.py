"""Which keys of dicts among the arguments are data: they do not come back from call to call.

In come the distinct inputs of a tape. Out goes, per dict with such keys, which of its keys are
names. A layout describes the others as one value that it does not know
(:class:`calltape_schema.privacy.KeySets` has the rule).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from calltape_analyzer.observing.signature import PassedArguments, Signature
from calltape_analyzer.reading.calls import Calls, SeenInputs
from calltape_schema.privacy import KeySets
from calltape_schema.tree import CustomNode, DictNode, FieldsNode, Node, SequenceNode

__all__ = ["OTHER_KEYS", "DataKeysOf", "typed_keys"]

OTHER_KEYS = "*"
"""Stands for all keys that are data, if the dict has others too."""

_MAX_PLACES = 4096


class DataKeysOf:
    """Gives, by the place of a dict with keys that are data, its other keys. The calls are looked
    at once, when a dict is met: few calls have one.

    Args:
        calls: gives the calls of a tape.
        signature: of the recorded method.
    """

    def __init__(self, calls: Callable[[], Calls], signature: Signature) -> None:
        self._calls = calls
        self._signature = signature
        self._found: dict[str, frozenset[Hashable]] | None = None

    def __call__(self) -> Mapping[str, frozenset[Hashable]]:
        if self._found is None:
            self._found = _data_keys_of(self._calls().by_inputs(), self._signature)
        return self._found


def _data_keys_of(
    every: Iterable[SeenInputs], signature: Signature
) -> dict[str, frozenset[Hashable]]:
    """By the place of a dict with keys that are data (``step.scheduled``) those of its keys that
    are none, with their types.

    Args:
        every: the inputs of the calls.
        signature: of the recorded method.
    """
    seen: dict[str, KeySets] = {}
    known: set[bytes] = set()
    for found in every:
        if found.inputs.structure in known:
            continue
        known.add(found.inputs.structure)
        passed = PassedArguments.of(found.inputs.spec().root, signature)
        for name, node in passed.by_name().items():
            for place, keys in _dicts(node, str(name)):
                if place in seen or len(seen) < _MAX_PLACES:
                    seen.setdefault(place, KeySets()).add(typed_keys(keys))
    lasting = {place: sets.lasting() for place, sets in seen.items()}
    return {place: keys for place, keys in lasting.items() if keys is not None}


def typed_keys(keys: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """Keys with their types: to Python, 1, 1.0 and True are the same key."""
    return tuple((type(key).__name__, key) for key in keys)


def _dicts(node: Node, place: str) -> Iterator[tuple[str, Sequence[Hashable]]]:
    """The dicts in an argument with their keys, each before those that are in it."""
    if isinstance(node, DictNode):
        yield place, node.keys
        labels: Iterable[object] = node.keys
    elif isinstance(node, FieldsNode):
        labels = node.fields
    elif isinstance(node, SequenceNode | CustomNode):
        labels = range(len(node.children))
    else:
        return
    for label, child in zip(labels, node.children, strict=True):
        yield from _dicts(child, f"{place}.{label!s}")
