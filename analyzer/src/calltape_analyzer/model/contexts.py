"""Runs of a model as it was called: under autocast, with the default dtype, in the grad and
inference modes, and in training or evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.pytree.tensors import torch_constant

__all__ = [
    "as_called",
    "detached",
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

    grad = context.grad and "grad" in context.asked
    inference = context.inference and "inference" in context.asked
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
    wanted = dict(context.autocast)
    if here not in wanted and context.met:
        wanted[here] = context.met[0][1]
    with ExitStack() as stack:
        for kind, name in wanted.items():
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
    """The same leaves without what gradients would be computed from, which takes memory."""
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
