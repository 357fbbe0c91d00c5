"""Changes that know the format: they swap kinds, not bits."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.documents import TapeDocument, stored_form
from tests.fuzz.places import Places, nodes_of, sites_of
from tests.fuzz.values import (
    BYTES,
    CONSTANTS,
    DTYPES,
    FLOATS,
    INTS,
    PARAMETER_KINDS,
    TEXTS,
    TYPES,
)

__all__ = ["mutate"]


class _Mutating(Places):
    def other_kind(self) -> None:
        found = self.nodes()
        if not found:
            return
        site = self.rng.choice(found)
        made = self.made_node()
        for name in ("children", "leaf", "scalar", "type", "fields", "keys"):
            if name in made and name in site.value and self.rng.random() < 0.8:
                made[name] = site.value[name]
        self.fit(made)
        site.holder[site.at] = made

    def other_type(self) -> None:
        node = self.with_field("type") if self.rng.random() < 0.7 else self.node()
        if node is not None:
            node["type"] = self.rng.choice(TYPES)

    def other_name(self) -> None:
        node = self.with_field("fields", "keys", "name", "reason")
        if node is None:
            return
        for name in ("fields", "keys"):
            if node.get(name):
                node[name][self.rng.randrange(len(node[name]))] = (
                    self.key() if name == "keys" else self.rng.choice(TEXTS)
                )
                return
        for name in ("name", "reason"):
            if name in node:
                node[name] = self.rng.choice((*TEXTS, *DTYPES, *CONSTANTS))

    def many_names(self) -> None:
        """A dict or an object with many children, whose names may collide or be long."""
        found = self.nodes()
        if not found:
            return
        site, rng = self.rng.choice(found), self.rng
        count = rng.choice((20, 100, 400))
        makers: list[Callable[[int], Any]] = [
            lambda i: i * (2**61 - 1), lambda i: -(2**60) * i, lambda i: f"{'k' * 900}{i}",
            lambda i: [-1 - ((i >> bit) & 1) for bit in range(12)],
            lambda i: float(2 ** (i % 1000)),
            lambda i: [i, "x"], lambda i: str(i), lambda i: str(i).encode(), lambda i: f"a.{i}",
        ]  # fmt: skip
        make = rng.choice(makers)
        child = copy.deepcopy(site.value) if rng.random() < 0.5 else {"kind": "none"}
        if len(repr(child)) > 500:
            child = {"kind": "none"}
        node = self.made_node(rng.choice(("dict", "dict", "object", "dataclass", "namedtuple")))
        names = [make(i) for i in range(count)]
        node["keys" if node["kind"] == "dict" else "fields"] = (
            names if node["kind"] == "dict" else [str(name)[-300:] for name in names]
        )
        node["children"] = [copy.deepcopy(child) for _ in names]
        site.holder[site.at] = node

    def children(self) -> None:
        node, rng = self.with_field("children"), self.rng
        if node is None or not isinstance(node["children"], list):
            return
        children = node["children"]
        way = rng.randrange(5)
        if way == 0 and children:
            del children[rng.randrange(len(children))]
        elif way == 1 and children:
            children.append(copy.deepcopy(rng.choice(children)))
        elif way == 2:
            children.insert(rng.randrange(len(children) + 1), self.made_node())
        elif way == 3:
            rng.shuffle(children)
        elif len(repr(children)) < 2000:
            children *= rng.choice((2, 10, 100))
        if rng.random() < 0.85:
            self.fit(node)

    def deeper(self) -> None:
        found = self.nodes()
        if not found:
            return
        site = self.rng.choice(found)
        node = site.value
        for _ in range(self.rng.choice((1, 5, 40, 58, 61, 64, 70))):
            outer = self.made_node(self.rng.choice(("list", "dict", "object", "custom", "tuple")))
            outer["children"] = [node]
            self.fit(outer)
            node = outer
        site.holder[site.at] = node

    def graft(self) -> None:
        """A part of another tape, with its leaves and scalars."""
        other, mine = self.rng.choice(self.others), self.tree()
        theirs = self.tree(other)
        if mine is None or theirs is None or mine is theirs:
            return
        into = nodes_of(mine.get("structure"))[3:]
        nodes = nodes_of(theirs.get("structure"))[3:]
        if not into or not nodes or not isinstance(mine.get("leaves"), list):
            return
        taken = copy.deepcopy(self.rng.choice(nodes).value)
        moved = len(mine["leaves"]), len(mine.setdefault("scalars", []))
        mine["leaves"] += copy.deepcopy(theirs["leaves"])
        mine["scalars"] += copy.deepcopy(theirs.get("scalars") or [])
        for part in [taken, *(s.value for s in nodes_of(taken))]:
            for name, by in zip(("leaf", "scalar"), moved, strict=True):
                if type(part.get(name)) is int:
                    part[name] += by
        site = self.rng.choice(into)
        site.holder[site.at] = taken

    def leaf_fact(self) -> None:
        leaf, rng = self.leaf(), self.rng
        if leaf is None:
            return
        rank = len(leaf["shape"]) if isinstance(leaf.get("shape"), list) else 0
        sizes = [
            rng.choice(INTS[:24]) if rng.random() < 0.2 else rng.randrange(5) for _ in range(rank)
        ]
        facts: dict[str, Callable[[], Any]] = {
            "dtype": lambda: rng.choice(DTYPES),
            "shape": lambda: rng.choice((sizes, [rng.choice(INTS)] * rank, [1] * 64, [2] * 70, [])),
            "strides": lambda: [rng.choice(INTS[:24]) for _ in range(rank)],
            "expanded": lambda: sorted(rng.sample(range(rank + 1), rng.randrange(rank + 1))),
            "device": lambda: rng.choice((*CONSTANTS, *TEXTS)),
            "layout": lambda: rng.choice(("strided", "sparse_coo", "jagged", "_mkldnn", *TEXTS)),
            "key": lambda: rng.choice(TEXTS),
            "subclass": lambda: rng.choice(TYPES),
            "storage": lambda: rng.choice((0, 0, 1, 49_999, -1)),
            "offset": lambda: rng.choice((0, 4, 3, 2**40, 2**63, -1)),
            "quantizer": lambda: {
                "scheme": rng.choice(("per_tensor_affine", "per_tensor_symmetric", "x")),
                "scale": rng.choice(FLOATS),
                "zero_point": rng.choice(INTS),
            },
        }
        flags = ("requires_grad", "inference", "conj", "neg")
        name = rng.choice((*facts, "dtype", "shape", "missing", *flags))
        if name == "missing":
            leaf.pop("key", None)
            leaf["missing"] = rng.choice(("policy", "policy", *TEXTS))
        elif name in flags:
            leaf[name] = not leaf.get(name, False)
        else:
            leaf[name] = facts[name]()

    def huge(self) -> None:
        """A tensor that claims far more than the file has: expanded, or shapes only."""
        leaf, rng = self.leaf(), self.rng
        if leaf is None:
            return
        size = rng.choice((2**20, 2**26, 2**28, 2**30, 2**31, 2**40, 2**62))
        leaf["shape"] = [size] if rng.random() < 0.5 else [size, 3]
        leaf.pop("strides", None)
        leaf.pop("expanded", None)
        if rng.random() < 0.5:
            leaf["expanded"] = [0]
            leaf["strides"] = [0, 1][: len(leaf["shape"])]
        else:
            leaf.pop("key", None)
            leaf["missing"] = "policy"
        if rng.random() < 0.5:
            leaf["dtype"] = rng.choice(DTYPES)

    def ranges(self) -> None:
        tree = self.tree()
        if tree is not None:
            tree["ranges"] = [
                {"leaf": self.rng.choice((0, 0, 1, 5)), "min": self.rng.choice(INTS[:34]),
                 "max": self.rng.choice(INTS[:34])}
                for _ in range(self.rng.choice((1, 1, 2, 3)))
            ]  # fmt: skip

    def scalar(self) -> None:
        tree = self.tree()
        scalars = tree.get("scalars") if tree is not None else None
        if scalars:
            at = self.rng.randrange(len(scalars))
            pools: dict[type, Sequence[Any]] = {int: INTS, float: FLOATS, str: TEXTS, bytes: BYTES}
            pool = pools.get(type(scalars[at]))
            same = pool is not None and self.rng.random() < 0.85
            scalars[at] = self.rng.choice(pool) if same and pool else self.any_value()

    def copied_call(self) -> None:
        call = self.call()
        if call is None:
            return
        made = copy.deepcopy(call)
        made.record["call"] = self.rng.choice((len(self.tape.calls), *INTS))
        self.tape.calls.insert(self.rng.randrange(len(self.tape.calls) + 1), made)

    def record_field(self) -> None:
        call = self.call()
        if call is None:
            return
        changes: dict[str, Callable[[], Any]] = {
            "call": lambda: self.rng.choice(INTS),
            "time_ns": lambda: self.rng.choice(INTS),
            "duration_ns": lambda: self.rng.choice(INTS),
            "thread": lambda: self.rng.choice(INTS),
            "outputs_missing": lambda: self.rng.choice(TEXTS),
            "error": lambda: {"type": self.rng.choice(TYPES), "message": self.rng.choice(TEXTS)},
        }
        name = self.rng.choice(list(changes))
        call.record[name] = changes[name]()

    def signature(self) -> None:
        rng = self.rng
        target = self.tape.manifest.setdefault(
            "target", {"type": "a:B", "method": "forward", "via": "hook"}
        )
        signature = target.setdefault("signature", [])
        made: dict[str, Any] = {
            "name": rng.choice((*TEXTS, "x", "x")), "kind": rng.choice(PARAMETER_KINDS)
        }  # fmt: skip
        if rng.random() < 0.4:
            made["has_default"] = True
            made["default"] = self.any_value()
        way = rng.randrange(4)
        if way == 0 and signature:
            signature.append(copy.deepcopy(rng.choice(signature)))
        elif way == 1 and signature:
            signature[rng.randrange(len(signature))] = made
        elif way == 2 and signature:
            signature[rng.randrange(len(signature))]["kind"] = made["kind"]
        else:
            signature.insert(rng.randrange(len(signature) + 1), made)

    def manifest_field(self) -> None:
        sites = [s for s in sites_of(self.tape.manifest) if s.at not in ("format", "tape")]
        site = self.rng.choice(sites)
        site.holder[site.at] = self.like(site.value)

    def reference(self) -> None:
        """Bytes of a call that are said to be in another one: where they are, or anywhere."""
        call, other, rng = self.call(), self.call(), self.rng
        leaf = self.leaf()
        if call is None or other is None or leaf is None or not other.data:
            return
        key, there = leaf.get("key", "args.0"), rng.choice([*other.data])
        number = rng.choice((other.record.get("call", 0), other.record.get("call", 0), *INTS))
        if rng.random() < 0.2:
            there = rng.choice(TEXTS)
        made, shape = [key, number, there], leaf.get("shape")
        call.data.pop(key, None)
        if rng.random() < 0.5 and isinstance(shape, list):
            axis = rng.randrange(len(shape) + 1)
            made.append(axis if rng.random() < 0.9 else self.any_value())
            own = [1 if at == axis else size for at, size in enumerate(shape)]
            if (stored := stored_form({**leaf, "shape": own})) is not None:
                call.tails[key] = stored
        call.record.setdefault("at", []).append(made)

    def grouping(self) -> None:
        """Calls stand in other groups."""
        groups = self.rng.choice((1, 2, len(self.tape.calls)))
        for at, call in enumerate(self.tape.calls):
            call.group = at % groups if self.rng.random() < 0.1 else at * groups // 100

    def end_field(self) -> None:
        if self.tape.end is None:
            return
        sites = [s for s in sites_of(self.tape.end) if s.at != "tape"]
        if sites:
            site = self.rng.choice(sites)
            site.holder[site.at] = self.like(site.value)

    def like(self, value: Any) -> Any:
        pools: dict[type, Sequence[Any]] = {int: INTS, float: FLOATS, str: TEXTS, bytes: BYTES}
        pool = pools.get(type(value))
        if pool is None or self.rng.random() < 0.15:
            return self.any_value()
        return self.rng.choice(pool)

    def anything(self) -> None:
        """A value anywhere in a call becomes another, or goes."""
        call = self.call()
        if call is None:
            return
        sites = [s for s in sites_of(call.record) if s.at not in ("tape", "blob")]
        site = self.rng.choice(sites)
        if self.rng.random() < 0.2 and isinstance(site.holder, dict):
            del site.holder[site.at]
        elif self.rng.random() < 0.2 and isinstance(site.holder, list):
            site.holder.append(copy.deepcopy(site.value))
        else:
            site.holder[site.at] = self.like(site.value)


_CHANGES = (
    *("other_kind",) * 5, *("other_type",) * 4, *("other_name",) * 4, *("children",) * 4,
    *("leaf_fact",) * 6, *("huge",) * 2, *("graft",) * 4, *("anything",) * 4, "many_names",
    "deeper", "ranges", "scalar", "scalar", "copied_call", "record_field", "signature",
    "signature", "manifest_field", "reference", "reference", "grouping", "end_field",
)  # fmt: skip


def mutate(
    rng: random.Random, tape: TapeDocument, others: Sequence[TapeDocument]
) -> tuple[TapeDocument, list[str]]:
    """Makes one to four changes in a tape, in place. Returns it, and the names of the changes."""
    mutating = _Mutating(rng, tape, others)
    names = [rng.choice(_CHANGES) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4)))]
    for name in names:
        # A change that meets what an earlier one left is not what is tested.
        try:
            getattr(mutating, name)()
        except (KeyError, TypeError, IndexError, ValueError, AttributeError):
            continue
    return tape, names
