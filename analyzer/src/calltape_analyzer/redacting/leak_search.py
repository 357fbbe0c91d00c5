"""What a redaction removed, so that one can look for it in the bytes of the new tape.

In come the calls that were read. Out go the bytes of texts, of long numbers and of rows of ids that
must not be there any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.redacting.tree_plan import TreePlan
from calltape_schema.blob import stored_as
from calltape_schema.errors import TapeError
from calltape_schema.fields import Record
from calltape_schema.packing import pack
from calltape_schema.tree import DictNode, FieldsNode, Leaf

__all__ = ["LEAST_BYTES", "RemovedValues", "number_forms"]

LEAST_BYTES = 8
"""Shorter values are found by chance."""

_MAX_VALUES = 200_000
_MAX_NAMES = 20_000
_MAX_BYTES = 64 * 2**20
_MAX_LEAF = 2**20
_FEWEST_IDS = 4

_FORMATS = {"I64": "q", "I32": "i", "I16": "h", "U64": "Q", "U32": "I", "U16": "H"}


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
        return iter(self._values)

    def is_name(self, value: bytes) -> bool:
        """Whether a value is also a name that stays, or a part of one."""
        return any(value in name for name in self._names)

    def name(self, text: str) -> None:
        """Notes a text that stays on the tape."""
        if len(self._names) < _MAX_NAMES:
            self._names.add(text.encode("utf-8", "surrogatepass"))

    def stays(self, value: Any) -> None:
        """Notes a number that stays on the tape."""
        self._names.update(number_forms(value))

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
            if not plan.keeps(place, value):
                is_text = isinstance(value, str | bytes)
                for form in (value,) if is_text else number_forms(value):
                    self.add(form)

    def rows(self, call: Call, side: Side, place: int, leaf: Leaf) -> None:
        """Notes the rows of a tensor of integers whose values were left out.

        Raises:
            TapeError: the call is damaged.
        """
        stored = stored_as(leaf)
        code = None if stored is None else _FORMATS.get(stored.dtype)
        if stored is None or code is None or not stored.shape or not stored.nbytes:
            return
        if stored.nbytes > _MAX_LEAF:
            return
        data = bytes(known_bytes(call, side, place) or b"")
        length = stored.shape[-1] * struct.calcsize(code)
        for start in range(0, len(data), length):
            row = data[start : start + length]
            if len(set(struct.unpack(f"<{stored.shape[-1]}{code}", row))) >= _FEWEST_IDS:
                self.add(row)

    def structure(self, root: Any) -> None:
        """Notes the names in a structure of the new tape."""
        for _, node in nodes_with_paths(root):
            if isinstance(node, DictNode | FieldsNode):
                names = node.keys if isinstance(node, DictNode) else node.fields
                for name in names:
                    self.name(str(name))
            if (kind := getattr(node, "type", None)) is not None:
                self.name(kind)


def known_bytes(call: Call, side: Side, place: int) -> bytearray | None:
    """The bytes of a tensor; None if they are not on the tape, or of a dtype that only a later
    version knows.

    Raises:
        TapeError: the call is damaged.
    """
    try:
        return call.stored(side, place)
    except TapeError as error:
        if error.kind != "unsupported":
            raise
        return None


def _words_of_the_format() -> Iterator[str]:
    """The names of all fields, and of the kinds of nodes."""
    waiting: list[type[BaseModel]] = [Record]
    while waiting:
        model = waiting.pop()
        yield from model.model_fields
        waiting += model.__subclasses__()
    yield from ("per_tensor_affine", "per_tensor_symmetric", "namedtuple", "dataclass")
    yield from ("memory_format", "frozenset", "builtins:int", "builtins:str", "safetensors")
    yield from ("data_offsets", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "not extracted")


def number_forms(value: Any) -> Iterator[bytes]:
    """The bytes that a number has on a tape, as a value and as text. Of a complex one, those of
    both parts."""
    for one in value if isinstance(value, tuple) else (value,):
        yield pack(one)
        if type(one) is int:
            yield str(abs(one)).encode()
