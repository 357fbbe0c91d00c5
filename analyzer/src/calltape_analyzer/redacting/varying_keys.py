"""Dicts whose keys are not the same in every call.

A key that is a plain word stays on a redacted tape: nothing tells ``alice`` from ``image``. But the
names of settings and inputs are the same in every call, and the names of users are not.
"""

from __future__ import annotations

from typing import Any

from calltape_analyzer.editing.withholding import names_of_path
from calltape_analyzer.pytree.node_paths import names_of_children
from calltape_analyzer.pytree.placed_nodes import is_private_key, placed_nodes
from calltape_analyzer.tape import Tape
from calltape_schema.records import Tree
from calltape_schema.tree import DictNode

__all__ = ["varying_keys"]

_ARGUMENTS = ("", "kwargs")
"""Which keyword arguments are given may differ. Their names are code."""

_MAX_PLACES = 10_000


def varying_keys(tape: Tape) -> list[str]:
    """The places of the dicts that have other words as keys in some calls than in others. Keys that
    look like data do not count: they are replaced. Reads records, and no values of tensors."""
    first: dict[str, frozenset[Any]] = {}
    found: dict[str, None] = {}
    known: set[tuple[str, bytes]] = set()
    for call in tape.calls:
        for tree, root in ((call.record.inputs, ""), (call.record.outputs, "outputs")):
            if tree is None or (root, tree.structure) in known:
                continue
            known.add((root, tree.structure))
            for place, words in _words(tree, root):
                if len(first) < _MAX_PLACES and first.setdefault(place, words) != words:
                    found[place] = None
    return [list(names_of_path(place, tape.signature))[-1] for place in found]


def _words(tree: Tree, root: str) -> list[tuple[str, frozenset[Any]]]:
    return [
        (placed.pattern, frozenset(key for key in names_of_children(placed.node) if _is_word(key)))
        for placed in placed_nodes(tree.spec().root, root)
        if isinstance(placed.node, DictNode) and placed.path not in _ARGUMENTS
    ]


def _is_word(key: Any) -> bool:
    return isinstance(key, str) and not is_private_key(key)
