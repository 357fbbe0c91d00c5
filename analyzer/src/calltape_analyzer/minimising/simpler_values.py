"""The simplest values: zeros, ones, small ints; for all of a tensor, or for parts of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.minimising.halving import without_most
from calltape_analyzer.minimising.search import Search
from calltape_analyzer.pytree.tensors import dtype_of
from calltape_schema.tree import Leaf

__all__ = ["simplify_values"]

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
