"""Classes that a reader opted in, for mutants to be rebuilt from."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

import torch

__all__ = ["CLASSES", "Colour", "Frozen", "MyCache", "MyDict", "MyList", "Pair", "Slotted"]


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    n0: Any = None


class Slotted:
    __slots__ = ("a", "n0")


class Colour(enum.Enum):
    RED = "red"


class MyCache:
    def __init__(self) -> None:
        self.layers: list[Any] = []

    @property
    def values(self) -> Any:
        raise AssertionError("code of a class ran")


class MyDict(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("code of a class ran")


class MyList(list[Any]):
    def append(self, value: Any) -> None:
        raise AssertionError("code of a class ran")


class Registered:
    def __init__(self, a: Any) -> None:
        self.a = a


def _flatten(value: Registered) -> tuple[list[Any], Any]:
    # A mutant may have given it other attributes, and what the code of a class raises is its own.
    return [vars(value).get("a")], None


def _unflatten(children: Any, context: Any) -> Registered:
    (child,) = children
    return Registered(child)


torch.utils._pytree.register_pytree_node(
    Registered, _flatten, _unflatten, serialized_type_name="tests.Registered"
)

CLASSES = (Pair, Frozen, Slotted, Colour, MyCache, MyDict, MyList, Registered)
