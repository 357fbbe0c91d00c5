"""The runtimes that exported models are run in, and the way from a path or an object to its
model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import TapeError
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.onnx_model import OnnxModel
from calltape_analyzer.programs.torch_model import TorchModel

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["RUNTIMES", "opened_model", "runtime_of"]

RUNTIMES: list[type[ExportedModel]] = [TorchModel, OnnxModel]
"""Asked in this order. The last one takes all files that no other takes."""


def runtime_of(source: Any) -> type[ExportedModel] | None:
    """The class for a path or an object; None if it is no exported model. Nothing is read."""
    return next((runtime for runtime in RUNTIMES if runtime.takes(source)), None)


@contextmanager
def opened_model(
    source: Any, tape: Tape, *, trusted: bool, to_run: bool
) -> Iterator[ExportedModel | None]:
    """The model of a path or an object while the ``with`` block runs; None if it is neither.

    Args:
        source: what somebody exported.
        tape: the calls that it is for.
        trusted: loads a ``.pt2``, which runs code of its author
            (docs/decisions/reading-untrusted-tapes.md).
        to_run: whether the model will be run.

    Raises:
        UsageError: a ``.pt2`` that is not trusted.
        TapeError: ``not_found``, or ``invalid`` if it cannot be loaded.
    """
    if isinstance(source, str | os.PathLike) and not os.path.exists(source):
        raise TapeError("not_found", "no such file", path=os.fspath(source))
    runtime = runtime_of(source)
    if runtime is None:
        yield None
        return
    with runtime.opened(source, tape, trusted=trusted, to_run=to_run) as model:
        yield model
