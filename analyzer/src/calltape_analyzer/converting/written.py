"""What a conversion wrote, and what it left out."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Written"]


class Written(NamedTuple):
    """What was written, and what was left out.

    Attributes:
        calls: how many calls were written.
        raised: how many were left out because they raised.
        under_way: how many were left out because they had not ended.
        without_outputs: how many were written without outputs, which are not on the tape.
        not_tensors: the paths of values that were left out because they are no tensors, at most
            1000; those of outputs begin with ``outputs``.
        not_inputs: the paths of tensors that the model does not take, at most 1000.
        not_in_all: the inputs that were written for some calls only, because the calls are of
            several variants, at most 1000.
    """

    calls: int
    raised: int = 0
    under_way: int = 0
    without_outputs: int = 0
    not_tensors: tuple[str, ...] = ()
    not_inputs: tuple[str, ...] = ()
    not_in_all: tuple[str, ...] = ()
