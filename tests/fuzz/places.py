"""Places in the documents of a tape where something can be changed, and nodes that fit there."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.fuzz.documents import CallDocument, TapeDocument
from tests.fuzz.values import (
    BYTES,
    CONSTANTS,
    FLOATS,
    INTS,
    KINDS,
    TEXTS,
    TYPES,
)


class Site(NamedTuple):
    """A place in a document: ``holder[at]``."""

    holder: Any
    at: Any

    @property
    def value(self) -> Any:
        return self.holder[self.at]


def sites_of(value: Any, depth: int = 0) -> Iterator[Site]:
    if isinstance(value, dict):
        for key in list(value):
            yield Site(value, key)
            yield from sites_of(value[key], depth + 1)
    elif isinstance(value, list):
        for at in range(len(value)):
            yield Site(value, at)
            yield from sites_of(value[at], depth + 1)


def nodes_of(tree: Any) -> list[Site]:
    return [s for s in sites_of(tree) if isinstance(s.value, dict) and "kind" in s.value]


class Places:
    """Chooses places of a tape for changes, and makes what can stand there."""

    def __init__(self, rng: random.Random, tape: TapeDocument, others: Sequence[TapeDocument]):
        self.rng = rng
        self.tape = tape
        self.others = others

    def call(self, tape: TapeDocument | None = None) -> CallDocument | None:
        calls = (tape or self.tape).calls
        return self.rng.choice(calls) if calls else None

    def tree(self, tape: TapeDocument | None = None) -> dict[str, Any] | None:
        call = self.call(tape)
        if call is None:
            return None
        sides = [side for side in ("inputs", "inputs", "outputs") if side in call.record]
        tree = call.record[self.rng.choice(sides)] if sides else None
        return tree if isinstance(tree, dict) else None

    def nodes(self, tape: TapeDocument | None = None) -> list[Site]:
        """Nodes but for the root of inputs and its two children, which must be what they are."""
        tree = self.tree(tape)
        found = nodes_of(tree.get("structure")) if tree is not None else []
        return found[3:] if self.rng.random() < 0.9 else found

    def node(self) -> dict[str, Any] | None:
        found = self.nodes()
        return self.rng.choice(found).value if found else None

    def with_field(self, *names: str) -> dict[str, Any] | None:
        values = [s.value for s in self.nodes() if any(name in s.value for name in names)]
        return self.rng.choice(values) if values else None

    def leaf(self) -> dict[str, Any] | None:
        tree = self.tree()
        leaves = tree.get("leaves") if tree is not None else None
        return self.rng.choice(leaves) if leaves else None

    def any_value(self) -> Any:
        pool = self.rng.choice(
            (INTS, FLOATS, TEXTS, BYTES, (True, False, None), ([], {}, [1.0, 2.0]))
        )
        return copy.deepcopy(self.rng.choice(pool))

    def key(self) -> Any:
        kind = self.rng.randrange(5)
        if kind < 2:
            return self.rng.choice(TEXTS)
        if kind == 2:
            return self.any_value()
        return [self.any_value() for _ in range(self.rng.choice((0, 1, 2, 2, 3, 16, 17, 40)))]

    def made_node(self, kind: str | None = None) -> dict[str, Any]:
        rng = self.rng
        kind = kind or rng.choice(list(KINDS))
        node: dict[str, Any] = {"kind": kind}
        for name in KINDS[kind]:
            node[name] = self.made_field(name)
        self.fit(node)
        if kind in ("list", "tuple", "dict", "set", "int", "str", "float") and rng.random() < 0.2:
            node["type"] = rng.choice(TYPES)
        return node

    def made_field(self, name: str) -> Any:
        rng = self.rng
        if name in ("leaf", "scalar"):
            return rng.choice((0, 0, 0, 1, 2, 3))
        if name == "type":
            return rng.choice(TYPES)
        if name == "value":
            return rng.random() < 0.5
        if name == "name":
            return rng.choice((*CONSTANTS, *TEXTS[:40]))
        if name == "reason":
            return rng.choice(TEXTS)
        if name == "context":
            return rng.choice(({"kind": "none"}, {"kind": "list", "children": []}))
        if name == "children":
            return [
                {"kind": rng.choice(("none", "ellipsis"))} for _ in range(rng.choice((0, 1, 2, 3)))
            ]
        return []

    def fit(self, node: dict[str, Any]) -> None:
        """Names for all children, and none more."""
        children = node.get("children")
        if not isinstance(children, list):
            return
        if node.get("kind") in ("slice", "range"):
            children[3:] = []
            children += [{"kind": "none"} for _ in range(3 - len(children))]
        for name in ("keys", "fields"):
            if isinstance(node.get(name), list):
                names = node[name]
                names[len(children) :] = []
                names += [f"n{i}" for i in range(len(names), len(children))]
