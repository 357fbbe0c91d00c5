"""Reads the facts of the tensors of one side of a call, before any of them is copied.

Each attribute of a tensor is read once, and no operator runs: the application does not notice.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from calltape_recorder.bounds import MAX_FACTS, MAX_RANGE_BYTES
from calltape_recorder.capture.structures import Wanted
from calltape_recorder.snapshot.facts import (
    CONJ,
    INFERENCE,
    INTEGERS,
    NEG,
    REQUIRES_GRAD,
    SIMPLE,
    Alias,
    LeafFacts,
    Shape,
    data_ptr,
    facts_of,
    is_contiguous,
    is_inference,
    is_neg,
    keys_of,
    numel,
    shape_like,
    storage_offset,
    stored_bytes,
    stride,
    untyped_storage,
)
from calltape_recorder.threads import is_interrupt
from calltape_schema.objects import name_of
from calltape_schema.privacy import FEWEST_RANGED


class SideFacts:
    """The facts of the leaves of one side. Sides whose leaves look the same share one object.

    Attributes:
        per_leaf: dtype, device and so on. Those of a structure are mostly one object.
        shapes: per leaf.
        same: per leaf, the earlier leaf that has the same memory and facts, or itself; None if no
            two leaves share memory.
        storages: per leaf, where it lies in memory that another leaf has too, or None; None if no
            two leaves share memory.
        sizes: per leaf, bytes of its copy; 0 if it has no copy of its own.
        nbytes: of all copies.
        is_on_cuda: whether any leaf is copied from a CUDA device.
    """

    __slots__ = ("is_on_cuda", "nbytes", "per_leaf", "same", "shapes", "sizes", "storages")

    def __init__(
        self, per_leaf: tuple[LeafFacts, ...], shapes: tuple[Shape, ...], sizes: tuple[int, ...],
        same: tuple[int, ...] | None = None, storages: tuple[Alias | None, ...] | None = None,
    ) -> None:  # fmt: skip
        self.per_leaf = per_leaf
        self.shapes = shapes
        self.sizes = sizes
        self.nbytes = sum(sizes)
        self.is_on_cuda = any(fact.direct == "cuda" for fact in per_leaf)
        self.same = same
        self.storages = storages


_CAPTURED = "a CUDA graph is being captured"

_Tensor = torch.Tensor
_cpu = torch.device("cpu")


def read_facts(leaves: list[Any], wanted: Wanted, before: tuple[LeafFacts, ...] = ()) -> SideFacts:
    """Facts, shapes, sizes and aliases of these leaves.

    A leaf that is not wanted has a size only if its range is kept. It then has integers, not few of
    them, and at most :data:`MAX_RANGE_BYTES`. Facts that equal those from ``before`` are the same
    object.
    """
    facts: list[LeafFacts] = []
    shapes: list[Shape] = []
    sizes: list[int] = []
    storages: list[int] = []
    any_cuda = False
    fact: LeafFacts | None
    for index, leaf in enumerate(leaves):
        kept = wanted if isinstance(wanted, bool) else wanted[index]
        try:
            fact = None
            # The plain case takes as few reads as possible. A leaf without contiguous memory of its
            # own raises at a read.
            if type(leaf) is _Tensor and is_contiguous(leaf):
                traits = leaf.dtype, keys_of(leaf), leaf.requires_grad
                fact = _plain.get(traits) or _plain_facts(leaf, traits)
            if fact is None:
                fact, shape, storage, size = _facts_of_any(leaf, kept)
            else:
                memory = untyped_storage(leaf)
                storage = memory._cdata
                any_cuda = any_cuda or fact.direct == "cuda"
                shape, size = shape_like(leaf.shape), leaf.nbytes
                if not (kept or _has_range(fact, size)):
                    size = 0
                elif size and memory.nbytes() < storage_offset(leaf) * leaf.itemsize + size:
                    fact, size = fact._replace(missing="its storage was freed"), 0
                elif size and not data_ptr(leaf):
                    fact, size = fact._replace(missing="it has no memory"), 0
        except Exception as error:
            if is_interrupt(error):
                raise
            fact, shape, storage, size = _facts_of_any(leaf, kept)
        facts.append(fact)
        shapes.append(shape)
        sizes.append(size)
        storages.append(storage)
    if any_cuda and torch.cuda.is_current_stream_capturing():
        for index, fact in enumerate(facts):
            if fact.direct == "cuda" and fact.missing is None:
                facts[index], sizes[index] = fact._replace(missing=_CAPTURED), 0
    same = aliases = None
    if len(set(storages)) < len(storages):
        same, aliases = _aliased(leaves, facts, shapes, sizes, storages, wanted)
    per_leaf = tuple(facts)
    return SideFacts(
        before if per_leaf == before else per_leaf, tuple(shapes), tuple(sizes), same, aliases
    )


_plain: dict[tuple[Any, ...], LeafFacts] = {}
"""Facts of plain tensors by what was read of them. Equal leaves have one object. So a call that
waits to be written adds few objects to those that Python's garbage collector goes through: with one
for each leaf, the collector took half of the time of a recorded decode step."""


def _plain_facts(leaf: Any, traits: tuple[Any, ...]) -> LeafFacts | None:
    """The facts of a contiguous tensor of the plain class; None if it is no plain tensor."""
    dtype, keys, requires_grad = traits
    device = _cpu
    if leaf.is_cuda:  # of several devices, each has its own facts
        device = leaf.device
        traits = (*traits, device)
        shared = _plain.get(traits)
        if shared is not None:
            return shared
    elif not leaf.is_cpu:
        return None
    if dtype not in SIMPLE or is_neg(leaf):
        return None
    flags = (REQUIRES_GRAD if requires_grad else 0) | (INFERENCE if is_inference(leaf) else 0)
    if keys_of(leaf) != keys:  # another thread gave the tensor other memory meanwhile
        return None
    if len(_plain) >= MAX_FACTS:
        _plain.clear()
    facts = _plain[traits] = LeafFacts(dtype, device, flags, None, device.type)
    return facts


def _has_range(fact: LeafFacts, size: int) -> bool:
    return fact.dtype in INTEGERS and FEWEST_RANGED * fact.dtype.itemsize <= size <= MAX_RANGE_BYTES


def _facts_of_any(leaf: Any, kept: bool) -> tuple[LeafFacts, Shape, int, int]:
    """Facts, shape, storage and size of a leaf that may be anything."""
    fact, shape = facts_of(leaf)
    storage, size = id(leaf), 0
    if fact.missing is not None:
        return fact, shape, storage, size
    if not issubclass(type(leaf), _Tensor):
        size = stored_bytes(fact, shape)
        return fact, shape, storage, size if kept or _has_range(fact, size) else 0
    try:
        with torch._C.DisableTorchFunctionSubclass():
            memory = untyped_storage(leaf)
            storage = memory._cdata
            last = sum((size - 1) * step for size, step in zip(shape, stride(leaf), strict=False))
            end = (storage_offset(leaf) + last + 1) * fact.dtype.itemsize
            if fact.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                fact = fact._replace(missing=_CAPTURED)
            elif numel(leaf) and memory.nbytes() < end:
                fact = fact._replace(missing="its storage was freed")
            else:
                size = stored_bytes(fact, shape)
    except Exception as error:  # a tensor that left torch.func.vmap has no storage
        if is_interrupt(error):
            raise
        missing = f"not readable: {name_of(type(error))}"
        fact = fact._replace(missing=missing, strides=None, expanded=())
        return fact, shape, id(leaf), 0
    return fact, shape, storage, size if kept or _has_range(fact, size) else 0


def _aliased(
    leaves: list[Any], facts: list[LeafFacts], shapes: list[Shape], sizes: list[int],
    storages: list[int], wanted: Wanted,
) -> tuple[tuple[int, ...], tuple[Alias | None, ...]]:  # fmt: skip
    """``same`` and ``storages`` of a side. A leaf that is the same as another gets size 0."""
    uses = Counter(storages)
    numbers: dict[int, int] = {}
    begins: dict[int, int] = {}
    places: list[int | None] = []
    for leaf, fact, storage in zip(leaves, facts, storages, strict=False):
        place = None
        if uses[storage] > 1 and fact.missing is None and issubclass(type(leaf), _Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                place = int(storage_offset(leaf)) * fact.dtype.itemsize
            begins[storage] = min(begins.get(storage, place), place)
        places.append(place)
    first: dict[Any, int] = {}
    same: list[int] = []
    aliases: list[Alias | None] = []
    for index, (fact, storage, place) in enumerate(zip(facts, storages, places, strict=False)):
        earlier, alias = index, None
        if uses[storage] > 1:
            offset = 0 if place is None else place - begins[storage]
            alias = Alias(numbers.setdefault(storage, len(numbers)), offset)
        if place is not None:
            view = (
                fact._replace(flags=fact.flags & (CONJ | NEG), subclass=None, direct=""),
                shapes[index],
            )
            # A wanted leaf must not refer to an unwanted one, whose bytes are not kept.
            kept = wanted if isinstance(wanted, bool) else wanted[index]
            earlier = first.setdefault((storage, place, view, kept), index)
        same.append(earlier)
        aliases.append(alias)
        if earlier != index:
            sizes[index] = 0
    return tuple(same), tuple(aliases)
