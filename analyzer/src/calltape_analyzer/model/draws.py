"""Where a model draws random numbers, and what of its results depends on them.

Two runs from two states of the generators may agree by chance: a coin shows heads twice. So what
was computed from random numbers is followed through one run.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_analyzer.model.randomness import Generators, is_same

__all__ = ["Draws"]

_OWN = str(Path(__file__).parents[1])
_NOT_THE_MODELS = (_OWN, str(Path(torch.__file__).parent), "<frozen ")
_STDLIB = sysconfig.get_paths()["stdlib"]
_MAX_STACKS = 8
_MAX_LINES = 8
_READING = {
    torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__,
}  # fmt: skip
"""What reads values without an operator."""


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes where a model draws random numbers, while it runs in the block.

    Args:
        module: the model, which may hold generators.

    Attributes:
        stacks: the frames of the model for each draw by an operator of torch, the innermost last.
        operators: the names of these operators.
        others: the generators beside torch's that were drawn from.
        lines: the lines of the model that drew from them.
        is_of_call: whether all draws by operators were from generators that neither torch has nor
            the model: it may make them anew in each call, and draw the same.
    """

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __init__(self, module: torch.nn.Module | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._module = module
        self._drawn: set[StorageWeakRef] = set()
        self._is_read = False
        self._reading = _Reading(self)
        self._python = _Lines(module)
        self.stacks: list[list[traceback.FrameSummary]] = []
        self.operators: dict[str, None] = {}
        self.others: list[str] = []
        self.lines: list[traceback.FrameSummary] = []
        self.is_of_call = True

    def __enter__(self) -> Draws:
        importlib.import_module("torch._dynamo")  # a mode imports it, and below lines are looked at
        super().__enter__()  # type: ignore[no-untyped-call]
        self._reading.__enter__()  # type: ignore[no-untyped-call]
        self._python.begin()
        return self

    def __exit__(self, *error: Any) -> None:
        self.others, self.lines = self._python.end()
        self._reading.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def reach(self, leaf: Any) -> bool:
        """Whether a value that the model returned depends on random numbers of torch."""
        return self._is_read or (isinstance(leaf, torch.Tensor) and self._is_drawn(leaf))

    def read(self, given: Any) -> None:
        """Notes that Python gets the values of tensors. If these are random, whatever comes after
        may depend on them."""
        self._is_read = self._is_read or any(map(self._is_drawn, _tensors(given)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tags = getattr(func, "tags", ())
        # Attention has the tag also where it drops nothing.
        is_drawn = False
        if torch.Tag.nondeterministic_seeded in tags:
            before = Generators(self._module)
            given = kwargs.get("generator")
            state = given.get_state() if isinstance(given, torch.Generator) else None
            result = func(*args, **kwargs)
            is_known = bool(before.moved())
            self.is_of_call = self.is_of_call and not is_known
            is_drawn = is_known or (state is not None and not is_same(state, given.get_state()))
        else:
            result = func(*args, **kwargs)
        if is_drawn:
            self.operators[str(func)] = None
            if len(self.stacks) < _MAX_STACKS:
                self.stacks.append(_frames_of_the_call())
        if is_drawn or any(map(self._is_drawn, _tensors((args, kwargs)))):
            if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
                self._is_read = True  # a number, or a size
            for tensor in (*_tensors(result), *_written(func, args, kwargs)):
                self._note(tensor)
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        storage = _storage(tensor)
        if storage is None:
            self._is_read = True
        else:
            self._drawn.add(storage)

    def _is_drawn(self, tensor: torch.Tensor) -> bool:
        return bool(self._drawn) and _storage(tensor) in self._drawn


class _Reading(TorchFunctionMode):
    """Tells of functions that read values without an operator."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _READING:
            self._draws.read(args)
        return func(*args, **(kwargs or {}))


class _Lines:
    """Which lines of a model draw from the generators of Python and numpy. Looks at these whenever
    a line ends, because no function need be called that anybody knows of."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._module = module
        self._known = Generators(module, of_torch=False)
        self._before: Any = None
        self._lines: dict[tuple[str, int], traceback.FrameSummary] = {}
        self._owners: dict[str, None] = {}

    def begin(self) -> None:
        self._known = Generators(self._module, of_torch=False)
        self._before = sys.gettrace()
        sys.settrace(self._called)

    def end(self) -> tuple[list[str], list[traceback.FrameSummary]]:
        """The generators that were drawn from, and the lines."""
        sys.settrace(self._before)
        self._owners |= dict.fromkeys(self._known.moved())
        return list(self._owners), list(self._lines.values())

    def _called(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not _may_be_of_the_model(frame.f_code.co_filename):
            return None
        if frame.f_back is not None:
            self._look(frame.f_back, frame.f_back.f_lineno)
        line = frame.f_lineno

        def traced(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
            nonlocal line
            self._look(frame, line)
            line = frame.f_lineno
            return traced

        return traced

    def _look(self, frame: FrameType, line: int) -> None:
        moved = self._known.moved()
        if not moved:
            return
        self._owners |= dict.fromkeys(moved)
        self._known = Generators(self._module, of_torch=False)
        code = frame.f_code
        if len(self._lines) < _MAX_LINES:
            summary = traceback.FrameSummary(code.co_filename, line, code.co_name)
            self._lines.setdefault((code.co_filename, line), summary)


def _may_be_of_the_model(file: str) -> bool:
    is_installed = "site-packages" in file  # which lies within the standard library
    return not file.startswith(_NOT_THE_MODELS) and (is_installed or not file.startswith(_STDLIB))


def _frames_of_the_call() -> list[traceback.FrameSummary]:
    """The frames between our call of the model and the operator that runs now."""
    found: list[traceback.FrameSummary] = []
    for frame in reversed(traceback.extract_stack()):
        is_own = frame.filename.startswith(_OWN)
        if is_own and found:
            break
        if not is_own and (found or not frame.filename.startswith(_NOT_THE_MODELS)):
            found.append(frame)
    return found[::-1]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor):
            yield value


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes to."""
    schema = getattr(func, "_schema", None)  # operators of higher order have none
    for i, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[i] if i < len(args) else kwargs.get(argument.name))


def _storage(tensor: torch.Tensor) -> StorageWeakRef | None:
    """What is equal for tensors of one memory; None if a tensor has none."""
    try:
        return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    except (RuntimeError, NotImplementedError):
        return None
