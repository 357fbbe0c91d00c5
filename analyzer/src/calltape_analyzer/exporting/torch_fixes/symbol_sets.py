"""``set`` of sizes: ``len(set(lengths)) > 1`` asks whether all rows are as long.

A symbol has no hash in torch, because nothing says which other symbol it is equal to. Here each is
compared with the others, which is a condition of the program.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch

__all__ = ["SymbolicSet"]


class _Distinct(Set[Any]):
    """Numbers without those that are equal to an earlier one."""

    def __init__(self, numbers: Iterable[Any]) -> None:
        self._numbers: list[Any] = []
        for number in numbers:
            if number not in self:
                self._numbers.append(number)

    def __contains__(self, number: object) -> bool:
        return any(bool(known == number) for known in self._numbers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class _OfSymbols(type):
    """``set`` that takes symbols."""

    def __call__(cls, values: Iterable[Any] = ()) -> Any:
        given = list(values)
        has_symbols = any(isinstance(value, torch.SymInt | torch.SymFloat) for value in given)
        return _Distinct(given) if has_symbols else builtins.set(given)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.set | _Distinct)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, builtins.set | _Distinct)

    def __eq__(cls, other: object) -> bool:
        return other is builtins.set or other is cls

    def __hash__(cls) -> int:
        return hash(builtins.set)


class SymbolicSet(builtins.set[Any], metaclass=_OfSymbols):
    """Stands for ``set`` in the modules of a model while it is traced."""
