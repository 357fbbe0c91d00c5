"""Copies tensors to host memory that nobody else can change.

The host sees nothing of it: no autograd graph, no version counter, no dispatch mode and no random
number generator is touched. Contiguous host memory is copied as it lies, without any operator.
Everything else goes through ordinary operators, below autograd and all modes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from calltape_recorder.snapshot.buffers import (
    SMALL_BYTES,
    Buffer,
    Buffers,
    Piece,
    array_type,
    copy_all,
    data_of,
    memory_at,
    source_of,
    unseen,
)
from calltape_recorder.snapshot.device_copies import HostMemory, Landing, copy_out
from calltape_recorder.snapshot.earlier_copies import Earlier
from calltape_recorder.snapshot.facts import (
    DTYPES,
    Facts,
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
from calltape_recorder.snapshot.look import Look

_Tensor = torch.Tensor
_make = tuple.__new__  # makes a named tuple faster than its class does


def copy_leaves(
    leaves: list[Any], look: Look, buffers: HostMemory,
    found: Sequence[Earlier | None] | None = None,
) -> list[Any]:  # fmt: skip
    """Copies every leaf that has a size. The others get None. ``found`` has the copies that were
    made of them before.

    The caller may change its tensors at once. Copies from a CUDA device may not be done yet:
    :func:`wait_for_copies` waits for them.
    """
    if not any(look.sizes):
        return [None] * len(leaves)
    pieces: list[Any] = []
    large: list[int] = []
    distant: list[int] = []
    for leaf, fact, size in zip(leaves, look.facts, look.sizes, strict=False):
        earlier = None if found is None else found[len(pieces)]
        if earlier is not None:
            pieces.append(earlier.shared())
        elif not size:
            pieces.append(None)
        elif fact.direct == "cpu":
            if size <= SMALL_BYTES:
                pieces.append(bytearray(array_type(size).from_address(data_ptr(leaf))))
            else:
                large.append(len(pieces))
                pieces.append(None)
        elif issubclass(type(leaf), _Tensor):
            if fact.device.type == "cuda":
                distant.append(len(pieces))
                pieces.append(None)
            else:
                pieces.append(_computed(leaf, fact, size))
        else:
            array = leaf.copy(order="C")
            pieces.append(Piece(memory_at(array.ctypes.data, size), array))
    if large:
        _pooled(leaves, look.sizes, large, pieces, buffers)
    if distant:
        _from_device(leaves, look, distant, pieces, buffers)
    return pieces


def joined_bytes(leaves: Iterable[Any], look: Look) -> bytes:
    """The bytes of these leaves, which are few and look like those of ``look.side``."""
    pairs = zip(look.arrays, leaves, strict=True)
    return b"".join([array.from_address(data_ptr(leaf)) for array, leaf in pairs if array])


def wait_for_copies(pieces: Iterable[Any]) -> None:
    """Waits until the copies of these pieces are done.

    Raises:
        RuntimeError: the device failed.
    """
    for piece in pieces:
        if type(piece) is Piece and type(piece.owner) is Landing:
            piece.owner.copies.wait()


def joined(pieces: Iterable[Any]) -> list[Any]:
    """The bytes of these leaves in order. Bytes that lie side by side become one part."""
    parts: list[Any] = []
    whole: memoryview | None = None
    begin = end = 0
    for piece in pieces:
        if type(piece) is Grown and piece.row >= SMALL_BYTES:  # to join long rows takes a copy
            parts += piece.parts
            whole = None
            continue
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


def _pooled(
    leaves: list[Any], sizes: list[int], large: list[int], pieces: list[Any], buffers: Buffers
) -> None:
    """Copies the large leaves into one buffer, in order. They lie side by side there, so that they
    get one checksum and one write."""
    buffer = buffers.acquire(sum([sizes[index] for index in large]))
    try:
        # We hold the storages until they are copied: another thread may give a tensor other memory
        # while this one does not hold the interpreter lock.
        held = [untyped_storage(leaves[index]) for index in large]
        sources = [
            source_of(leaves[index], memory, sizes[index])
            for index, memory in zip(large, held, strict=True)
        ]
        copy_all(sources, buffer)
        owner: Buffer | None = buffer
        begin, view = 0, buffer.view
        for index, (_, size) in zip(large, sources, strict=True):
            pieces[index] = _make(Piece, (view[begin : begin + size], owner, view, begin))
            owner = None
            begin += size
    except BaseException:
        buffer.pieces = None
        buffers.give_back(buffer)
        raise


def _from_device(
    leaves: list[Any], look: Look, distant: list[int], pieces: list[Any], memory: HostMemory
) -> None:
    facts = [look.facts[index] for index in distant]
    tensors = [leaves[index] for index in distant]
    # We hold the storages until the copies are enqueued, as above.
    held = [
        untyped_storage(tensor) if fact.direct else None
        for tensor, fact in zip(tensors, facts, strict=True)
    ]
    try:
        with unseen():
            found = copy_out(
                tensors,
                [
                    None
                    if storage is None
                    else source_of(leaves[index], storage, look.sizes[index])
                    for index, storage in zip(distant, held, strict=True)
                ],
                lambda place: _copyable(_plain(tensors[place], facts[place])),
                memory.pinned,
            )
    except Exception:  # there is no pinned memory: each leaf is waited for
        for index, fact in zip(distant, facts, strict=True):
            pieces[index] = _computed(leaves[index], fact, look.sizes[index])
        return
    for index, piece in zip(distant, found, strict=True):
        pieces[index] = piece


def _computed(tensor: torch.Tensor, fact: Facts, size: int) -> Piece:
    """A contiguous host copy of a strided, expanded, conjugated, quantized or device tensor."""
    with unseen():
        value = _plain(tensor, fact)
        if value.device.type != "cpu":
            # This waits for the device. Only a copy to pinned memory does not have to.
            value = to(value, "cpu")
        # contiguous() would return the host's own memory if it is contiguous already.
        mine = clone(_copyable(value), memory_format=torch.contiguous_format)
        return Piece(memory_at(data_ptr(mine), size), mine)


def _plain(tensor: torch.Tensor, fact: Facts) -> torch.Tensor:
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
    for dtype, known in DTYPES.items()
    if known.itemsize == 1
    and known.name.startswith(("int", "uint", "bits", "float4"))
    and known.name not in ("int8", "uint8")
)


_EXPERIMENTAL = frozenset(dtype for dtype in DTYPES if dtype.is_complex and dtype.itemsize == 4)


def release(pieces: Iterable[Any], buffers: Buffers) -> None:
    """Gives the pooled buffers of these pieces back; their data may not be read afterwards."""
    for piece in pieces:
        if type(piece) is not Piece:
            continue
        if type(piece.owner) is Buffer:
            piece.owner.pieces = None
            buffers.give_back(piece.owner)
        elif type(piece.owner) is Landing:
            piece.owner.release()
