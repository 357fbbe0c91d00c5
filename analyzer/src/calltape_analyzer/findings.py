"""What an inference found, as plain data: models that dump to JSON and need no torch.

Every target (torch.export, ONNX, the command line's tables) is a translation of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

__all__ = [
    "ArgumentFinding",
    "AxisFinding",
    "LeafFinding",
    "Nesting",
    "ShapeFindings",
    "SizeSeen",
]

MAX_SIZES_SHOWN = 64


class _Finding(BaseModel):
    model_config = ConfigDict(frozen=True)


class SizeSeen(_Finding):
    """One size of one axis: in how many calls, and the number of the first of them."""

    size: int
    calls: int
    first_call: int


class AxisFinding(_Finding):
    """One dimension.

    ``sizes`` lists those seen, smallest first; of more than 64 the smallest and the largest.
    ``distinct`` counts all.
    ``reason`` is ``varied`` (more than one size was seen), ``declared`` (the caller said that it is
    a batch dimension) or ``constant``. ``name`` is there where names were asked for and the
    dimension is dynamic. ``whole`` is the smallest and largest size over all calls, where the tape
    has counters of those that were not kept and these had further sizes.
    """

    axis: int
    dynamic: bool
    reason: Literal["varied", "declared", "constant"]
    sizes: tuple[SizeSeen, ...]
    distinct: int
    name: str | None = None
    whole: tuple[int, int] | None = None


class LeafFinding(_Finding):
    """One tensor of an argument. ``path`` is its place below the argument (empty where the argument
    is the tensor); ``calls`` counts the calls that had it, ``missing`` those that did not."""

    path: str
    dtype: str | None
    axes: tuple[AxisFinding, ...]
    calls: int
    missing: int


class Nesting(_Finding):
    """How the leaves of an argument are nested. ``leaf`` is an index into its ``leaves`` for a
    tensor; ``constant`` is a position that has no shape. ``type`` names the class of a named
    tuple, whose fields are ``keys``."""

    kind: Literal["tensor", "constant", "list", "tuple", "dict", "namedtuple"]
    leaf: int | None = None
    children: tuple[Nesting, ...] = ()
    keys: tuple[Any, ...] = ()
    type: str | None = None


class ArgumentFinding(_Finding):
    """One argument: its parameter name, how it was passed, its leaves and their nesting."""

    name: str
    passed: Literal["positional", "keyword", "constant"]
    leaves: tuple[LeafFinding, ...] = ()
    nesting: Nesting


class ShapeFindings(_Finding):
    """Everything that ``infer_dynamic_shapes`` knows.

    Attributes:
        calls: how many calls the findings rest on.
        arguments: in the order in which torch.export takes them.
        as_tuple: whether the shapes are a tuple (all arguments positional) or a dict by name.
        variadic: name of ``*args``, whose arguments the dict has as one tuple, with the number of
            arguments before it.
        extra: names of arguments that ``**kwargs`` took, and its own name.
        representative: index of the call whose arguments stand for all.
        notes: what a reader should know about how the answer came about.
    """

    calls: int
    arguments: tuple[ArgumentFinding, ...]
    as_tuple: bool
    variadic: tuple[str, int] | None = None
    extra: tuple[str, tuple[str, ...]] | None = None
    representative: int
    notes: tuple[str, ...] = ()

    def leaves(self) -> Iterator[tuple[ArgumentFinding, LeafFinding]]:
        """All tensors, in flattening order."""
        for argument in self.arguments:
            for leaf in argument.leaves:
                yield argument, leaf

    def nested(
        self,
        leaf: Callable[[LeafFinding], Any],
        namedtuple: Callable[[Nesting, list[Any]], Any] = lambda _, parts: tuple(parts),
    ) -> tuple[Any, ...] | dict[str, Any]:
        """The findings in the nesting of ``dynamic_shapes``, with ``leaf`` called for each tensor
        and ``namedtuple`` for the nesting and parts of each named tuple. Constants are None."""
        values = [_nested(a, a.nesting, leaf, namedtuple) for a in self.arguments]
        if self.as_tuple:
            return tuple(values)
        return self._by_name(dict(zip((a.name for a in self.arguments), values, strict=True)))

    def _by_name(self, named: dict[str, Any]) -> dict[str, Any]:
        shapes: dict[str, Any] = {}
        members: list[Any] = []
        extra = frozenset(self.extra[1]) if self.extra is not None else frozenset()
        for position, (name, value) in enumerate(named.items()):
            passed = self.arguments[position].passed
            if self.variadic and passed == "positional" and position >= self.variadic[1]:
                members.append(value)
                shapes[self.variadic[0]] = ()  # its place; all of them follow
            elif name not in extra:
                shapes[name] = value
        if self.variadic and members:
            shapes[self.variadic[0]] = tuple(members)
        if self.extra is not None:
            shapes[self.extra[0]] = {name: named[name] for name in self.extra[1]}
        return shapes


def _nested(
    argument: ArgumentFinding,
    nesting: Nesting,
    leaf: Callable[[LeafFinding], Any],
    namedtuple: Callable[[Nesting, list[Any]], Any],
) -> Any:
    if nesting.leaf is not None:
        return leaf(argument.leaves[nesting.leaf])
    if nesting.kind == "constant":
        return None
    parts = [_nested(argument, child, leaf, namedtuple) for child in nesting.children]
    if nesting.kind == "dict":
        return dict(zip(nesting.keys, parts, strict=True))
    if nesting.kind == "namedtuple":
        return namedtuple(nesting, parts)
    return tuple(parts) if nesting.kind == "tuple" else parts
