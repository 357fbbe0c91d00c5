"""The functions of CUDA's driver and runtime that torch has no operator for.

An operator of torch takes about four times as long as the driver's function, and a copy takes three
operators for each tensor. On ROCm there is no such library, and torch's operators copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["copier", "pin", "relaxed", "unpin"]

_cuda: Any = torch.cuda  # it has no types
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_PORTABLE = 1  # cudaHostRegisterPortable: pinned memory for all devices
_library: Any = None

Copier = Callable[[int, int, int, int], int]
"""Enqueues a copy to host memory: address there, address on the device, bytes, stream. The result
is 0, or the number of an error."""


def copier() -> Copier | None:
    """The driver's asynchronous copy to the host; None if there is no such driver."""
    driver = _driver()
    return None if driver is None else driver.cuMemcpyDtoHAsync_v2


def pin(address: int, size: int) -> None:
    """Makes host memory readable by devices, so that copies to it need not be waited for.

    Raises:
        OSError: the system does not pin so much memory.
    """
    with relaxed():
        code = int(_cuda.cudart().cudaHostRegister(address, size, _PORTABLE))
    if code:
        raise OSError(f"CUDA error {code}: {size} bytes of host memory cannot be pinned")


def unpin(address: int) -> None:
    """Undoes :func:`pin`."""
    with relaxed():
        _cuda.cudart().cudaHostUnregister(address)


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Lets this thread wait for events and ask for memory while another one captures a CUDA graph.
    Otherwise either would make the capture fail."""
    before = _exchange_mode(_RELAXED)
    try:
        yield
    finally:
        if before is not None:
            _exchange_mode(before)


def _exchange_mode(mode: int) -> int | None:
    driver = _driver()
    if driver is None:
        return None
    value = ctypes.c_int(mode)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(value))
    return value.value


def _driver() -> Any:
    global _library
    if _library is None:
        name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
        try:
            library = ctypes.CDLL(name)
            library.cuMemcpyDtoHAsync_v2.argtypes = (
                ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p,
            )  # fmt: skip
            _library = library
        except (OSError, AttributeError):
            _library = False
    return _library or None
