"""The bare exporter, ``torch.onnx.export``, with the arguments and dynamic shapes of a tape.

Where it gives what the model gives and ours does not, ours is at fault.
"""

from __future__ import annotations

import contextlib
import io
from functools import cached_property
from typing import Any

import torch

from calltape_analyzer import Tape
from tests.zoo.case import Arguments, Case, fresh
from tests.zoo.comparing import difference, leaves

__all__ = ["Bare"]


class Bare:
    """One program of the bare exporter for each variant of a tape, made when they are needed."""

    def __init__(self, case: Case, tape: Tape) -> None:
        self._case = case
        self._tape = tape

    def is_right(self, arguments: Arguments, expected: Any) -> bool:
        """Whether one of the programs gives for a call what the model gives."""
        wanted = _tensors(expected)
        return any(_is_same(wanted, _run(one, fresh(arguments))) for one in self._programs)

    @cached_property
    def _programs(self) -> list[Any]:
        return [found for variant in self._tape.variants() if (found := self._exported(variant))]

    def _exported(self, variant: Any) -> Any:
        try:
            args, kwargs = variant.infer_arguments()
            shapes = variant.infer_dynamic_shapes(dim="auto")
            with contextlib.redirect_stdout(io.StringIO()):
                return torch.onnx.export(
                    self._case.make(), args, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True,
                    verbose=False,
                )  # fmt: skip
        except Exception:  # whatever it raises: there is none
            return None


def _run(program: Any, arguments: Arguments) -> list[torch.Tensor] | None:
    args, kwargs = arguments
    try:
        return list(program(*args, **kwargs))
    except Exception:  # whatever the runtime raises: it is not right
        return None


def _is_same(wanted: list[torch.Tensor], got: list[torch.Tensor] | None) -> bool:
    return got is not None and difference(wanted, got) is None


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves(outputs) if isinstance(leaf, torch.Tensor)]
