"""What a recorded call takes longer on a CUDA device, until the device has done its work too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch

from benchmarks.call_cost import CALLTAPE, EMPTY, add_contenders, decode_contenders, rows_of
from benchmarks.report import Row
from benchmarks.rounds import measure

__all__ = ["rows"]

_SIDES = {"add [4,8]": (4, 8), "add [1024,1024]": (1024, 1024)}


def rows(scale: float) -> Iterator[Row]:
    """Both models on the first device; ``scale`` shortens the run.

    Raises:
        SystemExit: there is no device.
    """
    if not torch.cuda.is_available():
        raise SystemExit("device_cost needs a CUDA device")
    name = torch.cuda.get_device_name()
    with torch.no_grad():
        for what, shape in _SIDES.items():
            with contextlib.ExitStack() as stack:
                contenders = _finished(add_contenders(10**9, stack, shape, "cuda"))
                samples = measure(contenders, max(int(500 * scale), 20))
            yield from rows_of(f"{what} on {name}", samples, EMPTY)
        with contextlib.ExitStack() as stack:
            contenders, prepare = decode_contenders(10**9, stack, "cuda")
            samples = measure(_finished(contenders), max(int(500 * scale), 20), prepare=prepare)
        yield from rows_of(f"Llama decode step, 2 layers, on {name}", samples, CALLTAPE)


def _finished(contenders: Mapping[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    """The same calls, each until the device is idle."""

    def until_idle(run: Callable[[], object]) -> Callable[[], object]:
        def finished() -> object:
            result = run()
            torch.cuda.synchronize()
            return result

        return finished

    return {name: until_idle(run) for name, run in contenders.items()}
