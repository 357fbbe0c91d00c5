"""``set`` of sizes: ``len(set(lengths)) > 1`` asks whether rows have different lengths.

A symbol has no hash in torch, because it is unknown which other symbols it is equal to. Here each
symbol is compared with the others, which adds guards to the program.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch

__all__ = ["SymbolicSet"]


class _DistinctNumbers(Set[Any]):
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


class _SymbolicSetType(type):
    """The type of a ``set`` that accepts symbols."""

    def __call__(cls, values: Iterable[Any] = ()) -> Any:
        given = list(values)
        has_symbols = any(isinstance(value, torch.SymInt | torch.SymFloat) for value in given)
        return _DistinctNumbers(given) if has_symbols else builtins.set(given)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.set | _DistinctNumbers)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, builtins.set | _DistinctNumbers)

    def __eq__(cls, other: object) -> bool:
        return other is builtins.set or other is cls

    def __hash__(cls) -> int:
        return hash(builtins.set)


class SymbolicSet(builtins.set[Any], metaclass=_SymbolicSetType):
    """Replaces ``set`` in the modules of a model while it is traced."""
