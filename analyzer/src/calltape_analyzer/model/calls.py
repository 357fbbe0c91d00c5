"""Calls of a model as it was called: by the recorded method, under autocast, with the default
dtype, in the grad and inference modes, and in training or evaluation mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from calltape_analyzer.arguments.plan import ArgumentPlan, as_call
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.tensors import torch_constant
from calltape_schema.records import Target

if TYPE_CHECKING:
    import torch

__all__ = [
    "as_called",
    "as_module",
    "called",
    "detached",
    "device_of",
    "eager",
    "entry_of",
    "experts_as",
    "under_autocast",
    "with_default_dtype",
    "without_autocast",
    "without_saved_tensors",
]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
"""What torch takes for a default dtype, and casts to. A tape may name any other."""
_KINDS = ("cpu", "cuda", "xpu", "mps", "mtia", "maia", "hpu", "xla", "privateuseone")


@contextmanager
def as_called(context: Context, device: str, model: Any = None) -> Iterator[None]:
    """Puts this thread into the context of a call, and out of its own; and the model into the mode
    that it was in.

    Gradients take memory, so they are recorded only if the model asks whether they are.

    Args:
        context: of the call.
        device: that it runs on now.
        model: what is called: a module, or a method of one. Anything else has no mode.
    """
    import torch

    grad = context.grad and "grad" in context.modes
    inference = context.inference and "inference" in context.modes
    with (
        without_autocast(),
        torch.inference_mode(inference),
        torch.set_grad_enabled(grad),
        with_default_dtype(context),
        under_autocast(context, device),
        _in_mode(model, training=context.training),
    ):
        yield


@contextmanager
def _in_mode(model: Any, *, training: bool) -> Iterator[None]:
    """Puts a module into training or evaluation mode. Parts may be in another mode than the whole,
    so that one that is in this mode stays as it is.

    Only the flags are set: ``train()`` of a class of its own may do anything, such as to merge
    weights, in each run. A frozen module of TorchScript has no mode.
    """
    import torch

    module = getattr(model, "__self__", model)
    now = getattr(module, "training", None) if isinstance(module, torch.nn.Module) else None
    if now is None or now is training:
        yield
        return
    before = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in before:
            part.training = training
        yield
    finally:
        for part, was in before:
            part.training = was


@contextmanager
def with_default_dtype(context: Context) -> Iterator[None]:
    """Gives this process the default dtype of a call. A program has it in no operator: what makes a
    tensor asks for it whenever it runs."""
    import torch

    before = torch.get_default_dtype()
    dtype = before
    if context.dtype in _FLOATS:
        dtype = torch_constant("dtype", context.dtype)
    if dtype is before:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def under_autocast(context: Context, device: str) -> Iterator[None]:
    """Puts this thread under the autocast of a call. A trace sees it only if it is entered within
    what is traced.

    Autocast for the device of the arguments becomes autocast for the device that the call runs on
    now: calls of a server are run again on a machine without its accelerator.
    """
    import torch

    here = device.partition(":")[0]
    dtypes = dict(context.autocast)
    if here not in dtypes and context.effective_autocast:
        dtypes[here] = context.effective_autocast[0][1]
    with ExitStack() as stack:
        for kind, name in dtypes.items():
            if name in _FLOATS and _is_available(kind):
                dtype = torch_constant("dtype", name)
                # A cache of cast weights would outlive a trace, if the caller is under autocast.
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
        yield


@contextmanager
def without_autocast() -> Iterator[None]:
    """Runs what is in the block without any autocast of this thread. The casts are in a program
    that was traced under it, and would be made twice."""
    import torch

    with ExitStack() as stack:
        for kind in _KINDS:
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def detached(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The same leaves without the graph that gradients would be computed from, which takes
    memory."""
    import torch

    return {
        path: leaf.detach() if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf
        for path, leaf in leaves.items()
    }


def without_saved_tensors() -> AbstractContextManager[Any]:
    """Lets a run record gradients without what they would be computed from: it takes no more memory
    than a run without them. A model that computes gradients itself raises an error in it."""
    import torch

    def nothing(_: Any) -> Any:
        return None

    return torch.autograd.graph.saved_tensors_hooks(nothing, nothing)


def _is_available(kind: str) -> bool:
    import torch

    if kind == "cpu":
        return True
    if kind not in _KINDS or not torch.amp.is_autocast_available(kind):
        return False
    module = vars(torch).get(kind)
    return module is not None and bool(getattr(module, "is_available", lambda: False)())


_PYTHON_MODULE = "builtins:module"


def entry_of(module: torch.nn.Module, target: Target | None) -> Callable[..., Any]:
    """What a recorded call called: the module itself for ``forward``, else its method.

    Raises:
        UsageError: the module has no such method.
    """
    method = target.method if target is not None else "forward"
    # A function of a Python module was recorded: whatever module stands for it computes the same.
    is_function = target is not None and target.type == _PYTHON_MODULE
    if method in ("forward", "__call__") or (is_function and not hasattr(module, method)):
        return module
    function = getattr(module, method, None)
    if not callable(function):
        raise UsageError(
            f"the calls are of {method}(), which {type(module).__name__} does not have",
            advice="pass the object that was recorded",
        )
    entry: Callable[..., Any] = function
    return entry


def as_module(function: Callable[..., Any]) -> torch.nn.Module:
    """A module that calls a function; exporters take modules only."""
    import torch

    class Function(torch.nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    Function.__module__ = getattr(function, "__module__", None) or Function.__module__
    return Function().eval()


def device_of(module: torch.nn.Module) -> torch.device:
    """The device of a module's first parameter or buffer; the CPU without any."""
    import torch

    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def eager(
    call: Callable[..., Any],
    plan: ArgumentPlan,
    sample: Sample,
    classes: ClassIndex,
    device: str,
    context: Context | None = None,
    within: AbstractContextManager[Any] | None = None,
) -> Any:
    """What the model returns for a sample, by default in the context of the variant's calls.
    ``within`` is around the call alone."""
    return called(call, plan, plan.build(sample, classes, device), device, context, within)


def called(
    call: Callable[..., Any],
    plan: ArgumentPlan,
    arguments: Mapping[str, Any],
    device: str,
    context: Context | None = None,
    within: AbstractContextManager[Any] | None = None,
) -> Any:
    """The same for arguments by name, which the model may change."""
    args, kwargs = as_call(arguments, plan.signature)
    with as_called(context or plan.context, device, call), within or contextlib.nullcontext():
        return call(*args, **kwargs)


@contextlib.contextmanager
def experts_as(module: Any, implementation: str | None) -> Iterator[None]:
    """Lets a mixture of experts of transformers run its experts in one way within the block."""
    if implementation is None:
        yield
        return
    before = module.config._experts_implementation
    module.set_experts_implementation(implementation)
    try:
        yield
    finally:
        module.set_experts_implementation(before)
