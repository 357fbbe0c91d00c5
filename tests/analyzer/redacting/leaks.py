"""What a tape has that nobody may read, and whether it stands in a file. It knows nothing of the
code that redacts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import Tape

__all__ = ["id_rows", "leaked", "texts"]

_INTEGERS = (torch.int64, torch.int32, torch.int16)


def texts(tape: Tape) -> Iterator[str | bytes]:
    """Every text of the calls: arguments, results, messages."""
    for call in tape.calls:
        for tree in (call.record.inputs, call.record.outputs):
            for value in tree.scalars if tree is not None else ():
                if isinstance(value, (str, bytes)):
                    yield value
        if call.error is not None:
            yield call.error.message


def id_rows(tape: Tape) -> Iterator[bytes]:
    """Every row of three or more different integers, as bytes."""
    for call in tape.calls:
        sides: tuple[Any, ...] = (("inputs", call.record.inputs), ("outputs", call.record.outputs))
        for side, tree in sides:
            for number, leaf in enumerate(tree.facts() if tree is not None else ()):
                if leaf.key is None:
                    continue
                tensor = call.tensor(side, number)
                if isinstance(tensor, torch.Tensor) and tensor.dtype in _INTEGERS and tensor.dim():
                    for row in tensor.reshape(-1, tensor.shape[-1]):
                        if len(set(row.tolist())) > 2:
                            yield row.contiguous().numpy().tobytes()


def leaked(source: Path, result: Path, *, least: int = 5) -> list[str | bytes]:
    """What stands in the result although only the calls of the source had it."""
    from calltape_analyzer import open_tape

    data = result.read_bytes()
    with open_tape(source, verify=True) as tape:
        found: list[str | bytes] = []
        for value in {*texts(tape)}:
            raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            if len(raw) >= least and raw in data:
                found.append(value)
        return [*found, *(row for row in {*id_rows(tape)} if row in data)]
