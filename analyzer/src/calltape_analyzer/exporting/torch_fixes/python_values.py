"""Values that a model reads with Python: ``len(x)``, ``int(x.max())``, ``if x.any()``.

A trace that is not strict runs the model's Python, where ``int()`` and ``len()`` have to return a
number that the trace does not know (docs/decisions/export-strategies.md). In every trace,
:func:`symbolic_sizes` makes the model's own code accept symbols as ints. If that is not enough, two
more functions are tried. :func:`symbolic_numbers` makes ``int``, ``tolist``, slices and ``float``
return symbols as well. :func:`real_values` also computes the values of the sample during the trace,
so that an ``if`` takes the branch of these values, which becomes an assertion in the program
(:mod:`calltape_analyzer.exporting.torch_fixes.kept_assertions`).
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import math
import sys
from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode

from calltape_analyzer.exporting.torch_fixes.known_maxima import known_max, known_min
from calltape_analyzer.exporting.torch_fixes.patching import modules_of, with_builtins
from calltape_analyzer.exporting.torch_fixes.python_dtypes import python_dtypes
from calltape_analyzer.exporting.torch_fixes.symbol_sets import SymbolicSet

__all__ = ["real_values", "symbolic_numbers", "symbolic_sizes"]

_PYTHON_SQRT = math.sqrt
_TENSOR_LENGTH = torch.Tensor.__len__


class _StandInType(type):
    """The type of a class that replaces the builtin class that it is derived from."""

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__mro__[1])

    def __eq__(cls, other: object) -> bool:
        return other is cls.__mro__[1] or other is cls

    def __hash__(cls) -> int:
        return hash(cls.__mro__[1])

    @property
    def dtype(cls) -> Any:
        """The dtype that NumPy takes the class for."""
        import numpy

        return numpy.dtype(cls.__mro__[1])


class _SymbolicIntType(_StandInType):
    """The type of an ``int`` that converts tensors of one element to symbols, returns symbols as
    they are, and counts them as instances."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            (value,) = args
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                return (value.to(torch.int64) if value.is_floating_point() else value).item()
            if isinstance(value, torch.SymInt):
                return value
            if isinstance(value, torch.SymFloat):
                return torch.sym_int(value)
        return builtins.int(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.int | torch.SymInt)


class _SymbolicInt(builtins.int, metaclass=_SymbolicIntType):
    """Replaces ``int`` in the modules of a model while it is traced. It is not always used, because
    ``is`` tells it from ``int``."""


class _SymbolicFloatType(_StandInType):
    """The type of a ``float`` that converts tensors of one element and sizes
    (``math.ceil(float(height) / 32)``) to symbols, and counts them as instances."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            (value,) = args
            if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
                return torch.sym_float(value.item())
            if isinstance(value, torch.SymInt | torch.SymFloat):
                return torch.sym_float(value)
        return builtins.float(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.float | torch.SymFloat)


class _SymbolicFloat(builtins.float, metaclass=_SymbolicFloatType):
    """Replaces ``float`` as :class:`_SymbolicInt` replaces ``int``."""


def _isinstance(value: Any, kinds: Any) -> bool:
    """``isinstance`` that counts a symbol as an int. transformers asks
    ``isinstance(logits_to_keep, int)``, and treats anything else as an index."""
    if type(value) is torch.SymInt:
        every = kinds if isinstance(kinds, tuple) else get_args(kinds) or (kinds,)
        if builtins.int in every:
            return True
    return isinstance(value, kinds)


def _is_real_instance(value: Any, kinds: Any) -> bool:
    """``isinstance`` that does not tell the tensors of a trace from others."""
    return kinds is not FakeTensor and _isinstance(value, kinds)


def _len(value: Any) -> Any:
    """``len`` that returns the symbol of a tensor's first size. Python accepts only a number from
    ``__len__``."""
    if isinstance(value, torch.Tensor) and value.dim() and type(value).__len__ is _TENSOR_LENGTH:
        return value.shape[0]
    return len(value)


def _sqrt(value: Any) -> Any:
    """``math.sqrt`` that accepts symbols. Python's own converts its argument to a number."""
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return torch.sym_sqrt(value)
    return _PYTHON_SQRT(value)


class _SymbolicRangeType(type):
    """The type of a ``range`` whose end may be a symbol if its step is larger than 1."""

    def __call__(cls, *args: Any) -> range:
        start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        if type(end) is not torch.SymInt or type(start) is not int or type(step) is not int:
            return builtins.range(*args)
        if step < 2:  # each step is a condition: together they say what the end is
            return builtins.range(*args)
        count = 0
        while start + count * step < end:
            count += 1
        return builtins.range(start, start + count * step, step)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.range)


class _SymbolicRange(metaclass=_SymbolicRangeType):
    """Replaces ``range`` in the modules of a model while it is traced. A loop over parts of 128
    (``range(0, length, 128)``) has the same number of iterations for a range of lengths."""


_NUMBERS: dict[str, type] = {"int": _SymbolicInt, "float": _SymbolicFloat}
_STAND_INS = {
    "isinstance": _isinstance, "len": _len, "range": _SymbolicRange, "max": known_max,
    "min": known_min, "set": SymbolicSet,
}  # fmt: skip


@contextlib.contextmanager
def symbolic_sizes(model: torch.nn.Module, *, hides_tracing: bool = False) -> Iterator[None]:
    """Makes the code of a model accept the symbols of sizes as ints while it is traced.

    Args:
        model: the model.
        hides_tracing: whether the model must not find out that a tensor belongs to a trace.
    """
    names: Any = vars(math)
    stand_ins = {**_STAND_INS, "isinstance": _is_real_instance} if hides_tracing else _STAND_INS
    try:
        names["sqrt"] = _sqrt
        with with_builtins([vars(module) for module in modules_of(model)], stand_ins):
            yield
    finally:
        names["sqrt"] = _PYTHON_SQRT


@contextlib.contextmanager
def symbolic_numbers(
    model: torch.nn.Module, *, ints: bool = False, floats: bool = False
) -> Iterator[None]:
    """Makes Python's conversions of tensors and sizes return symbols while a model is traced.

    Args:
        model: the model.
        ints: whether ``int(tensor)``, ``int(size / 2)``, ``tensor.tolist()`` and slices with
            tensors return symbols.
        floats: whether ``float(size)`` and ``float(tensor)`` do.
    """
    is_symbolic = {"int": ints, "float": floats}
    stand_ins = {name: stand_in for name, stand_in in _NUMBERS.items() if is_symbolic[name]}
    if not stand_ins:
        yield
        return
    modules = [vars(module) for module in modules_of(model)]
    dtypes = {stand_ins[name]: getattr(builtins, name) for name in stand_ins}
    reading = _Reading() if ints else contextlib.nullcontext()
    truth = _truth_of_floats() if floats else contextlib.nullcontext()
    with with_builtins(modules, stand_ins), python_dtypes(modules, dtypes), reading, truth:
        yield


@contextlib.contextmanager
def _truth_of_floats() -> Iterator[None]:
    """Lets ``if t`` and ``t or 1.0`` ask whether a float is 0. torch (2.15) makes a constant of
    it."""
    own = torch.SymFloat.__bool__
    kind: Any = torch.SymFloat
    try:
        kind.__bool__ = lambda number: builtins.bool(number != 0.0)
        yield
    finally:
        kind.__bool__ = own


class _Reading(TorchFunctionMode):
    """Takes ``tolist`` and slices with tensors of one element apart into single values."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.tolist:
            return _items(args[0])
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            args = (args[0], _plain(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


def _items(tensor: torch.Tensor) -> Any:
    if tensor.dim() == 0:
        return tensor.item()
    return [_items(tensor[i]) for i in range(tensor.shape[0])]


def _plain(index: Any) -> Any:
    """An index without tensors in its slices."""
    if isinstance(index, tuple):
        return tuple(_plain(part) for part in index)
    if isinstance(index, slice):
        ends = (index.start, index.stop, index.step)
        return slice(*(end.item() if isinstance(end, torch.Tensor) else end for end in ends))
    return index


@contextlib.contextmanager
def real_values(enabled: bool) -> Iterator[None]:
    """Lets a trace compute the values of its sample, to know which way an ``if`` goes.

    Args:
        enabled: does nothing if it is False, or if this torch has no such setting.
    """
    from torch._functorch import config

    setting = "fake_tensor_propagate_real_tensors"
    if not enabled or not hasattr(config, setting):
        yield
        return
    with (
        config.patch(setting, True),
        _Comparing(),
        _offsets_not_compared(),
        _parts_not_compared(),
        _hashes_of_values(),
    ):
        yield


class _Comparing(TorchFunctionMode):
    """Replaces comparisons that return a bool by a tensor and its value."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given: dict[str, Any] = kwargs or {}
        if func in (torch.equal, torch.Tensor.equal):
            one, other = *args, *given.values()
            return one.shape == other.shape and builtins.bool((one == other).all())
        if func in (torch.allclose, torch.Tensor.allclose):
            return builtins.bool(torch.isclose(*args, **given).all())
        return func(*args, **given)


@contextlib.contextmanager
def _offsets_not_compared() -> Iterator[None]:
    """Keeps torch from comparing the storage offset of a tensor with that of the real one:
    ``edges[1]`` begins at the number of edges, which would become a constant (torch 2.15)."""
    tensors: Any = importlib.import_module("torch._subclasses.fake_utils")
    check = getattr(tensors, "_check_fake_real_tensors", None)
    if check is None:
        yield
        return

    def checked(real: Any, fake: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(fake.storage_offset(), torch.SymInt):
            check(real, fake, *args, **kwargs)

    try:
        tensors._check_fake_real_tensors = checked
        yield
    finally:
        tensors._check_fake_real_tensors = check


@contextlib.contextmanager
def _hashes_of_values() -> Iterator[None]:
    """Makes an int of a tensor hashable, so that it can be the key of a dict: ``grids[kind]`` for
    ``kind`` in ``kinds.tolist()``. Its value is known, and asserted in the program. torch's own
    code relies on symbols without hashes."""
    hash_before = torch.SymInt.__hash__

    def hashed(number: torch.SymInt) -> int:
        name = str(sys._getframe(1).f_globals.get("__name__", ""))
        is_torch = name.partition(".")[0] == "torch"
        return hash_before(number) if is_torch else hash(builtins.int(number))

    try:
        torch.SymInt.__hash__ = hashed  # type: ignore[method-assign,assignment]
        yield
    finally:
        torch.SymInt.__hash__ = hash_before  # type: ignore[method-assign]


@contextlib.contextmanager
def _parts_not_compared() -> Iterator[None]:
    """Keeps torch from comparing the ``prims`` that it decomposes operators into: there, a sum of
    int32 numbers is int64, and so is the sign of an int (torch 2.15). The operators themselves are
    compared."""
    mode: Any = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    name = "_maybe_infer_fake_kernel_from_pytree_out"
    check = getattr(mode, name, None)
    if check is None:
        yield
        return

    def checked(self: Any, func: Any, *args: Any) -> Any:
        is_part = getattr(func, "namespace", None) == "prims"
        return args[_FAKE_OUT] if is_part else check(self, func, *args)

    try:
        setattr(mode, name, checked)
        yield
    finally:
        setattr(mode, name, check)


_FAKE_OUT = 2
"""Where a check gets what an operator returns in a trace."""
