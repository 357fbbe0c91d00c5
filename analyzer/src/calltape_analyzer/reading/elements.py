"""The elements of a small tensor, as Python numbers, from the bytes that the tape has.

Takes the facts of a leaf and its bytes; returns nested lists, or text of one line. torch is not
needed, which takes seconds to import.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from calltape_schema.blob import INTEGER_FORMATS, stored_as
from calltape_schema.errors import TapeError
from calltape_schema.tree import Leaf

__all__ = ["elements_of", "elements_text"]


class _Minifloat(NamedTuple):
    """A float of eight bits: the bits of its mantissa, the bias of its exponent, the bytes that
    are NaN, and whether the largest exponent means infinity and NaN, as in IEEE 754."""

    mantissa: int
    bias: int
    nans: tuple[int, ...]
    has_infinity: bool

    def value(self, byte: int) -> float:
        sign, magnitude = -1.0 if byte & 0x80 else 1.0, byte & 0x7F
        exponent, steps = magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1)
        if byte in self.nans:
            return math.nan
        if self.has_infinity and exponent == 0x7F >> self.mantissa:
            return math.nan if steps else sign * math.inf
        fraction = steps / (1 << self.mantissa)
        if exponent == 0:
            return float(sign * fraction * 2.0 ** (1 - self.bias))
        return float(sign * (1 + fraction) * 2.0 ** (exponent - self.bias))


_MINIFLOATS = {
    "float8_e4m3fn": _Minifloat(3, 7, (0x7F, 0xFF), has_infinity=False),
    "float8_e5m2": _Minifloat(2, 15, (), has_infinity=True),
    "float8_e4m3fnuz": _Minifloat(3, 8, (0x80,), has_infinity=False),
    "float8_e5m2fnuz": _Minifloat(2, 16, (0x80,), has_infinity=False),
}
_FLOATS: dict[str, Literal["e", "f", "d"]] = {"float16": "e", "float32": "f", "float64": "d"}
_PARTS = {
    "complex32": "float16", "bcomplex32": "bfloat16", "complex64": "float32",
    "complex128": "float64",
}  # fmt: skip
_DIGITS = 9
"""With so many digits each float32 is told from all others; narrower ones need fewer."""


def elements_of(leaf: Leaf, data: bytes | bytearray) -> Any:
    """The elements of a tensor in nested lists, a number if it has no dimension; None for a dtype
    whose elements are no numbers (bits, quantized). Of 16 bits and more, a float is the one with
    the fewest digits that is the same in its dtype: 0.1, and not 0.10000000149.

    Args:
        leaf: the facts of the tensor.
        data: its bytes, as the blob has them.

    Raises:
        TapeError: ``invalid`` if the bytes are not those of such a tensor.
    """
    stored = stored_as(leaf)
    if stored is None or leaf.dtype not in _READERS:
        return None
    if stored.nbytes != len(data):
        raise TapeError("invalid", f"{leaf.key}: {len(data)} bytes for {stored.nbytes}")
    values = iter(_READERS[leaf.dtype](leaf.dtype, data))
    sizes = [1 if axis in leaf.expanded else size for axis, size in enumerate(leaf.shape)]
    return _nested(values, sizes, leaf.shape)


def elements_text(elements: Any) -> str:
    """The elements on one line: ``[[1, 2], [3, 4]]``, ``True``, ``[(1+2j)]``."""
    if isinstance(elements, list):
        return f"[{', '.join(map(elements_text, elements))}]"
    return repr(elements)


def _nested(values: Iterator[Any], stored: Sequence[int], shape: Sequence[int]) -> Any:
    """Nested lists of a shape; of an axis that is stored once, each item is the same."""
    if not shape:
        return next(values)
    items = [_nested(values, stored[1:], shape[1:]) for _ in range(stored[0])]
    return items if stored[0] == shape[0] else items * shape[0]


def _floats(dtype: str, data: bytes | bytearray) -> Iterator[float]:
    form = _FLOATS[dtype]
    for (one,) in struct.iter_unpack(f"<{form}", data):
        yield _shortest(one, lambda value: struct.pack(f"<{form}", value), sys.float_info.dig + 2)


def _brain_floats(_: str, data: bytes | bytearray) -> Iterator[float]:
    """A bfloat16 is the upper half of a float32."""
    for (bits,) in struct.iter_unpack("<H", data):
        (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
        yield _shortest(value, _as_brain_float, _DIGITS)


def _as_brain_float(value: float) -> int:
    """The bits of the nearest bfloat16, of two the even one."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _complex(dtype: str, data: bytes | bytearray) -> Iterator[complex]:
    part = _PARTS[dtype]
    parts = iter(_READERS[part](part, data))
    return (complex(real, next(parts)) for real in parts)


def _shortest(value: float, encoded: Callable[[float], Any], most: int) -> float:
    """The float that the fewest digits write which are still encoded as this one."""
    if not math.isfinite(value):
        return value
    target = encoded(value)
    for digits in range(1, most):
        short = float(f"{value:.{digits}g}")
        try:
            if encoded(short) == target:
                return short
        except OverflowError:  # rounded up beyond the largest
            continue
    return value


_READERS: dict[str, Callable[[str, bytes | bytearray], Iterator[Any]]] = {
    "bool": lambda _, data: map(bool, data),
    "bfloat16": _brain_floats,
    "float8_e8m0fnu": lambda _, data: (
        math.nan if byte == 0xFF else 2.0 ** (byte - 127) for byte in data
    ),
    **dict.fromkeys(
        INTEGER_FORMATS,
        lambda dtype, data: (n for (n,) in struct.iter_unpack(f"<{INTEGER_FORMATS[dtype]}", data)),
    ),
    **dict.fromkeys(_FLOATS, _floats),
    **dict.fromkeys(_MINIFLOATS, lambda dtype, data: map(_MINIFLOATS[dtype].value, data)),
    **dict.fromkeys(_PARTS, _complex),
}
