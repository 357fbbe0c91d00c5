"""What is known of the tape as one program, as plain data that needs no torch.

In comes the evidence, dimension by dimension. Out go findings, of which every target (torch.export,
ONNX, the tables of the command) is a translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, computed_field

from calltape_analyzer.observing.parameter_nesting import ParameterNesting
from calltape_analyzer.observing.sizes_seen import SizeSeen
from calltape_analyzer.plain_data import PlainData
from calltape_analyzer.pytree.nesting import nested
from calltape_analyzer.text import counted

__all__ = [
    "ArgumentFinding",
    "AxisFinding",
    "LeafFinding",
    "Nesting",
    "ShapeFindings",
    "SizeSeen",
]


class AxisFinding(PlainData):
    """One dimension.

    Attributes:
        axis: from 0.
        dynamic: whether a program must take any size here.
        reason: ``varied`` (there were several sizes), ``declared`` (the caller said that it is a
            batch dimension) or ``constant``.
        sizes: the sizes seen, smallest first; of more than 64 the smallest 63 and the largest.
        distinct: how many sizes were seen.
        name: of a dynamic dimension, if names were asked for.
        whole: the smallest and largest size over all calls, if the tape has counters of calls that
            were not kept, and these had further sizes.
    """

    axis: int
    dynamic: bool
    reason: Literal["varied", "declared", "constant"]
    sizes: tuple[SizeSeen, ...]
    distinct: int
    name: str | None = None
    whole: tuple[int, int] | None = None


class LeafFinding(PlainData):
    """One tensor of an argument.

    Attributes:
        path: where it stands below the argument; ``""`` if the argument is the tensor.
        dtype: as torch names it.
        axes: its dimensions.
        calls: how many calls have it.
        missing: how many calls do not.
    """

    path: str
    dtype: str | None
    axes: tuple[AxisFinding, ...]
    calls: int
    missing: int

    @property
    def named_axes(self) -> dict[int, str | None]:
        """The dynamic axes, with their name or None."""
        return {axis.axis: axis.name for axis in self.axes if axis.dynamic}


def _hashable(key: Any) -> Any:
    """A key of a dict that came back from JSON, which has no tuples."""
    return tuple(map(_hashable, key)) if isinstance(key, (list, tuple)) else key


class Nesting(PlainData):
    """How the leaves of an argument nest.

    Attributes:
        kind: of a leaf ``tensor``, or ``constant`` if it has no shape; else the container.
        leaf: of a tensor, its place among the leaves of the argument.
        children: the parts of a container.
        keys: the keys of a dict; the fields of a named tuple.
        type: the class of a named tuple.
    """

    kind: Literal["tensor", "constant", "list", "tuple", "dict", "namedtuple"]
    leaf: int | None = None
    children: tuple[Nesting, ...] = ()
    keys: Annotated[tuple[Any, ...], AfterValidator(_hashable)] = ()
    type: str | None = None


class ArgumentFinding(PlainData):
    """One argument.

    Attributes:
        name: of its parameter.
        passed: how it was passed; ``constant`` for a scalar passed by keyword.
        leaves: its tensors.
        nesting: how the leaves nest.
    """

    name: str
    passed: Literal["positional", "keyword", "constant"]
    leaves: tuple[LeafFinding, ...] = ()
    nesting: Nesting


class ShapeFindings(PlainData):
    """Everything that ``infer_dynamic_shapes`` knows.

    Attributes:
        calls: how many calls the findings rest on.
        arguments: in the order in which torch.export takes them.
        as_tuple: whether the shapes are a tuple (all arguments are positional) or a dict by name.
        variadic: the name of ``*args``, whose arguments are one tuple in the dict, and how many
            arguments stand before them; None if it took none.
        extra: the name of ``**kwargs``, and the names of the arguments that it took; None if it
            took none.
        representative: the number of the call whose arguments stand for all.
        notes: what a reader should know about how the answer came about.
    """

    calls: int
    arguments: tuple[ArgumentFinding, ...]
    as_tuple: bool
    variadic: tuple[str, int] | None = None
    extra: tuple[str, tuple[str, ...]] | None = None
    representative: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        axes = [axis for one in self.arguments for leaf in one.leaves for axis in leaf.axes]
        arguments = counted(len(self.arguments), "argument")
        dynamic = f"{sum(axis.dynamic for axis in axes)} of {counted(len(axes), 'size')} dynamic"
        return f"<ShapeFindings of {counted(self.calls, 'call')}: {arguments}, {dynamic}>"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def dynamic_shapes(self) -> Any:
        """The dynamic axes of each tensor with their name or None, in the nesting of the
        arguments."""
        return self.nested(lambda leaf: leaf.named_axes)

    def leaves(self) -> Iterator[tuple[ArgumentFinding, LeafFinding]]:
        """All tensors with their arguments, in flattening order."""
        for argument in self.arguments:
            for leaf in argument.leaves:
                yield argument, leaf

    def nested(
        self,
        leaf: Callable[[LeafFinding], Any],
        namedtuple: Callable[[Nesting, list[Any]], Any] = lambda _, parts: tuple(parts),
    ) -> tuple[Any, ...] | dict[str, Any]:
        """The findings in the nesting of ``dynamic_shapes``.

        Args:
            leaf: gives what stands for a tensor. None stands for a constant.
            namedtuple: gives what stands for a named tuple of these parts.
        """
        values: dict[str, Any] = {}
        for argument in self.arguments:

            def shown(form: Nesting, leaves: tuple[LeafFinding, ...] = argument.leaves) -> Any:
                return None if form.leaf is None else leaf(leaves[form.leaf])

            values[argument.name] = nested(argument.nesting, shown, namedtuple)
        positional = sum(argument.passed == "positional" for argument in self.arguments)
        nesting = ParameterNesting(self.as_tuple, positional, self.variadic, self.extra)
        return nesting.arranged(values)
