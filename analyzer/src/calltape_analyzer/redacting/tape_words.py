"""The words of a tape: keys, names, and short texts.

In comes a tape, whose records are read once. Out go the keys of its dicts, which get names in their
order, and the words that no pseudonym may be: one that equals the name of an argument, or another
text of the tape, could be taken for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from calltape_analyzer.pytree.node_paths import names_of_children
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError
from calltape_schema.records import Target, Tree
from calltape_schema.tree import DictNode, FieldsNode, decode_structure, walk

__all__ = ["TapeWords"]

W = TypeVar("W")

_MAX_WORDS = 100_000
_SHORT = 8
"""A longer text is no pseudonym by chance."""
_PARTS = re.compile(r"\w+")


class TapeWords:
    """The words of one tape, at most 100,000 of each sort.

    Args:
        tape: is read once.

    Attributes:
        keys: the texts and ints that are keys of dicts or parts of such keys, and the names of
            fields that no class can have.
        names: the names of parameters, arguments, attributes, fields, classes and modules, and
            the keys.
        texts: the texts of fewer than eight characters that are arguments or were returned.

    Raises:
        TapeError: the tape cannot be read.
    """

    def __init__(self, tape: Tape) -> None:
        self.keys: dict[str | int, None] = {}
        self.names: dict[str, None] = {}
        self.texts: dict[str, None] = {}
        self._structures: set[bytes] = set()
        for manifest in tape.manifests:
            if manifest.target is not None:
                _note(self.names, _of_target(manifest.target))
        for call in tape.calls:
            try:
                record = call.record
                for tree in (record.inputs, record.outputs):
                    if tree is not None:
                        self._tree(tree)
            except TapeError:
                continue  # it stands in the tape's damage
        for kind in tape.counters.groups:
            self._counted(kind.structure)

    def _tree(self, tree: Tree) -> None:
        short = (one for one in tree.scalars if isinstance(one, str) and 0 < len(one) < _SHORT)
        _note(self.texts, short)
        if tree.structure not in self._structures:
            self._structures.add(tree.structure)
            self._structure(tree.spec().root)

    def _counted(self, structure: bytes) -> None:
        if structure in self._structures:
            return
        self._structures.add(structure)
        try:
            self._structure(decode_structure(structure).root)
        except TapeError:
            return

    def _structure(self, root: Any) -> None:
        for node in walk(root):
            if isinstance(node, DictNode):
                _note(self.keys, (part for key in node.keys for part in _parts_of(key)))
            if isinstance(node, FieldsNode):
                _note(self.keys, (name for name in node.fields if not name.isidentifier()))
            if isinstance(node, DictNode | FieldsNode):
                names: Any = names_of_children(node)
                _note(self.names, (str(name) for name in names))
            _note(self.names, getattr(node, "beside", None) or ())
            _note(self.names, _PARTS.findall(str(getattr(node, "type", None) or "")))


def _of_target(target: Target) -> Iterator[str]:
    yield from _PARTS.findall(target.type)
    yield from _PARTS.findall(target.module or "")
    yield from (parameter.name for parameter in target.signature or ())


def _parts_of(key: Any) -> Iterator[str | int]:
    """The texts and ints that a key of a dict is made of."""
    for part in key if isinstance(key, tuple) else (key,):
        if (isinstance(part, str) and part) or type(part) is int:
            yield part


def _note(words: dict[W, None], new: Iterable[W]) -> None:
    for word in new:
        if len(words) >= _MAX_WORDS:
            return
        words[word] = None
