"""Stand-ins for classes of a tape, so that a script runs where their libraries are not.

In comes a tape. Out go the classes of its calls that have nothing but fields: named tuples,
dataclasses and plain objects. A script makes a class of the same fields for each one that is not
loaded. What has a state of its own needs its library.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import dataclass, field

from calltape_analyzer.pytree.caches import is_cache_name, is_of_cache_library
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_schema.errors import TapeError
from calltape_schema.tree import CustomNode, FieldsNode, walk

__all__ = ["StandIns", "stand_ins_of"]

_MAX_CLASSES, _MAX_FIELDS, _MAX_STRUCTURES = 50, 200, 4096


@dataclass
class StandIns:
    """The classes of some calls.

    Attributes:
        fields: by the name of a class on the tape, its kind (``namedtuple``, ``dataclass`` or
            ``object``) and its fields.
        needed: the libraries whose classes have methods that a model calls, or a state of their
            own.
    """

    fields: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    needed: set[str] = field(default_factory=set)


def stand_ins_of(calls: Iterable[Call]) -> StandIns:
    """The classes of the inputs and outputs of calls. Calls that are damaged are left out."""
    found = StandIns()
    known: set[bytes] = set()
    plain = ClassIndex()
    for call in calls:
        try:
            trees = (call.record.inputs, call.record.outputs)
            for tree in trees:
                if tree is None or tree.structure in known or len(known) >= _MAX_STRUCTURES:
                    continue
                known.add(tree.structure)
                for node in walk(tree.spec().root):
                    if isinstance(node, CustomNode):
                        found.needed.add(node.type.partition(":")[0].partition(".")[0])
                    elif isinstance(node, FieldsNode):
                        _add(found, node, plain)
        except TapeError:
            continue
    return found


def _add(found: StandIns, node: FieldsNode, plain: ClassIndex) -> None:
    module = node.type.partition(":")[0]
    if module in ("builtins", "collections", "types") or module.partition(".")[0] == "torch":
        return
    if is_cache_name(node.type) or is_of_cache_library(module):
        found.needed.add(module.partition(".")[0])
    if len(node.fields) > _MAX_FIELDS or not all(map(_can_be_field, node.fields)):
        found.needed.add(module.partition(".")[0])
        return
    kind, fields = found.fields.get(node.type, (node.kind, ()))
    if kind != node.kind or (node.kind == "namedtuple" and fields not in ((), node.fields)):
        found.needed.add(module.partition(".")[0])
    elif node.type in found.fields or len(found.fields) < _MAX_CLASSES:
        found.fields[node.type] = kind, tuple(dict.fromkeys((*fields, *node.fields)))


def _can_be_field(name: str) -> bool:
    is_word = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    return is_word and not name.startswith("__")
