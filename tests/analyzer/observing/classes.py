"""Classes whose objects are passed in calls."""

from __future__ import annotations

import collections
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from tests.analyzer.observed import zeros

OD = collections.OrderedDict


class PairCache:
    """Looks like a cache to the recorder: by its name."""

    def __init__(self, keys: torch.Tensor, **private: Any) -> None:
        self.keys = keys
        self.__dict__.update(private)


class Color(enum.Enum):
    RED = 1
    MANY = (1, 2)


class Level(enum.IntEnum):
    LOW = 3


class Word(str, enum.Enum):
    YES = "yes"


class Bits(enum.Flag):
    A = 1
    B = 2


class MyInt(int):
    def __int__(self) -> int:
        return 99

    def __index__(self) -> int:
        return 99


class MyFloat(float):
    def __float__(self) -> float:
        return 99.0


class MyComplex(complex):
    pass


class MyStr(str):
    def __str__(self) -> str:
        return "other"


class MyBytes(bytes):
    pass


class MyList(list):  # type: ignore[type-arg]
    pass


class MyTuple(tuple):  # type: ignore[type-arg]
    pass


class MyDict(dict):  # type: ignore[type-arg]
    pass


class MyUserDict(collections.UserDict):  # type: ignore[type-arg]
    pass


class MySet(set):  # type: ignore[type-arg]
    pass


class Pair(NamedTuple):
    left: Any
    right: Any


Old = collections.namedtuple("Old", ["a", "b"])


@dataclass
class Batch:
    x: Any
    weight: Any = None
    unset: Any = field(init=False)


@dataclass
class Bag(dict):  # type: ignore[type-arg]
    """A dataclass that is a dict, as transformers' outputs are."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


@dataclass
class Mixin:
    number: int


class OddEnum(Mixin, enum.Enum):
    ONE = 1


class Box:
    def __init__(self, content: Any, label: Any) -> None:
        self.content = content
        self.label = label


class BoxList(list):  # type: ignore[type-arg]
    """Registered with torch's pytree as something of its own."""


class FormerBoxList(list):  # type: ignore[type-arg]
    """Its registration is taken back."""


class Unknown:
    def __init__(self) -> None:
        self.x = zeros(2)


class OwnLayer:
    """Not of a cache, whatever its name ends with."""

    def __init__(self) -> None:
        self.keys = zeros(2)


class NestedCache(PairCache):
    pass


class DictCache(dict):  # type: ignore[type-arg]
    pass


class TaggedTensor(torch.Tensor):
    pass
