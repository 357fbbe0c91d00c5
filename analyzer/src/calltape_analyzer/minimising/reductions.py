"""The reductions of ``minimise``: fewer calls, arguments, cache layers and list elements, smaller
sizes, simpler values.

Calls are resized as representative arguments are. The variants of the whole tape tell which
dimensions are equal, which follow from others, and how integer values depend on sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from calltape_analyzer.arguments.samples import recorded_sample, resized, resized_row
from calltape_analyzer.arguments.sizings import with_relations
from calltape_analyzer.arguments.value_rules import value_rules
from calltape_analyzer.errors import TapeError
from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.minimising.search import Search, fewest, smallest_number, without_most
from calltape_analyzer.observing.size_table import SizeRow, value_in
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.caches import counted_size
from calltape_analyzer.pytree.tensors import dtype_of
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol
from calltape_analyzer.writing.synthetic import BuiltCall

__all__ = [
    "drop_arguments",
    "drop_calls",
    "drop_outcomes",
    "drop_parts",
    "shrink_sizes",
    "simplify_values",
]

_MAX_LISTS = 64

Path = tuple[int, ...]
"""The positions of a node and its ancestors among their siblings."""


def drop_calls(search: Search) -> None:
    """Leaves out calls until none can be left out any more."""
    with search.opened() as base:
        positions = range(len(base.calls))

        def enough(subset: list[int]) -> bool:
            what = f"{counted(len(subset), 'call')} of {len(positions)}"
            return search.keeps(what, (base.calls[position] for position in subset))

        fewest(positions, enough)


def drop_outcomes(search: Search) -> bool:
    """Leaves out outputs and exceptions. If this is false, the failure depends on them, so that
    arguments cannot be changed."""
    calls = list(search.tape.calls)
    if all(call.record.outputs is None and call.record.error is None for call in calls):
        return True
    return search.keeps("no outcomes", (ChangedCall(call).built() for call in calls))


def drop_arguments(search: Search) -> None:
    """Leaves out keyword arguments, then trailing positional ones; others become None."""
    with search.opened() as base:
        keys = [key for call in base.calls for key in ChangedCall(call).named["keys"]]
        names = list(dict.fromkeys(keys))

        def enough(names_kept: list[Any]) -> bool:
            changed = {i: ChangedCall(call) for i, call in enumerate(base.calls)}
            for changed_call in changed.values():
                _keep_children(
                    changed_call.named, [key in names_kept for key in changed_call.named["keys"]]
                )
            what = f"{len(names_kept)} of {counted(len(names), 'named argument')}"
            return search.keeps_changed(what, base.calls, changed)

        without_most(names, enough)

    def keeps(what: str, change: Callable[[list[Any]], bool]) -> bool:
        """Tries the same change of the positional arguments of all calls."""
        calls = [(i, ChangedCall(call)) for i, call in enumerate(search.tape.calls)]
        changed = {i: c for i, c in calls if change(c.positional["children"])}
        return search.keeps_changed(what, search.tape.calls, changed)

    while keeps("one positional argument less", lambda args: bool(args and args.pop())):
        pass
    most = max((len(ChangedCall(c).positional["children"]) for c in search.tape.calls), default=0)
    for position in reversed(range(most)):

        def set_none(arguments: list[Any], position: int = position) -> bool:
            if position >= len(arguments) or arguments[position]["kind"] == "none":
                return False
            arguments[position] = {"kind": "none"}
            return True

        keeps(f"None for positional argument {position}", set_none)


def drop_parts(search: Search) -> None:
    """Leaves out elements of lists, tuples and dicts among the arguments, the outermost first. The
    layers of a cache are such a list."""
    tried: set[Path] = set()
    while len(tried) < _MAX_LISTS:
        path = next(
            (
                list_path
                for list_path in _list_paths(search.tape.calls[0])
                if list_path not in tried
            ),
            None,
        )
        if path is None:
            return
        tried.add(path)
        _drop_elements(search, path)


def _list_paths(call: Call) -> Iterator[Path]:
    """The paths of lists, tuples and dicts among the arguments of a call, outermost first."""
    queue: list[tuple[Path, dict[str, Any]]] = []
    for i, side in enumerate(ChangedCall(call).root["children"]):
        queue += [((i, j), child) for j, child in enumerate(side["children"])]
    while queue:
        path, node = queue.pop(0)
        children = node.get("children", ())
        if children and node["kind"] in ("list", "tuple", "dict"):
            yield path
        queue += [((*path, i), child) for i, child in enumerate(children)]


def _drop_elements(search: Search, path: Path) -> None:
    with search.opened() as base:
        first = _list_at(ChangedCall(base.calls[0]), path)
        positions = list(range(len(first["children"])))

        def enough(positions_kept: list[int]) -> bool:
            changed: dict[int, ChangedCall] = {}
            for i, call in enumerate(base.calls):
                changed_call = ChangedCall(call)
                node = _list_at(changed_call, path)
                if node is not None and len(node["children"]) == len(positions):
                    _keep_children(
                        node, [position in set(positions_kept) for position in positions]
                    )
                    changed[i] = changed_call
            what = f"{len(positions_kept)} of {counted(len(positions), 'part')} of a list"
            return search.keeps_changed(what, base.calls, changed)

        # A model with fewer layers uses the first ones of a cache, so try these first.
        for length in dict.fromkeys((1, len(positions) // 2)):
            if 0 < length < len(positions) and enough(positions[:length]):
                return
        without_most(positions, enough)


def _list_at(changed: ChangedCall, path: Path) -> Any:
    node: Any = changed.root
    for position in path:
        children = node.get("children", ())
        if position >= len(children):
            return None
        node = children[position]
    return node if node["kind"] in ("list", "tuple", "dict") else None


def _keep_children(node: dict[str, Any], are_wanted: list[bool]) -> None:
    """Leaves out all other children of a node."""
    for name in ("children", "keys"):
        if name in node:
            pairs = zip(node[name], are_wanted, strict=True)
            node[name] = [child for child, is_wanted in pairs if is_wanted]


_MAX_CONSTANTS = 32
_FIRST_SIZES = (1, 2, 3)


def shrink_sizes(search: Search, source: Tape) -> None:
    """Shrinks the sizes of all calls, first of all together, then one by one.

    Args:
        search: the search, whose smallest tape has the calls.
        source: the whole tape, whose variants tell which sizes are equal.
    """
    with search.opened() as base:
        calls = list(base.calls)
        sized = _sized_calls(source, base)

        def keeps(what: str) -> bool:
            candidate: list[Call | BuiltCall] = []
            for call in calls:
                sized_call = sized.get(call.number)
                candidate.append(
                    call if sized_call is None or not sized_call.is_changed else sized_call.built()
                )
            return search.keeps(what, candidate)

        for size in _FIRST_SIZES if sized else ():
            are_possible = [sized_call.shrink_all(size) for sized_call in sized.values()]
            if all(are_possible) and keeps(f"all sizes {size}"):
                break
            for sized_call in sized.values():
                sized_call.undo()
        for sized_call in sized.values():
            for number in sized_call.free:
                sized_call.shrink(number, keeps)


def _sized_calls(source: Tape, base: Tape) -> dict[int, _SizedCall]:
    """The calls of a tape that belong to a variant of the whole tape, by number."""
    passed = {name for call in base.calls for name in _passed_names(call, base)}
    whole = source
    with suppress(TapeError):
        dropped = [
            name
            for name in source.signature.names
            if name not in passed
            and any(name in _passed_names(call, source) for call in source.calls[:100])
        ]
        whole = source.only(ignore=dropped)
    sized: dict[int, _SizedCall] = {}
    variants = whole.variants()
    sorter = CallSorter.of(whole).agreeing(variant.facts.group.layout for variant in variants)
    for variant in variants:
        facts = variant.facts
        row_numbers = {facts.rows.row(i): i for i in range(len(facts.rows))}
        rules: Any = None
        for call in base.calls:
            placed = sorter.sorted(call.record.inputs)
            if not facts.group.key.covers(placed.key):
                continue
            row = row_numbers.get(placed.row, 0)
            with suppress(TapeError):
                rules = value_rules(facts, whole.calls.at, sorter) if rules is None else rules
                sized_call = _SizedCall(call, facts, sorter, row, rules)
                if sized_call.fits(placed.row):
                    sized[call.number] = sized_call
    return sized


def _passed_names(call: Call, tape: Tape) -> list[str]:
    """The names of the arguments that a call passes."""
    changed = ChangedCall(call)
    count = len(changed.positional["children"])
    names = [tape.signature.name_at(i) for i in range(count)]
    return [*names, *map(str, changed.named["keys"])]


class _SizedCall:
    """A call that can be resized.

    Attributes:
        free: the numbers of the symbols that do not follow from others.
    """

    def __init__(
        self, call: Call, facts: VariantFacts, sorter: CallSorter, row: int, rules: Any
    ) -> None:
        self._call, self._row, self._rules = call, row, rules
        self._facts = replace(facts, symbols=[*facts.symbols, *_constants(facts)])
        placed = sorter.sorted(call.record.inputs)
        self._layout = placed.layout
        self._sample = recorded_sample(call, sorter)
        # The call may have been resized before, so its sizes can differ from those of the row.
        self._recorded = tuple(
            value_in(placed.row, symbol.columns[0]) for symbol in self._facts.symbols
        )
        self._values = self._before = self._recorded
        self._varied = len(facts.symbols)
        self.free = [i for i, symbol in enumerate(self._facts.symbols) if symbol.relation is None]

    def fits(self, row: SizeRow) -> bool:
        """Whether the symbols determine all sizes of the call."""
        return resized_row(self._facts, self._row, self._recorded) == row

    @property
    def is_changed(self) -> bool:
        return self._values != self._recorded

    def shrink_all(self, size: int) -> bool:
        """Sets all larger symbols that varied to a small size. False if that is impossible."""
        symbols = self._facts.symbols
        sizes = {
            i: size * symbols[i].unit
            for i in self.free
            if i < self._varied and self._values[i] > size * symbols[i].unit
        }
        return self._set(sizes)

    def undo(self) -> None:
        """Undoes the last change."""
        self._values = self._before

    def shrink(self, number: int, keeps: Callable[[str], bool]) -> None:
        """Finds the smallest size of one symbol."""

        def enough(value: int) -> bool:
            if not self._set({number: value}):
                return False
            what = f"size {self._values[number]} for {self._recorded[number]}"
            if keeps(f"{what} ({self._facts.symbols[number].name or 'a constant'})"):
                return True
            self.undo()
            return False

        symbol = self._facts.symbols[number]
        if self._values[number] > 1:
            smallest_number(self._values[number], symbol.unit if symbol.varied else 1, enough)

    def _set(self, sizes: dict[int, int]) -> bool:
        values = with_relations(self._facts.symbols, self._values, sizes)
        if values is None:
            return False
        self._before, self._values = self._values, values
        return True

    def built(self) -> BuiltCall:
        """The call with these sizes."""
        sample = resized(self._sample, self._facts, self._row, self._values, self._rules)
        changed = ChangedCall(self._call)
        shapes: dict[str, Sequence[int]] = {}
        recorded_shapes: dict[str, Sequence[int]] = {}
        facts = self._call.record.inputs.facts()
        pairs = zip(self._layout.tensors, sample.tensors, strict=True)
        for i, (place, tensor) in enumerate(pairs):
            shapes[str(place)] = tensor.shape
            recorded_shapes.setdefault(str(place), facts[place.number].shape)
            is_resized = list(tensor.shape) != list(changed.leaves[place.number]["shape"])
            if is_resized or i in self._rules:
                changed.set_tensor(place.number, tensor)
        for place, value in zip(self._layout.scalars, sample.scalars, strict=True):
            if place.number >= len(changed.scalars) or not place.is_int:
                continue  # the call does not pass it, or it is no size
            counted_dimension = counted_size(str(place))
            if counted_dimension is not None and counted_dimension[0] in shapes:
                path, axis = counted_dimension
                old = recorded_shapes[path]
                if len(old) >= 2 and old[axis] == changed.scalars[place.number]:
                    value = int(shapes[path][axis])
            changed.scalars[place.number] = value
        return changed.built()


def _constants(facts: VariantFacts) -> list[Symbol]:
    """Symbols for the dimensions that never varied; equal ones share a symbol."""
    columns = defaultdict(list)
    dynamic = {column for symbol in facts.symbols for column in symbol.columns}
    for column in facts.dimensions:
        if column.axis is not None and column not in dynamic:
            values = facts.rows.values(column)
            if values and min(values) > 1:
                columns[values].append(column)
    # First axes first: a smaller batch is more often possible than a smaller width.
    symbols = [Symbol(columns_of_value, values) for values, columns_of_value in columns.items()]
    symbols.sort(key=lambda symbol: min(column.axis or 0 for column in symbol.columns))
    return symbols[:_MAX_CONSTANTS]


_MAX_PIECES = 64
_MAX_HALVINGS = 40
_MAX_FILLS = 4
_MAX_ELEMENTS = 2**20
_SIMPLE: dict[type, tuple[Any, ...]] = {int: (0, 1), float: (0.0, 1.0), str: ("",), bytes: (b"",)}


def simplify_values(search: Search) -> None:
    """Simplifies the values of arguments: first of all tensors at once, then of each tensor, then
    of parts of it. dtypes and shapes do not change."""
    tensors: list[tuple[int, int]] = []
    zeros: dict[int, ChangedCall] = {}
    for position, call in enumerate(search.tape.calls):
        for leaf, facts in enumerate(call.record.inputs.facts()):
            data = b"" if facts.key is None else call.stored("inputs", leaf) or b""
            if any(data):
                tensors.append((position, leaf))
                changed = zeros.setdefault(position, ChangedCall(call))
                changed.values[leaf] = bytes(len(data))
    if not search.keeps_changed("all values 0", search.tape.calls, zeros):
        for position, leaf in tensors:
            _TensorValue(search, position, leaf).simplify()
    for position, call in enumerate(search.tape.calls):
        for number, value in enumerate(call.record.inputs.scalars):
            for simple in _SIMPLE.get(type(value), ()):
                if simple == value:
                    break
                changed = ChangedCall(search.tape.calls[position])
                changed.scalars[number] = simple
                what = f"{simple!r} for a number or text"
                if search.keeps_changed(what, search.tape.calls, {position: changed}):
                    break


class _TensorValue:
    """The value of a tensor on the smallest tape.

    Args:
        search: the search.
        position: the position of the call.
        leaf: the number of the tensor among the inputs.
    """

    def __init__(self, search: Search, position: int, leaf: int) -> None:
        self._search, self._position, self._leaf = search, position, leaf
        facts = search.tape.calls[position].record.inputs.facts()[leaf]
        self._name, self._is_quantized = facts.key, facts.quantizer is not None
        self._dtype = dtype_of(facts.dtype)

    def _data(self) -> bytes:
        return bytes(self._search.tape.calls[self._position].stored("inputs", self._leaf) or b"")

    def simplify(self) -> None:
        """Sets all elements to 0, to 1 or to one value, or else as many as possible to 0."""
        data = self._data()
        for text, value in (("0", bytes(len(data))), ("1", self._ones(len(data)))):
            if value is not None and (value == data or self._keeps(f"all {text}", value)):
                return
        size = self._dtype.itemsize
        if not size or not data or len(data) % size or len(data) // size > _MAX_ELEMENTS:
            return
        elements = [data[i : i + size] for i in range(0, len(data), size)]
        zero = bytes(size)
        nonzero = [i for i, element in enumerate(elements) if element != zero]
        length = -(-len(nonzero) // _MAX_PIECES) or 1
        pieces = [nonzero[start : start + length] for start in range(0, len(nonzero), length)]

        def enough(subset: list[list[int]]) -> bool:
            kept_elements = {i for piece in subset for i in piece}
            value = b"".join(e if i in kept_elements else zero for i, e in enumerate(elements))
            return self._keeps(f"{len(kept_elements)} of {len(elements)} elements, and 0", value)

        remaining = {elements[i] for piece in without_most(pieces, enough) for i in piece}
        for element in sorted(remaining)[:_MAX_FILLS]:
            # If all elements are equal, sizes may shrink further.
            if self._keeps("one value", element * len(elements)):
                break
        self._simplify_elements()

    def _simplify_elements(self) -> None:
        """Sets the remaining elements to 1, or to small or whole numbers."""
        import torch

        dtype = self._dtype
        if self._is_quantized or dtype.is_complex or dtype.itemsize == 0:
            return

        def keeps(what: str, change: Callable[[torch.Tensor], torch.Tensor]) -> bool:
            data = bytearray(self._data())
            try:
                tensor = change(torch.frombuffer(data, dtype=dtype)).to(dtype).contiguous()
                value = bytes(tensor.view(torch.uint8).numpy())
            except (RuntimeError, TypeError, ValueError):  # torch cannot compute with this dtype
                return False
            return value != data and self._keeps(what, value)

        if keeps("what is not 0 is 1", lambda tensor: (tensor != 0).to(torch.int8)):
            return
        if dtype.is_floating_point:
            keeps("whole numbers", lambda tensor: tensor.float().round())
            return
        for _ in range(_MAX_HALVINGS):
            if not keeps("half", lambda tensor: tensor.div(2, rounding_mode="trunc")):
                break
        for _ in range(_MAX_HALVINGS):
            if not keeps("1 less", lambda tensor: tensor - tensor.sign()):
                break

    def _keeps(self, what: str, value: bytes) -> bool:
        calls = self._search.tape.calls
        changed = ChangedCall(calls[self._position])
        changed.values[self._leaf] = value
        return self._search.keeps_changed(f"{self._name}: {what}", calls, {self._position: changed})

    def _ones(self, length: int) -> bytes | None:
        """So many bytes of ones; None if the dtype has none."""
        import torch

        if self._is_quantized:
            return None
        try:
            one_element = bytes(torch.ones(1).to(self._dtype).view(torch.uint8).numpy())
        except (RuntimeError, TypeError, ValueError):  # torch cannot compute with this dtype
            return None
        return (
            one_element * (length // len(one_element)) if length % len(one_element) == 0 else None
        )
