"""Copies tensors to host memory that the application cannot change.

The application sees nothing of it: no autograd graph, no version counter, no dispatch mode and no
random number generator is touched. Contiguous host memory is copied as it lies, without any
operator. Everything else goes through ordinary operators, below autograd and all modes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from calltape_recorder.snapshot.buffers import (
    SMALL_BYTES,
    SPAN,
    Buffer,
    Buffers,
    Piece,
    SideCopies,
    copy_all,
    memory_at,
    packed_numbers,
    source_of,
    unseen,
)
from calltape_recorder.snapshot.device_copies import HostMemory, Landing, copy_out
from calltape_recorder.snapshot.earlier_copies import EarlierCopy
from calltape_recorder.snapshot.facts import (
    DTYPES,
    LeafFacts,
    as_subclass,
    clone,
    data_ptr,
    detach,
    int_repr,
    narrow,
    resolve_conj,
    resolve_neg,
    to,
    untyped_storage,
    view,
)
from calltape_recorder.snapshot.grown_copies import Grown
from calltape_recorder.snapshot.side_facts import SideFacts
from calltape_recorder.threads import is_interrupt

_Tensor = torch.Tensor


def copy_leaves(
    leaves: list[Any], facts: SideFacts, buffers: HostMemory,
    earlier_copies: Sequence[EarlierCopy | None] | None = None,
) -> SideCopies:  # fmt: skip
    """Copies every leaf that has a size. ``earlier_copies`` are the ones made of them before.

    The caller may change its tensors at once. Copies from a CUDA device may not be done yet:
    :func:`wait_for_copies` waits for them.
    """
    places: list[Any] = [None] * len(leaves)
    if not facts.nbytes:
        return places, b""
    spans = [] if earlier_copies is None else [0] * SPAN * len(leaves)
    large: list[int] = []
    on_device: list[int] = []
    for at, (leaf, fact, size) in enumerate(zip(leaves, facts.per_leaf, facts.sizes, strict=True)):
        if not size:
            continue
        earlier = None if earlier_copies is None else earlier_copies[at]
        if earlier is not None:
            places[at], spans[SPAN * at : SPAN * (at + 1)] = earlier.memory, earlier.span
        elif fact.direct == "cpu":
            if size <= SMALL_BYTES:
                places[at] = bytearray(memory_at(data_ptr(leaf), size))
            else:
                large.append(at)
        elif issubclass(type(leaf), _Tensor):
            if fact.device.type == "cuda":
                on_device.append(at)
            else:
                places[at] = _computed(leaf, fact, size)
        else:
            own_copy = leaf.copy(order="C")
            places[at] = Piece(memory_at(own_copy.ctypes.data, size), own_copy)
    if large or on_device:
        spans = spans or [0] * SPAN * len(leaves)
        if large:
            _pooled(leaves, facts.sizes, large, places, spans, buffers)
        if on_device:
            _from_device(leaves, facts, on_device, places, spans, buffers)
    return places, packed_numbers(spans)


def pieces_of(places: Sequence[Any], spans: bytes) -> Sequence[Any]:
    """Per leaf its copy, as the writer reads it."""
    if not spans:
        return places
    pieces: list[Any] = []
    numbers = memoryview(spans).cast("q")
    for at, place in enumerate(places[: len(numbers) // SPAN]):  # there may be more to release
        first, second, width, count, axis = numbers[SPAN * at : SPAN * (at + 1)]
        if width:
            pieces.append(Grown(place, first, second, width, count, axis))
        elif isinstance(place, Buffer | Landing):
            pieces.append(Piece(place.view[first : first + second], place, first))
        else:
            pieces.append(place)
    return pieces


def wait_for_copies(places: Iterable[Any]) -> None:
    """Waits until the copies at these places are done.

    Raises:
        RuntimeError: the device failed.
    """
    for place in places:
        if type(place) is Landing:
            place.copies.wait()


def joined(pieces: Iterable[Any]) -> list[Any]:
    """The bytes of these leaves in order. Bytes that lie side by side become one part."""
    parts: list[Any] = []
    owner: Any = None
    begin = end = 0
    for piece in pieces:
        if type(piece) is Grown and piece.strip >= SMALL_BYTES:  # to join long strips takes a copy
            parts += piece.strips_from(0)
            owner = None
            continue
        if type(piece) is not Piece or not isinstance(piece.owner, Buffer | Landing):
            parts.append(piece if type(piece) is bytearray else piece.data if piece else b"")
            owner = None
            continue
        if piece.owner is owner and piece.begin == end:
            end += len(piece.data)
            parts[-1] = owner.view[begin:end]
        else:
            owner, begin = piece.owner, piece.begin
            end = begin + len(piece.data)
            parts.append(piece.data)
    return parts


def _pooled(
    leaves: list[Any], sizes: Sequence[int], large: list[int], places: list[Any], spans: list[int],
    buffers: Buffers,
) -> None:  # fmt: skip
    """Copies the large leaves into one buffer, in order. They lie side by side there, so that they
    get one checksum and one write."""
    buffer = buffers.acquire(sum([sizes[index] for index in large]))
    try:
        # We hold the storages until they are copied: another thread may give a tensor other memory
        # while this one does not hold the interpreter lock.
        storages = [untyped_storage(leaves[index]) for index in large]
        sources = [
            source_of(leaves[index], memory, sizes[index])
            for index, memory in zip(large, storages, strict=True)
        ]
        copy_all(sources, buffer)
    except BaseException:
        buffer.pieces = None
        buffers.give_back(buffer)
        raise
    buffer.users = len(large)
    begin = 0
    for at in large:
        places[at], spans[SPAN * at : SPAN * at + 2] = buffer, (begin, sizes[at])
        begin += sizes[at]


def _from_device(
    leaves: list[Any], facts: SideFacts, on_device: list[int], places: list[Any], spans: list[int],
    memory: HostMemory,
) -> None:  # fmt: skip
    device_facts = [facts.per_leaf[index] for index in on_device]
    tensors = [leaves[index] for index in on_device]
    # We hold the storages until the copies are enqueued, as above.
    storages = [
        untyped_storage(tensor) if fact.direct else None
        for tensor, fact in zip(tensors, device_facts, strict=True)
    ]
    try:
        with unseen():
            pieces = copy_out(
                tensors,
                [
                    None
                    if storage is None
                    else source_of(leaves[index], storage, facts.sizes[index])
                    for index, storage in zip(on_device, storages, strict=True)
                ],
                lambda place: _copyable(_plain(tensors[place], device_facts[place])),
                memory.pinned,
            )
    except Exception as error:  # there is no pinned memory: each leaf is waited for
        if is_interrupt(error):
            raise
        for index, fact in zip(on_device, device_facts, strict=True):
            places[index] = _computed(leaves[index], fact, facts.sizes[index])
        return
    for at, (data, owner, begin) in zip(on_device, pieces, strict=True):
        places[at], spans[SPAN * at : SPAN * at + 2] = owner, (begin, len(data))


def _computed(tensor: torch.Tensor, fact: LeafFacts, size: int) -> Piece:
    """A contiguous host copy of a strided, expanded, conjugated, quantized or device tensor."""
    with unseen():
        value = _plain(tensor, fact)
        if value.device.type != "cpu":
            # This waits for the device. Only a copy to pinned memory does not have to.
            value = to(value, "cpu")
        # contiguous() would return the application's own memory if it is contiguous already.
        own_copy = clone(_copyable(value), memory_format=torch.contiguous_format)
        return Piece(memory_at(data_ptr(own_copy), size), own_copy)


def _plain(tensor: torch.Tensor, fact: LeafFacts) -> torch.Tensor:
    """The elements that are stored, as a tensor without a subclass, a quantizer and lazy bits."""
    value: torch.Tensor = detach(tensor)
    if type(value) is not torch.Tensor:
        value = as_subclass(value, torch.Tensor)
    if fact.quantizer is not None:
        value = int_repr(value)
    for axis in fact.expanded:
        value = narrow(value, axis, 0, 1)
    resolved: torch.Tensor = resolve_neg(resolve_conj(value))
    return resolved


def _copyable(value: torch.Tensor) -> Any:
    if value.dtype in _UNCOPYABLE:  # torch cannot copy these dtypes of one byte
        return view(value, torch.uint8)
    if value.dtype in _EXPERIMENTAL:  # their kernels print warnings
        return torch.view_as_real(value)
    return value


_UNCOPYABLE = frozenset(
    dtype
    for dtype, name in DTYPES.items()
    if dtype.itemsize == 1
    and name.startswith(("int", "uint", "bits", "float4"))
    and name not in ("int8", "uint8")
)


_EXPERIMENTAL = frozenset(dtype for dtype in DTYPES if dtype.is_complex and dtype.itemsize == 4)


def release(places: Iterable[Any], buffers: Buffers) -> None:
    """Gives the memory of copies back that is pooled; their data may not be read afterwards."""
    users = Counter([place for place in places if isinstance(place, Buffer | Landing)])
    for owner, count in users.items():
        if isinstance(owner, Landing):
            owner.release()
        else:
            owner.pieces = None
            buffers.give_back(owner, count)
