"""Whether anything that was removed still stands in the bytes of a new tape.

In come the calls that were read. Out go texts and rows of integers that the new file has, although
it should not.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.tree_plan import TreePlan
from calltape_schema.blob import stored_as
from calltape_schema.fields import Record
from calltape_schema.interning import Part
from calltape_schema.leaves import Leaf
from calltape_schema.tree import DictNode, FieldsNode

__all__ = ["LEAST_BYTES", "RemovedValues", "found_in"]

LEAST_BYTES = 8
"""Shorter values are found by chance."""

_MAX_VALUES = 20_000
_MAX_BYTES = 64 * 2**20
_MAX_LEAF = 2**20
_FEWEST_IDS = 4


class RemovedValues:
    """The values that were taken out, as many as memory for them is granted. Names of keys and
    fields are left out of it: a text that is also the name of an argument is no leak.

    Attributes:
        skipped: how many were not remembered.
    """

    def __init__(self) -> None:
        self._values: dict[bytes, None] = {}
        self._size = 0
        self._names: set[bytes] = {word.encode() for word in _words_of_the_format()}
        self.skipped = 0

    def __iter__(self) -> Iterator[bytes]:
        return (value for value in self._values if not self._is_name(value))

    def name(self, text: str) -> None:
        """Notes a text that stays on the tape."""
        if len(self._names) < _MAX_VALUES:
            self._names.add(text.encode("utf-8", "surrogatepass"))

    def add(self, value: str | bytes) -> None:
        """Notes a text that was removed."""
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        if len(data) < LEAST_BYTES or data in self._values or len(set(data)) < _FEWEST_IDS:
            return
        if len(self._values) >= _MAX_VALUES or self._size + len(data) > _MAX_BYTES:
            self.skipped += 1
            return
        self._values[data] = None
        self._size += len(data)

    def note(self, call: Call, side: Side, plan: TreePlan) -> None:
        """Notes what a plan takes out of one side of a call.

        Raises:
            TapeError: the call is damaged.
        """
        tree = call.record.inputs if side == "inputs" else call.record.outputs
        if tree is None:
            return
        for place, value in enumerate(tree.scalars):
            fate, kind = plan.scalars.get(place, ("kept", ""))
            if fate != "kept" and kind in ("str", "bytes") and plan.scalar(place, value) != value:
                self.add(value)
        for place, leaf in enumerate(tree.facts()):
            treatment = plan.tensors.get(place, ("", None))[1]
            stays = treatment is not None and treatment.way != "shapes_only"
            if not stays and leaf.key is not None:
                for row in id_rows(call, side, place, leaf):
                    self.add(row)

    def stays(self, root: Any) -> None:
        """Notes the names in a structure of the new tape."""
        for _, node in nodes_with_paths(root):
            if isinstance(node, DictNode | FieldsNode):
                names = node.keys if isinstance(node, DictNode) else node.fields
                for name in names:
                    self.name(str(name))
            if (kind := getattr(node, "type", None)) is not None:
                self.name(kind)

    def _is_name(self, value: bytes) -> bool:
        return any(value in name for name in self._names)


def _words_of_the_format() -> Iterator[str]:
    """The names of all fields, and of the kinds of nodes."""
    models: list[type[BaseModel]] = [*Record.__subclasses__(), *_nodes()]
    for model in models:
        yield from model.model_fields
    yield from ("per_tensor_affine", "per_tensor_symmetric", "namedtuple", "dataclass")
    yield from ("memory_format", "frozenset", "builtins:int", "builtins:str", "safetensors")
    yield from ("data_offsets", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "not extracted")


def _nodes() -> Iterator[type[Part]]:
    waiting = [Part]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += found.__subclasses__()


def id_rows(call: Call, side: Side, place: int, leaf: Leaf) -> Iterator[bytes]:
    """The rows of a tensor of integers that say something: four or more different numbers.

    Raises:
        TapeError: the call is damaged.
    """
    stored = stored_as(leaf)
    if stored is None or stored.dtype not in ("I64", "I32", "U64", "U32", "I16", "U16"):
        return
    if not stored.shape or stored.nbytes > _MAX_LEAF or not stored.nbytes:
        return
    data = call.stored(side, place)
    width = int(stored.dtype[1:]) // 8
    length = stored.shape[-1] * width
    for start in range(0, len(data or b""), length):
        row = bytes((data or b"")[start : start + length])
        if len({row[i : i + width] for i in range(0, length, width)}) >= _FEWEST_IDS:
            yield row


def found_in(path: str, values: Iterable[bytes]) -> list[bytes]:
    """The values that the bytes of a file have anywhere.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return [value for value in values if data.find(value) >= 0]
