"""Observes a run of the model: what it queries of tensors, and how much memory they take.

Runs with other strides, or in another mode of the caller, show whether a model reads these. Nearly
all models read neither, and one observed run proves it: torch reports to a mode each function and
property of a tensor that Python uses. It does not report kernels that are not torch operators, so a
model that may call one needs the other runs.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.comparing import leaves_of
from calltape_analyzer.model.state import was_written, written_by
from calltape_analyzer.programs.caller_objects import views_of
from calltape_analyzer.pytree.description import describe_result
from calltape_analyzer.pytree.memory import storage_of

__all__ = [
    "LAYOUT",
    "MODES",
    "Effects",
    "ObservedCall",
    "QueryWatcher",
    "hides_queries",
    "measured",
]

LAYOUT = frozenset({
    "stride", "is_contiguous", "as_strided", "as_strided_", "data_ptr", "set_", "untyped_storage",
    "storage", "numpy", "__array__", "__dlpack__", "dim_order", "is_set_to", "_typed_storage",
    "__cuda_array_interface__", "written", "operator",
})  # fmt: skip
"""Queries that reveal how a tensor lies in memory. ``written``: a tensor was written to that may be
a view or a copy of another one, depending on its strides. ``operator``: an operator of another
library ran, which gets the memory."""
MODES = frozenset({
    "requires_grad", "grad_fn", "is_leaf", "is_inference", "is_grad_enabled",
    "is_inference_mode_enabled",
})  # fmt: skip
"""Queries that reveal the mode of the caller."""
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_OF_TORCH = ("aten", "prims", "prim")
_MODE_FUNCTIONS = ("is_grad_enabled", "is_inference_mode_enabled")


@dataclass(frozen=True)
class Effects:
    """What a run did besides returning a value, as plain data.

    Attributes:
        generators: the random number generators that it drew from.
        views: the outputs that share memory with arguments, with the numbers of these.
        written: the numbers of the tensors among the arguments that it wrote to, and whether it
            returned them.
        changed: the arguments whose contents changed, and that are not returned.
    """

    generators: tuple[str, ...]
    views: Mapping[str, frozenset[int]]
    written: Mapping[int, bool]
    changed: tuple[str, ...]

    @classmethod
    def of(
        cls,
        generators: Iterable[str],
        value: Any,
        before: Sample,
        given: Sample,
        changed: Iterable[str],
    ) -> Effects:
        """The effects of a run that returned a value.

        Args:
            generators: as above.
            value: what the model returned.
            before: the arguments before the run.
            given: the tensors that the model got.
            changed: as above.
        """
        pairs = enumerate(zip(before.tensors, given.tensors, strict=True))
        written = [number for number, (old, new) in pairs if was_written(old, new)]
        returned = {id(tensor) for tensor in describe_result(value).tensors} if written else set()
        return cls(
            tuple(generators),
            views_of(leaves_of(value), given),
            {number: id(given.tensors[number]) in returned for number in written},
            tuple(changed),
        )


@dataclass
class ObservedCall:
    """What an observed run of a recorded call showed.

    Attributes:
        queries: the names of what the model queried of the caller and of tensors other than its
            own; None if that is unknown.
        generators: that it drew from; None if that is unknown.
        makes_generators: whether all generators that it drew from were gone when it returned, so
            that it creates them in each call.
    """

    queries: frozenset[str] | None = None
    generators: tuple[str, ...] | None = None
    makes_generators: bool = False


def _functions(names: Collection[str]) -> dict[Any, str]:
    """The functions that torch reports to a mode, with their names."""
    functions: dict[Any, str] = {}
    for owner in (torch.Tensor, torch):
        for name in names:
            value: Any = getattr(owner, name, None)
            if callable(value):
                functions[value] = name
            elif hasattr(value, "__get__"):  # a property
                functions[value.__get__] = name
    return functions


_QUERIES = _functions((LAYOUT | MODES) - {"written", "operator", *_MODE_FUNCTIONS})


class QueryWatcher(TorchFunctionMode):
    """Remembers what a model queries of tensors while it runs in the block.

    Args:
        module: the model. Queries of its own tensors do not count.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._model_memory = {
            memory
            for tensor in (*module.parameters(), *module.buffers())
            if (memory := storage_of(tensor)) is not None
        }
        self._queries: set[str] = set()
        self._generators: list[weakref.ref[Any]] = []
        self._within = ExitStack()

    @property
    def queries(self) -> frozenset[str]:
        """The names of the queries so far."""
        return frozenset(self._queries)

    @property
    def makes_generators(self) -> bool:
        """Whether the model drew from generators, and all of them are gone."""
        return bool(self._generators) and all(known() is None for known in self._generators)

    def __enter__(self) -> QueryWatcher:
        self._within.enter_context(_watched_modes(self._queries.add))
        self._within.enter_context(_WriteWatcher(self._model_memory, self._queries.add))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._within.close()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = _QUERIES.get(func)
        if name is not None:
            if not (
                args
                and isinstance(args[0], torch.Tensor)
                and storage_of(args[0]) in self._model_memory
            ):
                self._queries.add(name)
        elif isinstance(func, _OPERATORS):
            namespace = getattr(func, "namespace", None) or str(func).partition(".")[0]
            if namespace not in _OF_TORCH:
                self._queries.add("operator")
        if isinstance(keywords.get("generator"), torch.Generator):
            self._generators.append(weakref.ref(keywords["generator"]))
        return func(*args, **keywords)


class _OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Hides the operators within compiled code from the mode. Otherwise nothing could be
        compiled, and ``flex_attention`` would raise an error."""
        return True


class _WriteWatcher(_OperatorMode):
    """Reports operators that write to a tensor other than the model's own. Names in Python do not
    show them: ``relu(x, inplace=True)`` writes within torch."""

    def __init__(self, model_memory: Collection[int], report: Callable[[str], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model_memory = model_memory
        self._report = report

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        places, names = written_by(func)
        written = [args[i] for i in places if i < len(args)]
        written += [keywords[name] for name in names if name in keywords]
        tensors = [
            tensor for tensor in pytree.tree_leaves(written) if isinstance(tensor, torch.Tensor)
        ]
        if any(storage_of(tensor) not in self._model_memory for tensor in tensors):
            self._report("written")
        return func(*args, **keywords)


def hides_queries(module: torch.nn.Module) -> bool:
    """Whether parts of a model may make queries that no mode sees: compiled and scripted parts, and
    functions of libraries that are not torch operators, in the modules of its classes or of the
    functions that these import."""
    for part in module.modules():
        if isinstance(part, (torch.jit.ScriptModule, torch._dynamo.eval_frame.OptimizedModule)):
            return True
        if isinstance(vars(part).get("forward"), torch.jit.ScriptFunction):
            return True
    python_modules = _python_modules(
        {c.__module__ for part in module.modules() for c in type(part).__mro__}
    )
    values = [value for one in python_modules for value in list(vars(one).values())]
    imported = {one.__module__ for one in values if isinstance(one, FunctionType)}
    values += [
        one
        for module_of_import in _python_modules(imported)
        for one in list(vars(module_of_import).values())
    ]
    return any(map(_is_hidden, values))


def _python_modules(names: Iterable[str]) -> list[ModuleType]:
    return [sys.modules[name] for name in names if name in sys.modules and not _is_known(name)]


def _is_hidden(value: Any) -> bool:
    """Whether code can query tensors through a value without a mode seeing it."""
    if any(value is getattr(torch, name) for name in _MODE_FUNCTIONS):
        return True  # imported by its name
    if isinstance(value, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
        return True
    if hasattr(value, "_torchdynamo_orig_callable"):
        return True
    name = None
    if isinstance(value, ModuleType):
        name = value.__name__
    elif isinstance(value, BuiltinFunctionType):
        name = value.__module__
    file = getattr(sys.modules.get(name or ""), "__file__", None) or ""
    is_extension = file.endswith((".so", ".pyd"))
    return is_extension and not _is_known(name or "") and "lib-dynload" not in file


def _is_known(name: str) -> bool:
    """Whether no function of a package bypasses torch to compute on tensors: a mode sees numpy get
    them, and safetensors only reads files."""
    return name.partition(".")[0] in ("torch", "builtins", "numpy", "safetensors")


@contextmanager
def _watched_modes(report: Callable[[str], None]) -> Iterator[None]:
    """Reports calls of the torch functions that return the mode of the caller."""
    torch_module: Any = torch

    def reported(name: str, function: Callable[[], bool]) -> Callable[[], bool]:
        def reporting() -> bool:
            report(name)
            return function()

        return reporting

    before = {name: getattr(torch_module, name) for name in _MODE_FUNCTIONS}
    try:
        for name, function in before.items():
            setattr(torch_module, name, reported(name, function))
        yield
    finally:
        for name, function in before.items():
            setattr(torch_module, name, function)


_ATTENTION = "aten::_scaled_dot_product"
_AT_ONCE = 2
"""The scores and their softmax."""


class Measured(NamedTuple):
    """What a function returned, and the peak memory of its tensors in bytes. Memory that a kernel
    allocates internally is not counted."""

    value: Any
    peak: int


def measured(function: Callable[[], Any], *, fused: bool = True) -> Measured:
    """Runs a function and measures the memory of the tensors that it creates, on any device.

    Args:
        function: is run.
        fused: whether attention takes the memory that torch's kernels take. Otherwise its scores
            and their softmax count as well: ONNX Runtime keeps them in memory, and torch's kernels
            do not.
    """
    with _MemoryCounter(fused) as counter:
        value = function()
    return Measured(value, counter.peak)


class _MemoryCounter(_OperatorMode):
    def __init__(self, fused: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._fused = fused
        self._live = 0
        self._storages: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {key for key, _ in _storages((args, kwargs))}
        returned = func(*args, **(kwargs or {}))
        if not self._fused and func.name().startswith(_ATTENTION):
            query, keys = args[:2]
            scores = query.shape[:-1].numel() * keys.shape[-2] * query.element_size()
            self.peak = max(self.peak, self._live + _AT_ONCE * scores)
        for key, storage in _storages(returned):
            if key not in given and key not in self._storages:
                self._add(key, storage)
        return returned

    def _add(self, key: int, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()

        def freed(_: Any) -> None:
            if self._storages.pop(key, None) is not None:
                self._live -= size

        self._storages[key] = weakref.ref(storage, freed)
        self._live += size
        self.peak = max(self.peak, self._live)


def _storages(tree: Any) -> list[tuple[int, torch.UntypedStorage]]:
    found = []
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            storage = leaf.untyped_storage()
            found.append((storage._cdata, storage))
    return found
