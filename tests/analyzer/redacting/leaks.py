"""What a tape has that nobody may read, and whether it stands in a file. It knows nothing of the
code that redacts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calltape_analyzer import Tape
from calltape_schema.packing import pack
from tests.unpacked import readable

__all__ = ["encoded", "id_rows", "leaked", "numbers", "rows", "standing_in", "texts"]

_INTEGERS = (torch.int64, torch.int32, torch.int16)
_WINDOW = 8


def texts(tape: Tape) -> Iterator[str | bytes]:
    """Every text of the calls: arguments, results, messages."""
    for call in tape.calls:
        for tree in (call.record.inputs, call.record.outputs):
            for value in tree.scalars if tree is not None else ():
                if isinstance(value, (str, bytes)):
                    yield value
        if call.error is not None:
            yield call.error.message


def numbers(tape: Tape) -> Iterator[bytes]:
    """Every number that is an argument, or was returned, as it stands on a tape."""
    for call in tape.calls:
        for tree in (call.record.inputs, call.record.outputs):
            for value in tree.scalars if tree is not None else ():
                if not isinstance(value, (str, bytes)):
                    yield from map(pack, value if isinstance(value, tuple) else (value,))


def id_rows(tape: Tape) -> Iterator[bytes]:
    """Every row of three or more different integers, as bytes."""
    for row in rows(tape):
        if row.dtype in _INTEGERS and len(set(row.tolist())) > 2:
            yield row.numpy().tobytes()


def rows(tape: Tape) -> Iterator[torch.Tensor]:
    """Every row of the tensors of integers and floats."""
    for call in tape.calls:
        sides: tuple[Any, ...] = (("inputs", call.record.inputs), ("outputs", call.record.outputs))
        for side, tree in sides:
            for number, leaf in enumerate(tree.facts() if tree is not None else ()):
                if leaf.key is None:
                    continue
                tensor = call.tensor(side, number)
                if isinstance(tensor, torch.Tensor) and _has_rows(tensor):
                    yield from tensor.detach().contiguous().reshape(-1, tensor.shape[-1])


def _has_rows(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
    is_number = tensor.dtype in (*_INTEGERS, torch.float64, torch.float32, torch.float16)
    return plain and is_number and tensor.dim() > 0 and tensor.numel() > 0


def leaked(source: Path, result: Path, *, least: int = 5) -> list[str | bytes]:
    """What stands in the result although only the calls of the source had it."""
    from calltape_analyzer import open_tape

    data = readable(result.read_bytes())
    with open_tape(source, verify=True) as tape:
        raw = {encoded(value): value for value in {*texts(tape)}}
        long = [one for one in raw if len(one) >= least]
        found = [raw[one] for one in standing_in(long, data)]
        return [*found, *standing_in({*id_rows(tape)}, data)]


def encoded(value: str | bytes) -> bytes:
    """A text as it stands on a tape."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def standing_in(values: Collection[bytes], data: bytes) -> list[bytes]:
    """The values that a file has at any place. Those of 8 bytes or more are looked for together:
    there are thousands."""
    short = [value for value in values if len(value) < _WINDOW]
    found = [value for value in short if value in data]
    long = [value for value in values if len(value) >= _WINDOW]
    begins = np.array([int.from_bytes(one[:_WINDOW], "little") for one in long], dtype=np.uint64)
    known = np.zeros(0, dtype=np.uint64)
    for start in range(_WINDOW if long else 0):
        whole = (len(data) - start) // _WINDOW
        if whole > 0:
            windows = np.frombuffer(data, dtype="<u8", count=whole, offset=start)
            known = np.union1d(known, np.intersect1d(windows, begins))
    maybe = {int(one) for one in known}
    return found + [
        one for one in long if int.from_bytes(one[:_WINDOW], "little") in maybe and one in data
    ]
