"""Containers of classes of their own, and calls with them."""

from __future__ import annotations

from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

__all__ = ["CONTAINERS", "ByKey", "Slots", "Store"]


class Named(UserDict[str, Any]):
    @property
    def total(self) -> int:
        return len(self.data)


class Features(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Store(MutableMapping[str, Any]):
    def __init__(self, items: Any) -> None:
        self._data = dict(items)
        self.version = 2

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._data[key] = value

    def __delitem__(self, key: str) -> None:
        del self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


class Slots(Mapping[str, Any]):
    __slots__ = ("held",)

    def __init__(self, items: Any) -> None:
        self.held = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


class Rows(Sequence[Any]):
    def __init__(self, items: Any) -> None:
        self.rows = list(items)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


class Several(list[Any]):
    pass


class ByKey(torch.nn.Module):
    """Takes a mapping, or a sequence of two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, features: Any) -> Any:
        is_mapping = isinstance(features, Mapping)
        x, mask = (features["x"], features["mask"]) if is_mapping else (features[0], features[1])
        return self.linear(x) * mask.unsqueeze(-1)


def _named(make: Callable[[dict[str, Any]], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, mask: make({"x": x, "mask": mask})


def _listed(make: Callable[[list[Any]], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, mask: make([x, mask])


def _defaults(items: dict[str, Any]) -> Any:
    made: defaultdict[str, Any] = defaultdict(list)
    made.update(items)
    return made


CONTAINERS: dict[str, tuple[Callable[[Any, Any], Any], list[type]]] = {
    "UserDict": (_named(UserDict), []),
    "OrderedDict": (_named(OrderedDict), []),
    "defaultdict": (_named(_defaults), []),
    "view": (_named(MappingProxyType), []),
    "UserList": (_listed(UserList), []),
    "deque": (_listed(deque), []),
    "subclass of UserDict": (_named(Named), [Named]),
    "subclass of dict": (_named(Features), [Features]),
    "subclass of list": (_listed(Several), [Several]),
    "mapping": (_named(Store), [Store]),
    "mapping with slots": (_named(Slots), [Slots]),
    "sequence": (_listed(Rows), [Rows]),
    "UserDict of an OrderedDict": (_named(lambda items: UserDict(OrderedDict(items))), []),
}
"""By name: makes one that holds x and a mask, and the classes to be passed to open_tape."""
