"""Rules about the values of synthetic tensors, where tiling does not give valid ones.

Many integer tensors are valid only together with sizes: the offsets of sequences that lie one after
another end at the number of tokens, the nodes of edges are below the number of nodes, a padding
mask is ones and then zeros. A table of floats may have such a column: the picture of each box. A
rule is learned from recorded calls and must hold in all of them; each tensor has at most one
(docs/decisions/export-strategies.md). Offsets of a nested tensor that do not fit its values are
replaced by components of nearly equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from calltape_analyzer.arguments.synthetic_values import tiled
from calltape_analyzer.errors import TapeError, is_damage
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.tensors import check_offsets, is_row_of_indices
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.objects import JAGGED_DIM
from calltape_schema.tree import FieldsNode, ScalarNode, TensorNode

if TYPE_CHECKING:
    import torch


__all__ = [
    "ValueRule",
    "fit_offsets",
    "share_offsets",
    "value_rules",
]


def fit_offsets(
    nodes: Iterable[FieldsNode], tensors: list[Any] | dict[int, Any], scalars: Sequence[Any]
) -> None:
    """Replaces the offsets and lengths that do not fit the values beside them.

    Args:
        nodes: the nested tensors.
        tensors: what the nodes refer to, by number; changed in place.
        scalars: likewise.
    """
    import torch

    for node in nodes:
        parts = _leaves(node)
        dims = [
            int(scalars[child.scalar])
            for name, child in zip(node.fields, node.children, strict=True)
            if name == JAGGED_DIM and isinstance(child, ScalarNode) and child.kind == "int"
        ]
        if "values" not in parts or "offsets" not in parts or not dims:
            continue
        dim = dims[0]
        values, offsets = tensors[parts["values"]], tensors[parts["offsets"]]
        lengths = tensors[parts["lengths"]] if "lengths" in parts else None
        rows = [offsets] if lengths is None else [offsets, lengths]
        if not all(hasattr(part, "dim") for part in (values, *rows)):
            continue  # a value that was not kept
        if (
            not 1 <= dim <= values.dim()
            or not all(map(is_row_of_indices, rows))
            or not len(offsets)
        ):
            continue  # no offsets fit
        if not _fit(offsets, lengths, values.shape[dim - 1]):
            ends = torch.arange(len(offsets)) * values.shape[dim - 1]
            fitted = (ends // max(len(offsets) - 1, 1)).to(offsets)
            tensors[parts["offsets"]] = fitted
            if lengths is not None:
                tensors[parts["lengths"]] = fitted.diff().to(lengths)


def _fit(offsets: torch.Tensor, lengths: torch.Tensor | None, size: int) -> bool:
    """Whether these belong to values of this size. Without lengths, components have no gaps."""
    try:
        check_offsets(offsets, lengths, size)
    except ValueError:
        return False
    return lengths is not None or (int(offsets[0]) == 0 and int(offsets[-1]) == size)


def share_offsets(layout: ArgumentLayout, tensors: dict[int, Any]) -> None:
    """Makes offsets that were one tensor in the call one tensor again: two nested tensors have the
    same ragged dimension only then.

    Args:
        layout: of a recorded call, or of a variant.
        tensors: by their number in the layout; changed in place.
    """
    first: dict[int, int] = {}
    for node in layout.nested:
        for name, number in _leaves(node).items():
            if name in ("offsets", "lengths") and number in tensors:
                recorded = layout.tensors[number].number
                tensors[number] = tensors[first.setdefault(recorded, number)]


def _leaves(node: FieldsNode) -> Mapping[str, int]:
    pairs = zip(node.fields, node.children, strict=True)
    return {name: child.leaf for name, child in pairs if isinstance(child, TensorNode)}


_MAX_ROWS = 16
_MAX_ELEMENTS = 2**16
"""A larger tensor of integers is data (an image), and no index."""
_MAX_COLUMNS = 16
"""Of a table of floats; a wider one is features."""

_UNSIGNED = frozenset(("uint16", "uint32", "uint64"))
_FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))
_DTYPES = _UNSIGNED | {"bool", "uint8", "int8", "int16", "int32", "int64"}
"""Those below a byte hold no numbers that torch knows."""

_Sizes = Sequence[int]


class _Example(NamedTuple):
    """A tensor of one recorded call, and the value of each symbol in that call."""

    tensor: torch.Tensor
    sizes: _Sizes


@dataclass(frozen=True)
class ValueRule:
    """How valid values of a resized tensor are made.

    Attributes:
        name: of the rule: ``offsets``, ``segments``, ``permutation``, ``consecutive``, ``one-hot``,
            ``prefix mask``, ``suffix mask``, ``lengths``, ``sorted``, ``indices`` or
            ``index column``.
        make: from the recorded tensor, the new shape, and the new value of the rule's symbol (0
            without one).
        symbol: the number of the symbol that the values depend on, beside the tensor's own shape.
        needs_one: whether no value is valid if that symbol is 0, and a kernel may not look.
    """

    name: str
    make: Callable[[torch.Tensor, _Sizes, int], torch.Tensor]
    symbol: int | None = None
    needs_one: bool = False

    def resized(
        self, tensor: torch.Tensor, shape: _Sizes, before: _Sizes, now: _Sizes
    ) -> torch.Tensor | None:
        """The tensor in another shape; None if it may stay as it is.

        Args:
            tensor: as it was recorded.
            shape: the new shape.
            before, now: the value of each symbol in the recorded call, and the wanted one.
        """
        old, new = (0, 0) if self.symbol is None else (before[self.symbol], now[self.symbol])
        if (list(tensor.shape) == list(shape) and old == new) or 0 in (*tensor.shape, *shape):
            return None
        return self.make(_wide(tensor), shape, new).to(tensor.dtype).contiguous()


def value_rules(
    variant: VariantFacts, find: Callable[[CallRef], Call], sorter: CallSorter
) -> dict[int, ValueRule]:
    """The rules that held in recorded calls, by the number of the tensor in the layout.

    Args:
        variant: whose calls are looked at, as many as are needed to be sure.
        find: gives the call of a reference.
        sorter: lays calls out.

    Raises:
        TapeError: the tape is closed.
    """
    numbers = [number for number in range(len(variant.group.facts)) if _may_have(variant, number)]
    examples: dict[int, list[_Example]] = {number: [] for number in numbers}
    for call, sizes in _calls(variant, find, sorter) if numbers else ():
        for number in numbers:
            try:
                tensor = call.tensor("inputs", variant.group.layout.tensors[number].number)
            except TapeError as error:
                if not is_damage(error):
                    raise
                continue  # a damaged call tells nothing, and is told elsewhere
            if isinstance(tensor, Placeholder) or tensor.device.type == "meta":
                continue
            if 0 < tensor.numel() <= _MAX_ELEMENTS and tensor.dim():
                examples[number].append(_Example(_wide(tensor.detach()), sizes))
    rules = {number: _rule(of_tensor) for number, of_tensor in examples.items() if of_tensor}
    return {number: rule for number, rule in rules.items() if rule is not None}


def _may_have(variant: VariantFacts, number: int) -> bool:
    """Whether a tensor may have a rule: it has integers, or is a small table of floats."""
    facts = variant.group.facts[number]
    if facts.dtype in _DTYPES:
        return True
    if facts.dtype not in _FLOATS or facts.rank != 2:
        return False
    # By columns: a row has the sizes of all tensors.
    lengths, widths = (variant.rows.values(column) for column in variant.group.dimensions(number))
    is_table = len(set(widths)) == 1 and 1 < widths[0] <= _MAX_COLUMNS
    return is_table and max(lengths) * widths[0] <= _MAX_ELEMENTS


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers; torch has little arithmetic for unsigned ones of more than a byte."""
    name = str(tensor.dtype).removeprefix("torch.")
    return tensor.long() if name in _UNSIGNED else tensor


def _calls(
    variant: VariantFacts, find: Callable[[CallRef], Call], sorter: CallSorter
) -> Iterator[tuple[Call, _Sizes]]:
    """Some calls of the variant's own group, spread over its rows, with the values of the
    symbols."""
    step = max(1, len(variant.rows) // _MAX_ROWS)
    for row in range(0, len(variant.rows), step):
        call = find(variant.rows.calls_of(row).first)
        if variant.group.key.covers(sorter.sorted(call.record.inputs).key):
            yield call, [symbol.values[row] for symbol in variant.symbols]


def _rule(examples: Sequence[_Example]) -> ValueRule | None:
    if examples[0].tensor.is_floating_point():
        return _index_column(examples)
    for detect in (_mask, _segments, _offsets, _permutation, _consecutive, _lengths, _indices):
        rule = detect(examples)
        if rule is not None:
            return rule
    return None


def _symbols_where(
    examples: Sequence[_Example], size_of: Callable[[torch.Tensor], int | None], distinct: int = 1
) -> list[int]:
    """The symbols that were always equal to a number that each tensor gives, if that had so many
    distinct values."""
    sizes = [size_of(example.tensor) for example in examples]
    if len(set(sizes)) < distinct:
        return []
    symbols = range(len(examples[0].sizes))
    return [
        s for s in symbols if all(o.sizes[s] == n for o, n in zip(examples, sizes, strict=True))
    ]


def _is_sorted(tensor: torch.Tensor) -> bool:
    return bool((tensor[..., 1:] >= tensor[..., :-1]).all())


def _is_of_bits(examples: Sequence[_Example]) -> bool:
    return all(bool(((example.tensor == 0) | (example.tensor == 1)).all()) for example in examples)


def _mask(examples: Sequence[_Example]) -> ValueRule | None:
    """One 1 per row; or ones and then zeros, or zeros and then ones, as padding gives them."""
    if not _is_of_bits(examples):
        return None
    tensors = [example.tensor.long() for example in examples]
    if all(bool(t.all()) or not bool(t.any()) for t in tensors):
        return None
    if all(t.shape[-1] > 1 and bool((t.sum(-1) == 1).all()) for t in tensors):
        return ValueRule("one-hot", _one_hot)
    if all(_is_sorted(-t) for t in tensors):
        return ValueRule("prefix mask", _prefix)
    if all(_is_sorted(t) for t in tensors):
        return ValueRule("suffix mask", lambda *arguments: _prefix(*arguments).flip(-1))
    return None


def _one_hot(tensor: torch.Tensor, shape: _Sizes, _new: int) -> torch.Tensor:
    import torch

    places = _tiled(tensor.long().argmax(-1, keepdim=True), (*shape[:-1], 1)) % shape[-1]
    return torch.zeros(tuple(shape), dtype=torch.long).scatter_(-1, places, 1)


def _prefix(tensor: torch.Tensor, shape: _Sizes, _new: int) -> torch.Tensor:
    """As many ones per row, in proportion."""
    import torch

    ones = _tiled(tensor.long().sum(-1, keepdim=True), (*shape[:-1], 1))
    counts = (ones * shape[-1] + tensor.shape[-1] - 1) // tensor.shape[-1]
    return (torch.arange(shape[-1]) < counts).long()


def _segments(examples: Sequence[_Example]) -> ValueRule | None:
    """The number of the segment of each element: 0, 0, 1, 1, 1, 2."""
    tensors = [example.tensor.long() for example in examples]
    if any(t.dim() != 1 or int(t[0]) for t in tensors) or not any(int(t[-1]) for t in tensors):
        return None
    steps = [t.diff() for t in tensors]
    if any(bool(((s != 0) & (s != 1)).any()) for s in steps) or all(bool(s.all()) for s in steps):
        return None
    counted = _symbols_where(examples, lambda t: int(t[-1]) + 1)

    def make(tensor: torch.Tensor, shape: _Sizes, new: int) -> torch.Tensor:
        import torch

        wanted = new if counted else int(tensor[-1]) + 1
        count = max(1, min(wanted, shape[0]))
        return torch.arange(shape[0]) * count // shape[0]

    return ValueRule("segments", make, counted[0] if counted else None)


def _offsets(examples: Sequence[_Example]) -> ValueRule | None:
    """Where sequences begin that lie one after another; the last may be where they end."""
    tensors = [example.tensor.long() for example in examples]
    if any(t.dim() != 1 or int(t[0]) or not _is_sorted(t) for t in tensors):
        return None
    if not any(len(t) > 1 and int(t[-1]) > 1 for t in tensors):
        return None
    ends = _symbols_where(examples, lambda t: int(t[-1]))
    symbol = ends[0] if ends else _bound(examples)

    def make(tensor: torch.Tensor, shape: _Sizes, new: int) -> torch.Tensor:
        import torch

        lengths = tensor.long().diff()
        if not len(lengths):
            lengths = torch.ones(1, dtype=torch.long)
        offsets = torch.zeros(shape[0], dtype=torch.long)
        offsets[1:] = _tiled(lengths, (shape[0] - 1,)).cumsum(0)
        last = int(offsets[-1])
        end = new if ends else new - 1
        if symbol is not None and last and (ends or last > end):
            offsets = offsets * max(end, 0) // last
        return offsets

    return ValueRule("offsets", make, symbol)


def _permutation(examples: Sequence[_Example]) -> ValueRule | None:
    import torch

    tensors = [example.tensor.long() for example in examples]
    if all(t.shape[-1] < 2 or bool((t.diff(dim=-1) == 1).all()) for t in tensors):
        return None  # in order, or nothing to order
    if not all(bool((t.sort(-1).values == torch.arange(t.shape[-1])).all()) for t in tensors):
        return None

    def make(tensor: torch.Tensor, shape: _Sizes, _new: int) -> torch.Tensor:
        return _tiled(tensor.long(), shape).argsort(dim=-1, stable=True)

    return ValueRule("permutation", make)


def _consecutive(examples: Sequence[_Example]) -> ValueRule | None:
    """Numbers that follow each other in each row, such as positions. They begin at one number in
    all calls, or at a size: that of the past."""
    tensors = [example.tensor.long() for example in examples]
    if not all(bool((t.diff(dim=-1) == 1).all()) for t in tensors):
        return None
    firsts = [_first(t) for t in tensors]
    if None in firsts:
        return None
    begin = _symbols_where(examples, _first, distinct=2)
    lengths = {t.shape[-1] for t in tensors}
    if not begin and (len(set(firsts)) > 1 or len(lengths) < 2):
        return None

    def make(tensor: torch.Tensor, shape: _Sizes, new: int) -> torch.Tensor:
        import torch

        first = new if begin else int(tensor.flatten()[0])
        return (first + torch.arange(shape[-1])).expand(tuple(shape))

    return ValueRule("consecutive", make, begin[0] if begin else None)


def _first(tensor: torch.Tensor) -> int | None:
    """The first number of all rows, if they have the same one."""
    firsts = tensor[..., 0].flatten()
    return int(firsts[0]) if bool((firsts == firsts[0]).all()) else None


def _lengths(examples: Sequence[_Example]) -> ValueRule | None:
    """Lengths of sequences that were padded to the longest, or that lie one after another."""
    if any(e.tensor.dim() != 1 or bool((e.tensor.long() < 0).any()) for e in examples):
        return None
    if not any(len(example.tensor) > 1 for example in examples):
        return None  # one sequence has all of it, and says nothing of either
    total = _symbols_where(examples, lambda t: int(t.long().sum()), distinct=2)
    longest = _symbols_where(examples, lambda t: int(t.max()), distinct=2)
    if not total and not longest:
        return None

    def make(tensor: torch.Tensor, shape: _Sizes, new: int) -> torch.Tensor:
        import torch

        lengths = _tiled(tensor.long(), shape)
        if not total:
            largest = max(int(lengths.max()), 1)
            return (lengths * new + largest - 1) // largest
        ends = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        return (ends * new // max(int(ends[-1]), 1)).diff()

    return ValueRule("lengths", make, (total or longest)[0])


def _indices(examples: Sequence[_Example]) -> ValueRule | None:
    """Numbers below a size, such as the nodes of edges; in order, if they always were."""
    bound = _bound(examples)
    tensors = [example.tensor.long() for example in examples]
    rises = any(t.shape[-1] > 2 and bool((t[..., -1] > t[..., 0]).any()) for t in tensors)
    in_order = rises and all(map(_is_sorted, tensors))
    if bound is None and not in_order:
        return None

    def make(tensor: torch.Tensor, shape: _Sizes, new: int) -> torch.Tensor:
        import torch

        indices = _tiled(tensor.long(), shape)
        if bound is not None and new:
            indices = torch.where(indices >= new, indices % new, indices)
        return indices.sort(-1).values if in_order else indices

    return ValueRule("sorted" if in_order else "indices", make, bound)


def _index_column(examples: Sequence[_Example]) -> ValueRule | None:
    """Whole numbers below a size in one column of a table of floats: the picture of each box.
    Pictures of fewer than these would leave boxes that point beyond the batch."""
    whole = [
        column
        for column in range(examples[0].tensor.shape[-1])
        if all(
            bool(((of_call >= 0) & (of_call == of_call.floor())).all())
            for of_call in (example.tensor[:, column] for example in examples)
        )
    ]
    if len(whole) != 1:
        return None  # none, or a table of numbers that all are whole
    column = whole[0]
    numbers = [example._replace(tensor=example.tensor[:, column].long()) for example in examples]
    bound = _nearest_above(numbers)
    if bound is None or not any(bool(example.tensor.any()) for example in numbers):
        return None

    def make(tensor: torch.Tensor, shape: _Sizes, new: int) -> torch.Tensor:
        pairs = _tiled(tensor, shape).clone()
        if new:
            pairs[:, column] %= new
        return pairs

    return ValueRule("index column", make, bound, needs_one=True)


def _bound(examples: Sequence[_Example]) -> int | None:
    """The symbol that all values are below, the nearest one if they are below several."""
    if _is_of_bits(examples):
        return None  # a mask
    return _nearest_above(examples)


def _nearest_above(examples: Sequence[_Example]) -> int | None:
    slack: dict[int, int] = {}
    for symbol in range(len(examples[0].sizes)):
        distances = [example.sizes[symbol] - 1 - int(example.tensor.max()) for example in examples]
        if min(distances) >= 0:
            slack[symbol] = sum(distances)
    return min(slack, key=slack.__getitem__) if slack else None


def _tiled(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return tiled(tensor, shape, None, "")
