"""Tensors to host memory that nobody else can change.

Nothing here is visible to the host: no autograd graph, no version counter, no dispatch mode and no
random number generator is touched. Contiguous host memory is copied as it lies, without any
operator; everything else goes through ordinary operators below autograd and all modes.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from calltape_recorder.buffers import Buffer, Buffers
from calltape_recorder.device_copies import Copies, copy_out
from calltape_recorder.facts import (
    CONJ,
    DTYPES,
    INFERENCE,
    NEG,
    REQUIRES_GRAD,
    SIMPLE,
    Facts,
    facts_of,
    stored_bytes,
)
from calltape_recorder.gathering import gather
from calltape_recorder.structures import Wanted
from calltape_recorder.withholding import FEWEST_RANGED

__all__ = [
    "RANGE_BYTES", "Piece", "Seen", "data_of", "joined", "release", "see", "settle", "take",
]  # fmt: skip

# Up to here a copy gets memory of its own; larger ones of one side share a pooled buffer.
_SMALL = 64 * 1024
RANGE_BYTES = 1024 * 1024

_c_char = ctypes.c_char
_array_types: dict[int, Any] = {}


class Piece(NamedTuple):
    """The bytes of one leaf, and what keeps them: a tensor of our own, or a pooled buffer, which
    stands with the first leaf only of those that share it. ``whole`` is all of that buffer, and the
    bytes begin at ``begin`` in it."""

    data: memoryview
    owner: Any
    whole: memoryview | None = None
    begin: int = 0


class Seen(NamedTuple):
    """What is known of the leaves of one side before anything is copied.

    Attributes:
        facts: per leaf.
        same: per leaf, the earlier leaf that has the same memory and facts, or itself; None where
            no two leaves share memory.
        storages: per leaf, its alias group, or None; None where no two leaves share memory.
        sizes: per leaf, bytes of its copy; 0 where it has none of its own.
    """

    facts: tuple[Facts, ...]
    same: tuple[int, ...] | None
    storages: tuple[int | None, ...] | None
    sizes: list[int]


_Tensor = torch.Tensor
_cpu = torch.device("cpu")
_make = tuple.__new__  # of a named tuple: cheaper than calling the class


def see(leaves: list[Any], wanted: Wanted) -> Seen:
    """Facts, sizes and aliases of these leaves. Of a leaf that is not wanted only integers of up
    to :data:`RANGE_BYTES`, and not few of them, have a size: their range is kept."""
    facts: list[Facts] = []
    sizes: list[int] = []
    storages: list[int] = []
    for leaf in leaves:
        try:
            # The plain case in as few reads as possible. Whatever has no contiguous memory of its
            # own raises at one of them.
            if (
                type(leaf) is _Tensor
                and (dtype := leaf.dtype) in SIMPLE
                and leaf.is_cpu
                and leaf.is_contiguous()
                and not leaf.is_neg()
            ):
                memory = leaf.untyped_storage()
                size = leaf.nbytes
                storage = memory._cdata
                flags = REQUIRES_GRAD if leaf.requires_grad else 0
                if leaf.is_inference():
                    flags |= INFERENCE
                fact = _make(Facts, (
                    dtype, leaf.shape, _cpu, flags, None, True, None, (), None, None, None,
                ))  # fmt: skip
                if memory.nbytes() < leaf.storage_offset() * leaf.itemsize + size:
                    fact = fact._replace(missing="its storage was freed")
                    size = 0
                elif size and not leaf.data_ptr():
                    fact = fact._replace(missing="it has no memory")
                    size = 0
            else:
                fact, storage, size = _careful(leaf)
        except Exception:
            fact, storage, size = _careful(leaf)
        facts.append(fact)
        sizes.append(size)
        storages.append(storage)
    if wanted is not True:
        _without_values(facts, sizes, wanted)
    if len(set(storages)) == len(storages):
        return _make(Seen, (tuple(facts), None, None, sizes))
    return _aliased(leaves, facts, sizes, storages, wanted)


def _without_values(facts: list[Facts], sizes: list[int], wanted: Wanted) -> None:
    for index, size in enumerate(sizes):
        kept = wanted if isinstance(wanted, bool) else wanted[index]
        if size and not kept and not _has_range(facts[index], size):
            sizes[index] = 0


def _has_range(fact: Facts, size: int) -> bool:
    known = DTYPES.get(fact.dtype)
    if known is None or not known.is_integer:
        return False
    return FEWEST_RANGED * known.itemsize <= size <= RANGE_BYTES


def _careful(leaf: Any) -> tuple[Facts, int, int]:
    """Facts, storage and size of a leaf that may be anything."""
    fact = facts_of(leaf)
    if fact.missing is not None:
        return fact, id(leaf), 0
    if not isinstance(leaf, _Tensor):
        return fact, id(leaf), stored_bytes(fact)
    with torch._C.DisableTorchFunctionSubclass():
        memory = leaf.untyped_storage()
        if leaf.is_cuda and torch.cuda.is_current_stream_capturing():
            return fact._replace(missing="a CUDA graph is being captured"), memory._cdata, 0
        last = sum((size - 1) * step for size, step in zip(leaf.shape, leaf.stride(), strict=False))
        if leaf.numel() and memory.nbytes() < (leaf.storage_offset() + last + 1) * leaf.itemsize:
            return fact._replace(missing="its storage was freed"), memory._cdata, 0
        return fact, memory._cdata, stored_bytes(fact)


def _aliased(
    leaves: list[Any], facts: list[Facts], sizes: list[int], storages: list[int], wanted: Wanted
) -> Seen:
    uses = Counter(storages)
    groups: dict[int, int] = {}
    first: dict[Any, int] = {}
    same: list[int] = []
    aliases: list[int | None] = []
    for index, (fact, storage) in enumerate(zip(facts, storages, strict=False)):
        shared = uses[storage] > 1
        aliases.append(groups.setdefault(storage, len(groups)) if shared else None)
        earlier = index
        if shared and fact.missing is None and isinstance(leaves[index], torch.Tensor):
            view = fact._replace(flags=fact.flags & (CONJ | NEG), subclass=None, direct=False)
            # A wanted leaf does not lean on one that is not: that one's bytes are not kept.
            kept = wanted if isinstance(wanted, bool) else wanted[index]
            with torch._C.DisableTorchFunctionSubclass():
                earlier = first.setdefault((storage, leaves[index].data_ptr(), view, kept), index)
        same.append(earlier)
        if earlier != index:
            sizes[index] = 0
    return Seen(tuple(facts), tuple(same), tuple(aliases), sizes)


def take(leaves: list[Any], seen: Seen, buffers: Buffers) -> list[Any]:
    """Copies every leaf that has a size; None for the others.

    The caller may change its tensors at once. Copies from a CUDA device may be under way:
    :func:`settle` waits for them.
    """
    if not any(seen.sizes):
        return [None] * len(leaves)
    pieces: list[Any] = []
    large: list[int] = []
    distant: list[int] = []
    for leaf, fact, size in zip(leaves, seen.facts, seen.sizes, strict=False):
        if not size:
            pieces.append(None)
        elif fact.direct:
            if size <= _SMALL:
                pieces.append(bytearray(_array_type(size).from_address(leaf.data_ptr())))
            else:
                large.append(len(pieces))
                pieces.append(None)
        elif isinstance(leaf, _Tensor):
            if fact.device.type == "cuda":
                distant.append(len(pieces))
                pieces.append(None)
            else:
                pieces.append(_computed(leaf, fact, size))
        else:
            array = leaf.copy(order="C")
            pieces.append(Piece(_memory(array.ctypes.data, size), array))
    if large:
        _pooled(leaves, seen.sizes, large, pieces, buffers)
    if distant:
        _from_device(leaves, seen, distant, pieces)
    return pieces


def settle(pieces: Iterable[Any]) -> None:
    """Waits for copies that are under way.

    Raises:
        RuntimeError: the device failed.
    """
    for piece in pieces:
        if type(piece) is Piece and type(piece.owner) is _Distant:
            piece.owner.copies.wait()


def data_of(piece: Any) -> Any:
    """The bytes of one leaf as :func:`take` gave them; none for a leaf without any."""
    if type(piece) is bytearray:
        return piece
    return b"" if piece is None else piece.data


def joined(pieces: Iterable[Any]) -> list[Any]:
    """The bytes of these leaves in order, as few parts: what lies side by side is one."""
    parts: list[Any] = []
    whole: memoryview | None = None
    begin = end = 0
    for piece in pieces:
        if type(piece) is not Piece or piece.whole is None:
            parts.append(data_of(piece))
            whole = None
            continue
        if piece.whole is whole and piece.begin == end:
            end += len(piece.data)
            parts[-1] = piece.whole[begin:end]
        else:
            whole, begin = piece.whole, piece.begin
            end = begin + len(piece.data)
            parts.append(piece.data)
    return parts


def _array_type(size: int) -> Any:
    known = _array_types.get(size)
    if known is None:
        if len(_array_types) > 4096:
            _array_types.clear()
        known = _array_types[size] = _c_char * size
    return known


def _memory(address: int, size: int) -> memoryview:
    return memoryview((_c_char * size).from_address(address)).cast("B")


def _pooled(
    leaves: list[Any], sizes: list[int], large: list[int], pieces: list[Any], buffers: Buffers
) -> None:
    """Copies the large leaves into one buffer, in order: what stands side by side in memory is
    checked and written as one."""
    buffer = buffers.take(sum([sizes[index] for index in large]))
    try:
        # Until they are copied these are ours as well: another thread may give a tensor other
        # memory while the interpreter lock is away.
        held = [leaves[index].untyped_storage() for index in large]
        sources = [
            _source(leaves[index], memory, sizes[index])
            for index, memory in zip(large, held, strict=True)
        ]
        gather(sources, buffer.address)
        owner: Buffer | None = buffer
        begin, view = 0, buffer.view
        for index, (_, size) in zip(large, sources, strict=True):
            pieces[index] = _make(Piece, (view[begin : begin + size], owner, view, begin))
            owner = None
            begin += size
    except BaseException:
        buffers.give_back(buffer)
        raise


def _source(leaf: torch.Tensor, memory: torch.UntypedStorage, size: int) -> tuple[int, int]:
    """Where these bytes are.

    Raises:
        RuntimeError: they are not there any more.
    """
    begin = int(leaf.storage_offset()) * leaf.itemsize
    if begin + size > memory.nbytes():
        raise RuntimeError("a tensor was given other memory while it was recorded")
    return memory.data_ptr() + begin, size


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Operators in here are seen by no mode, no autograd and no tensor subclass."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


class _Distant(NamedTuple):
    """Pinned memory that a device copies to."""

    memory: torch.Tensor
    copies: Copies


def _from_device(leaves: list[Any], seen: Seen, distant: list[int], pieces: list[Any]) -> None:
    facts = [seen.facts[index] for index in distant]
    try:
        with _unseen():
            mine, copies = copy_out(
                [leaves[index] for index in distant],
                lambda place, tensor: _copyable(_plain(tensor, facts[place])),
            )
    except Exception:  # no pinned memory to be had: wait for each instead
        for index, fact in zip(distant, facts, strict=True):
            pieces[index] = _computed(leaves[index], fact, seen.sizes[index])
        return
    for index, memory in zip(distant, mine, strict=True):
        data = _memory(memory.data_ptr(), seen.sizes[index])
        pieces[index] = Piece(data, _Distant(memory, copies))


def _computed(tensor: torch.Tensor, fact: Facts, size: int) -> Piece:
    """Contiguous host copy of a strided, expanded, conjugated, quantized or device tensor."""
    with _unseen():
        value = _plain(tensor, fact)
        if value.device.type != "cpu":
            # Waits for the device: correct, and the price of recording from one.
            value = value.to("cpu")
        # Not contiguous(): that would return the host's own memory where nothing was to be done.
        mine = _copyable(value).clone(memory_format=torch.contiguous_format)
        return Piece(_memory(mine.data_ptr(), size), mine)


def _plain(tensor: torch.Tensor, fact: Facts) -> torch.Tensor:
    """The elements that are stored, as a tensor without subclass, quantizer and lazy bits."""
    value = tensor.detach()
    if type(value) is not torch.Tensor:
        value = value.as_subclass(torch.Tensor)
    if fact.quantizer is not None:
        value = value.int_repr()
    for axis in fact.expanded:
        value = value.narrow(axis, 0, 1)
    return value.resolve_conj().resolve_neg()


def _copyable(value: torch.Tensor) -> torch.Tensor:
    if value.dtype in _UNCOPYABLE:  # shells without a copy kernel, of one byte each
        return value.view(torch.uint8)
    if value.dtype in _EXPERIMENTAL:  # their kernels warn, in the host's name
        return torch.view_as_real(value)
    return value


_UNCOPYABLE = frozenset(
    dtype
    for dtype, known in DTYPES.items()
    if known.itemsize == 1
    and known.name.startswith(("int", "uint", "bits", "float4"))
    and known.name not in ("int8", "uint8")
)


_EXPERIMENTAL = frozenset(dtype for dtype in DTYPES if dtype.is_complex and dtype.itemsize == 4)


def release(pieces: list[Any], buffers: Buffers) -> None:
    """Gives the pooled buffers of these pieces back; their data may not be read afterwards."""
    for piece in pieces:
        if type(piece) is Piece and type(piece.owner) is Buffer:
            buffers.give_back(piece.owner)
