"""What makes a tape smaller: fewer calls, arguments and parts, smaller sizes, simpler values.

Parts are layers of a cache and elements of lists. Sizes become smaller by the resizing that
representative arguments use. What was learned from the whole tape holds for the resized calls too:
which dimensions are one symbol, which follow from others, what integers have to do with sizes.
Values become zeros, ones or small ints, for all of a tensor or for parts of it.
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
from calltape_analyzer.writing.built_calls import BuiltCall
from calltape_schema.tree import Leaf

__all__ = [
    "drop_arguments",
    "drop_calls",
    "drop_outcomes",
    "drop_parts",
    "shrink_sizes",
    "simplify_values",
]

_NONE = {"kind": "none"}
_MAX_LISTS = 64

Path = tuple[int, ...]


def drop_calls(search: Search) -> None:
    """Leaves calls out until none of the rest can be left out."""
    with search.opened() as base:
        places = range(len(base.calls))

        def enough(some: list[int]) -> bool:
            what = f"{counted(len(some), 'call')} of {len(places)}"
            return search.keeps(what, (base.calls[place] for place in some))

        fewest(places, enough)


def drop_outcomes(search: Search) -> bool:
    """Leaves out what the calls returned or raised. Tells whether the failure does without it: if
    not, arguments may not be changed, because the outcome is that of the recorded ones."""
    calls = list(search.tape.calls)
    if all(call.record.outputs is None and call.record.error is None for call in calls):
        return True
    return search.keeps("no outcomes", (ChangedCall(call).built() for call in calls))


def drop_arguments(search: Search) -> None:
    """Leaves arguments out: those by name, those at the end; others become None."""
    _drop_named(search)
    while _changed(search, "one positional argument less", _without_last):
        pass
    most = max((len(ChangedCall(c).positional["children"]) for c in search.tape.calls), default=0)
    for position in reversed(range(most)):
        _changed(search, f"None for positional argument {position}", _with_none, position)


def _drop_named(search: Search) -> None:
    with search.opened() as base:
        every = [key for call in base.calls for key in ChangedCall(call).named["keys"]]
        names = list(dict.fromkeys(every))

        def enough(kept: list[Any]) -> bool:
            changed = {at: ChangedCall(call) for at, call in enumerate(base.calls)}
            for one in changed.values():
                _keep(one.named, [key in kept for key in one.named["keys"]])
            what = f"{len(kept)} of {counted(len(names), 'named argument')}"
            return search.keeps_changed(what, base.calls, changed)

        without_most(names, enough)


def _without_last(changed: ChangedCall) -> bool:
    children = changed.positional["children"]
    return bool(children) and children.pop() is not None


def _with_none(changed: ChangedCall, position: int) -> bool:
    children = changed.positional["children"]
    if position >= len(children) or children[position]["kind"] == "none":
        return False
    children[position] = dict(_NONE)
    return True


def _changed(search: Search, what: str, change: Callable[..., bool], *args: Any) -> bool:
    """Tries the same change of all calls."""
    every = ((at, ChangedCall(call)) for at, call in enumerate(search.tape.calls))
    changed = {at: one for at, one in every if change(one, *args)}
    return search.keeps_changed(what, search.tape.calls, changed)


def drop_parts(search: Search) -> None:
    """Leaves out elements of lists, tuples and dicts among the arguments: a cache has its layers in
    one. Those that lie further outside come first."""
    tried: set[Path] = set()
    while len(tried) < _MAX_LISTS:
        path = next((one for one in _lists(search) if one not in tried), None)
        if path is None:
            return
        tried.add(path)
        _drop_from(search, path)


def _lists(search: Search) -> Iterator[Path]:
    """Where the first call has lists of values, outermost first."""
    waiting: list[tuple[Path, dict[str, Any]]] = []
    root = ChangedCall(search.tape.calls[0]).root
    for i, side in enumerate(root["children"]):
        waiting += [((i, j), child) for j, child in enumerate(side["children"])]
    while waiting:
        path, node = waiting.pop(0)
        children = node.get("children", ())
        if children and node["kind"] in ("list", "tuple", "dict"):
            yield path
        waiting += [((*path, i), child) for i, child in enumerate(children)]


def _drop_from(search: Search, path: Path) -> None:
    with search.opened() as base:
        first = _at(ChangedCall(base.calls[0]), path)
        places = list(range(len(first["children"])))

        def enough(kept: list[int]) -> bool:
            changed: dict[int, ChangedCall] = {}
            for at, call in enumerate(base.calls):
                one = ChangedCall(call)
                node = _at(one, path)
                if node is not None and len(node["children"]) == len(places):
                    _keep(node, [place in set(kept) for place in places])
                    changed[at] = one
            what = f"{len(kept)} of {counted(len(places), 'part')} of a list"
            return search.keeps_changed(what, base.calls, changed)

        # The first layers of a cache are what a model takes; a loop over them is halved.
        for length in dict.fromkeys((1, len(places) // 2)):
            if 0 < length < len(places) and enough(places[:length]):
                places_left = places[:length]
                break
        else:
            places_left = places
        if len(places_left) == len(places):
            without_most(places, enough)


def _at(changed: ChangedCall, path: Path) -> Any:
    node: Any = changed.root
    for place in path:
        children = node.get("children", ())
        if place >= len(children):
            return None
        node = children[place]
    return node if node["kind"] in ("list", "tuple", "dict") else None


def _keep(node: dict[str, Any], wanted: list[bool]) -> None:
    """Leaves out the other children of a node."""
    for name in ("children", "keys"):
        if name in node:
            pairs = zip(node[name], wanted, strict=True)
            node[name] = [one for one, is_wanted in pairs if is_wanted]


_MAX_CONSTANTS = 32
_FIRST_SIZES = (1, 2, 3)


def shrink_sizes(search: Search, source: Tape) -> None:
    """Makes the sizes of all calls smaller, first together, then one by one.

    Args:
        search: has the calls.
        source: the whole tape: its variants say which sizes belong together.
    """
    with search.opened() as base:
        calls = list(base.calls)
        sized = _sized_calls(source, base)

        def keeps(what: str) -> bool:
            made: list[Call | BuiltCall] = []
            for call in calls:
                one = sized.get(call.number)
                made.append(call if one is None or not one.is_changed else one.built())
            return search.keeps(what, made)

        for size in _FIRST_SIZES if sized else ():
            moved = [one.try_all(size) for one in sized.values()]
            if all(moved) and keeps(f"all sizes {size}"):
                break
            for one in sized.values():
                one.undo()
        for one in sized.values():
            for place in one.free:
                one.shrink(place, keeps)


def _sized_calls(source: Tape, base: Tape) -> dict[int, _SizedCall]:
    """The calls of a tape whose variant is known, by number."""
    signature = source.signature
    passed = {name for call in base.calls for name in _passed(call, base)}
    ignored = [name for name in signature.names if name not in passed]
    whole = source
    with suppress(TapeError):
        whole = source.only(ignore=[name for name in ignored if _is_there(source, name)])
    found: dict[int, _SizedCall] = {}
    variants = whole.variants()
    sorter = CallSorter.of(whole).agreeing(one.facts.group.layout for one in variants)
    for variant in variants:
        facts = variant.facts
        places = {facts.rows.row(at): at for at in range(len(facts.rows))}
        rules: Any = None
        for call in base.calls:
            placed = sorter.sorted(call.record.inputs)
            if not facts.group.key.covers(placed.key):
                continue
            row = places.get(placed.row, 0)
            with suppress(TapeError):
                rules = value_rules(facts, whole.calls.at, sorter) if rules is None else rules
                one = _SizedCall(call, facts, sorter, row, rules)
                if one.fits(placed.row):
                    found[call.number] = one
    return found


def _passed(call: Call, tape: Tape) -> list[str]:
    root = ChangedCall(call)
    count = len(root.positional["children"])
    names = [tape.signature.name_at(i) for i in range(count)]
    return [*names, *map(str, root.named["keys"])]


def _is_there(source: Tape, name: str) -> bool:
    return any(name in _passed(call, source) for call in source.calls[:100])


class _SizedCall:
    """A call that can be resized.

    Attributes:
        free: the numbers of the symbols that follow from no other one.
    """

    def __init__(
        self, call: Call, facts: VariantFacts, sorter: CallSorter, row: int, rules: Any
    ) -> None:
        self._call, self._row, self._rules = call, row, rules
        self._facts = replace(facts, symbols=[*facts.symbols, *_constants(facts)])
        placed = sorter.sorted(call.record.inputs)
        self._layout = placed.layout
        self._sample = recorded_sample(call, sorter)
        # Not always those of the row: the call may have been resized before.
        self._recorded = tuple(
            value_in(placed.row, symbol.columns[0]) for symbol in self._facts.symbols
        )
        self._values = self._before = self._recorded
        self._known = len(facts.symbols)
        self.free = [i for i, one in enumerate(self._facts.symbols) if one.relation is None]

    def fits(self, row: SizeRow) -> bool:
        """Whether the symbols explain all sizes of the call."""
        return resized_row(self._facts, self._row, self._recorded) == row

    @property
    def is_changed(self) -> bool:
        return self._values != self._recorded

    def try_all(self, size: int) -> bool:
        """Gives all symbols that varied a small size, as far as they are larger."""
        symbols = self._facts.symbols
        moved = {
            i: size * symbols[i].unit
            for i in self.free
            if i < self._known and self._values[i] > size * symbols[i].unit
        }
        return self._move(moved)

    def undo(self) -> None:
        """Takes the last change back."""
        self._values = self._before

    def shrink(self, place: int, keeps: Any) -> None:
        """Finds the smallest size of one symbol."""

        def enough(value: int) -> bool:
            if not self._move({place: value}):
                return False
            what = f"size {self._values[place]} for {self._recorded[place]}"
            if keeps(f"{what} ({self._facts.symbols[place].name or 'a constant'})"):
                return True
            self.undo()
            return False

        symbol = self._facts.symbols[place]
        if self._values[place] > 1:
            smallest_number(self._values[place], symbol.unit if symbol.varied else 1, enough)

    def _move(self, moved: dict[int, int]) -> bool:
        made = with_relations(self._facts.symbols, self._values, moved)
        if made is None:
            return False
        self._before, self._values = self._values, made
        return True

    def built(self) -> BuiltCall:
        """The call with these sizes."""
        sample = resized(self._sample, self._facts, self._row, self._values, self._rules)
        changed = ChangedCall(self._call)
        shapes: dict[str, Sequence[int]] = {}
        pairs = zip(self._layout.tensors, sample.tensors, strict=True)
        for i, (place, tensor) in enumerate(pairs):
            shapes[str(place)] = tensor.shape
            is_resized = list(tensor.shape) != list(changed.leaves[place.number]["shape"])
            if is_resized or i in self._rules:
                changed.set_tensor(place.number, tensor)
        for place, value in zip(self._layout.scalars, sample.scalars, strict=True):
            if place.number >= len(changed.scalars):
                continue  # the default of an int that the call leaves out
            beside = counted_size(str(place)) if place.is_int else None
            recorded = changed.scalars[place.number]
            if beside is not None and beside[0] in shapes:
                old = self._recorded_shape(beside[0])
                if old is not None and len(old) >= 2 and old[beside[1]] == recorded:
                    value = int(shapes[beside[0]][beside[1]])
            if place.is_int:
                changed.scalars[place.number] = value
        return changed.built()

    def _recorded_shape(self, path: str) -> Sequence[int] | None:
        facts = self._call.record.inputs.facts()
        return next((facts[p.number].shape for p in self._layout.tensors if str(p) == path), None)


def _constants(facts: VariantFacts) -> list[Symbol]:
    """Symbols for the dimensions that never varied: those that were always equal are one."""
    columns = defaultdict(list)
    dynamic = {column for symbol in facts.symbols for column in symbol.columns}
    for column in facts.dimensions:
        if column.axis is not None and column not in dynamic:
            values = facts.rows.values(column)
            if values and min(values) > 1:
                columns[values].append(column)
    # First axes first: a batch may be smaller more often than a width.
    found = [Symbol(same, values) for values, same in columns.items()]
    found.sort(key=lambda symbol: min(column.axis or 0 for column in symbol.columns))
    return found[:_MAX_CONSTANTS]


_MAX_PIECES = 64
_MAX_HALVINGS = 40
_MAX_FILLS = 4
_MAX_ELEMENTS = 2**20
_SIMPLE: dict[type, tuple[Any, ...]] = {int: (0, 1), float: (0.0, 1.0), str: ("",), bytes: (b"",)}

Bytes = bytes | bytearray


def simplify_values(search: Search) -> None:
    """Makes the values of arguments simple: of all tensors at once, of each one, of parts of it.
    dtypes and shapes stay."""
    places = [
        (at, leaf)
        for at, call in enumerate(search.tape.calls)
        for leaf, facts in enumerate(call.record.inputs.facts())
        if facts.key is not None and any(call.stored("inputs", leaf) or b"")
    ]
    if _with(search, "all values 0", {one: _zeros(search, *one) for one in places}):
        places = []
    for at, leaf in places:
        _simplify_tensor(search, at, leaf)
    for at, call in enumerate(search.tape.calls):
        for place in range(len(call.record.inputs.scalars)):
            _simplify_scalar(search, at, place)


def _simplify_tensor(search: Search, at: int, leaf: int) -> None:
    facts = search.tape.calls[at].record.inputs.facts()[leaf]
    name = facts.key or ""
    now = bytes(search.tape.calls[at].stored("inputs", leaf) or b"")
    for what, value in (("0", _zeros(search, at, leaf)), ("1", _ones(search, at, leaf))):
        if value is None:
            continue
        if value == now or _with(search, f"{name}: all {what}", {(at, leaf): value}):
            return
    elements = _elements(search, at, leaf)
    if elements is None:
        return
    zero = bytes(len(elements[0]))
    places = [i for i, one in enumerate(elements) if one != zero]
    size = -(-len(places) // _MAX_PIECES) or 1
    pieces = [places[start : start + size] for start in range(0, len(places), size)]

    def enough(kept: list[list[int]]) -> bool:
        wanted = {i for piece in kept for i in piece}
        value = b"".join(one if i in wanted else zero for i, one in enumerate(elements))
        what = f"{name}: {len(wanted)} of {len(elements)} elements, and 0"
        return _with(search, what, {(at, leaf): value})

    left = {elements[i] for piece in without_most(pieces, enough) for i in piece}
    for value in sorted(left)[:_MAX_FILLS]:
        # Where a value stands everywhere, sizes may get smaller.
        if _with(search, f"{name}: one value", {(at, leaf): value * len(elements)}):
            break
    _simplify_elements(search, at, leaf, facts)


def _simplify_elements(search: Search, at: int, leaf: int, facts: Leaf) -> None:
    """Makes the elements that are left 1, or else small or whole numbers."""
    import torch

    dtype = dtype_of(facts.dtype)
    if facts.quantizer is not None or dtype.is_complex or dtype.itemsize == 0:
        return

    def tried(what: str, change: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        value = bytearray(search.tape.calls[at].stored("inputs", leaf) or b"")
        try:
            made = change(torch.frombuffer(value, dtype=dtype)).to(dtype).contiguous()
            plain = bytes(made.view(torch.uint8).numpy())
        except (RuntimeError, TypeError, ValueError):  # torch cannot compute with this dtype
            return False
        return plain != value and _with(search, f"{facts.key}: {what}", {(at, leaf): plain})

    if tried("what is not 0 is 1", lambda one: (one != 0).to(torch.int8)):
        return
    if dtype.is_floating_point:
        tried("whole numbers", lambda one: one.float().round())
        return
    for _ in range(_MAX_HALVINGS):
        if not tried("half", lambda one: one.div(2, rounding_mode="trunc")):
            break
    for _ in range(_MAX_HALVINGS):
        if not tried("1 less", lambda one: one - one.sign()):
            break


def _simplify_scalar(search: Search, at: int, place: int) -> None:
    value = search.tape.calls[at].record.inputs.scalars[place]
    for simple in _SIMPLE.get(type(value), ()):
        if simple == value:
            return
        changed = ChangedCall(search.tape.calls[at])
        changed.scalars[place] = simple
        what = f"{simple!r} for a number or text"
        if search.keeps_changed(what, search.tape.calls, {at: changed}):
            return


def _with(search: Search, what: str, values: dict[tuple[int, int], Any]) -> bool:
    """Tries new values of leaves, by call and leaf."""
    calls = search.tape.calls
    changed = {at: ChangedCall(calls[at]) for at in sorted({at for at, _ in values})}
    for (at, leaf), value in values.items():
        changed[at].values[leaf] = value
    return search.keeps_changed(what, calls, changed)


def _zeros(search: Search, at: int, leaf: int) -> Bytes:
    return bytes(len(search.tape.calls[at].stored("inputs", leaf) or b""))


def _ones(search: Search, at: int, leaf: int) -> Bytes | None:
    import torch

    facts = search.tape.calls[at].record.inputs.facts()[leaf]
    length = len(search.tape.calls[at].stored("inputs", leaf) or b"")
    if facts.quantizer is not None:
        return None
    try:
        one = bytes(torch.ones(1).to(dtype_of(facts.dtype)).view(torch.uint8).numpy())
    except (RuntimeError, TypeError, ValueError):  # torch cannot compute with this dtype
        return None
    return one * (length // len(one)) if length % len(one) == 0 else None


def _elements(search: Search, at: int, leaf: int) -> list[bytes] | None:
    """The bytes of each element; None if there are very many, or they are no whole bytes."""
    value = bytes(search.tape.calls[at].stored("inputs", leaf) or b"")
    size = dtype_of(search.tape.calls[at].record.inputs.facts()[leaf].dtype).itemsize
    if not size or not value or len(value) % size or len(value) // size > _MAX_ELEMENTS:
        return None
    return [value[i : i + size] for i in range(0, len(value), size)]
