"""The words of a tape: keys, names, and short texts.

In comes a tape, whose records are read once. Out go the keys of its dicts, and for those that look
like data names in the order that they had, because the analysis sorts the keys of a dict by what
``repr`` shows of them; the dicts whose keys are not the same in every call; and the words that no
pseudonym may be: one that equals the name of an argument, or another text of the tape, could be
taken for it.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.pytree.node_paths import names_of_children
from calltape_analyzer.pytree.placed_nodes import is_private_key, placed_nodes
from calltape_analyzer.redacting.vocabulary import is_field
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError
from calltape_schema.privacy import SMALL, is_name
from calltape_schema.records import Target, Tree
from calltape_schema.tree import DictNode, FieldsNode, decode_structure, walk

__all__ = ["TapeWords", "ordered_keys", "varying_keys"]

W = TypeVar("W")

_MAX_WORDS = 100_000
_SHORT = 8
"""A longer text is no pseudonym by chance."""
_PARTS = re.compile(r"\w+")
_ZEROS = "0" * len(str(SMALL))
"""Behind the digits of a small int: no other small int comes between it and what begins so."""
_ARGUMENTS = ("", "kwargs")
"""Which keyword arguments are given may differ. Their names are code."""
_MAX_PLACES = 10_000


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

    @property
    def has_more_keys(self) -> bool:
        """Whether there may be more keys than are known here."""
        return len(self.keys) >= _MAX_WORDS

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
                _note(self.keys, (name for name in node.fields if not is_field(name)))
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


def ordered_keys(keys: Iterable[str | int]) -> dict[str | int, str | int]:
    """The name of each text, and the int for each int, that looks like data.

    Args:
        keys: all texts and ints that are keys of dicts on the tape, or parts of such keys.
    """
    keys = list(keys)
    texts = [key for key in keys if isinstance(key, str)]
    ints = [key for key in keys if isinstance(key, int)]
    found: dict[str | int, str | int] = dict(_of_texts(texts))
    found.update(_of_ints([key for key in ints if key >= 0], ""))
    found.update(_of_ints([key for key in ints if key < 0], "-"))
    return found


def _of_texts(keys: Sequence[str]) -> Iterable[tuple[str, str]]:
    names = sorted(repr(key) for key in keys if is_name(key))
    private = sorted((key for key in keys if not is_name(key)), key=repr)
    width = len(str(len(private)))
    for number, key in enumerate(private):
        before = _before(repr(key), names)[1:-1]
        # In the order of repr, a bracket comes after the quote and before all letters of names.
        yield key, f"{before}({number:0{width}d})"


def _of_ints(keys: Sequence[int], sign: str) -> Iterable[tuple[int, int]]:
    """The same of ints of one sign: the digits of the small int before it, zeros and a number."""
    small = sorted(repr(key) for key in keys if is_name(key) and key)
    private = sorted((key for key in keys if not is_name(key)), key=repr)
    width = len(str(len(private)))
    for number, key in enumerate(private):
        before = _before(repr(key), small) or f"{sign}1"
        yield key, int(f"{before}{_ZEROS}{number:0{width}d}")


def _before(shown: str, others: Sequence[str]) -> str:
    """The last of these that comes before a text, or nothing."""
    at = bisect.bisect_left(others, shown)
    return others[at - 1] if at else ""


def varying_keys(tape: Tape) -> list[str]:
    """The places of the dicts that have other words as keys in some calls than in others. A plain
    word stays on a redacted tape, as nothing tells ``alice`` from ``image``; but the names of
    settings are the same in every call, and the names of users are not. Keys that look like data
    do not count: they are replaced. Reads records, and no values of tensors."""
    first: dict[str, frozenset[Any]] = {}
    found: dict[str, None] = {}
    known: set[tuple[str, bytes]] = set()
    for call in tape.calls:
        for tree, root in ((call.record.inputs, ""), (call.record.outputs, "outputs")):
            if tree is None or (root, tree.structure) in known:
                continue
            known.add((root, tree.structure))
            for place, words in _words_of_dicts(tree, root):
                if len(first) < _MAX_PLACES and first.setdefault(place, words) != words:
                    found[place] = None
    return [list(names_of_path(place, tape.signature))[-1] for place in found]


def _words_of_dicts(tree: Tree, root: str) -> list[tuple[str, frozenset[Any]]]:
    return [
        (placed.pattern, frozenset(key for key in names_of_children(placed.node) if _is_word(key)))
        for placed in placed_nodes(tree.spec().root, root)
        if isinstance(placed.node, DictNode) and placed.path not in _ARGUMENTS
    ]


def _is_word(key: Any) -> bool:
    return isinstance(key, str) and not is_private_key(key)
