"""What the zoo does not export, tried by hand: with nothing of calltape.

``python -m tests.zoo.by_hand [CASE...]`` exports each with arguments and dynamic shapes that a
person wrote, and prints what torch says. An attempt that works would be a case that the exporter
has to learn; the tests hold every attempt to the words that it failed with.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from tests.zoo.attempts import ATTEMPTS, Attempt, Written
from tests.zoo.case import fresh
from tests.zoo.comparing import difference

__all__ = ["main", "outcome"]

_FREE = {"DYNAMIC": Dim.DYNAMIC, "AUTO": Dim.AUTO}
_WORDS = 300  # characters of an error that are printed


def outcome(attempt: Attempt) -> str | None:
    """What torch or ONNX Runtime says; None where the attempt works."""
    torch.manual_seed(0)
    written = attempt.written(_FREE[attempt.free])
    run = _torch if attempt.to == "torch" else _onnx
    with _silence(), torch.no_grad():
        args, kwargs = fresh(written.arguments)
        written.module(*args, **kwargs)  # transformers installs hooks on the first call
        try:
            program = run(written, attempt.strict)
        except Exception as error:  # whatever torch raises is what it says
            return _said(error)
        for args, kwargs in written.others:
            try:
                found = difference(written.module(*args, **kwargs), program(*args, **kwargs))
            except Exception as error:
                return f"exported; another size: {_said(error)}"
            if found:
                return f"exported; another size: {found}"
    return None


def _torch(written: Written, strict: bool) -> Callable[..., Any]:
    args, kwargs = written.arguments
    return torch.export.export(
        written.module, args, kwargs, dynamic_shapes=written.shapes, strict=strict
    ).module()


def _onnx(written: Written, _: bool) -> Callable[..., Any]:
    import onnxruntime

    args, kwargs = written.arguments
    program = torch.onnx.export(
        written.module, args, kwargs=kwargs, dynamic_shapes=written.shapes, dynamo=True,
        verbose=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        program.save(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        names = [value.name for value in session.get_inputs()]
        feeds = {name: tensor.numpy() for name, tensor in zip(names, args, strict=True)}
        return tuple(torch.from_numpy(array) for array in session.run(None, feeds))

    return run


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """torch prints whole graphs about what it cannot trace."""
    nowhere = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def main(names: list[str]) -> int:
    """One line per attempt."""
    torch.set_num_threads(1)
    chosen = [attempt for attempt in ATTEMPTS if not names or attempt.case in names]
    bad = 0
    for attempt in chosen:
        said = outcome(attempt)
        as_written = said is not None and re.search(attempt.words, said) is not None
        bad += not as_written
        said = "WORKS BY HAND" if said is None else said[:_WORDS]
        print(f"{'fails' if as_written else 'OTHER':6} {attempt.name}\n       {said}", flush=True)
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
