"""The context of a call, and whether something traces the call.

The context is ``torch.autocast``, the grad and inference modes, the default dtype of torch, and
whether the model is in training mode. It is the first token of the inputs, so that calls in
different contexts have different structures. So counters, policies and everything else that
distinguishes structures distinguishes contexts, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from calltape_recorder.threads import is_interrupt

_C: Any = torch._C

Context = tuple[Any, ...]
"""``("inputs", grad, inference, ((device, dtype), ...))``; and the default dtype if it is not
torch's own, or the model is in training mode; and True if it is."""

ORDINARY: Context = ("inputs", True, False, ())
_NO_GRAD: Context = ("inputs", False, False, ())
_INFERENCE: Context = ("inputs", False, True, ())
_TRAINING: Context = ("inputs", True, False, (), "float32", True)
_TRAINING_NO_GRAD: Context = ("inputs", False, False, (), "float32", True)
_TRAINING_INFERENCE: Context = ("inputs", False, True, (), "float32", True)

_grad = torch.is_grad_enabled
_inference = torch.is_inference_mode_enabled
_dtype = torch.get_default_dtype
_FLOAT = torch.float32
_DEVICES = (
    "cpu",
    *(name for name in ("cuda", "mps") if getattr(torch.backends, name).is_built()),
    *(["xpu"] if torch.xpu._is_compiled() else []),
)
"""The types of devices that this build of torch has autocast for."""
_registered_device = torch._C._get_privateuse1_backend_name
"""The type of device that a library has registered, by its name."""
_NO_NAME = "privateuseone"


# This is no public interface of torch. It answers for all types of devices at once.
_autocasts: Callable[[], bool] = getattr(
    torch._C, "_is_any_autocast_enabled", lambda: any(map(_is_on, _DEVICES))
)


def context_now(is_training: bool) -> Context:
    """The context of this thread and the model."""
    if is_training:
        if _dtype() is _FLOAT and not _autocasts():
            if not _inference():
                return _TRAINING if _grad() else _TRAINING_NO_GRAD
            if not _grad():
                return _TRAINING_INFERENCE
        return ("inputs", _grad(), _inference(), _autocast_now(), _name(_dtype()), True)
    if _dtype() is not _FLOAT:
        return ("inputs", _grad(), _inference(), _autocast_now(), _name(_dtype()))
    if _autocasts():
        return ("inputs", _grad(), _inference(), _autocast_now())
    if _inference():
        return ("inputs", True, True, ()) if _grad() else _INFERENCE
    return ORDINARY if _grad() else _NO_GRAD


def context_document(context: Context) -> dict[str, Any] | None:
    """The context as the tape has it; None if it is torch's default."""
    if context == ORDINARY:
        return None
    _, grad, inference, autocast, *more = context
    autocasts = [{"device": device, "dtype": dtype} for device, dtype in autocast]
    document = {"autocast": autocasts, "grad": grad, "inference": inference}
    if more and more[0] != "float32":
        document["default_dtype"] = more[0]
    return document | {"training": True} if len(more) > 1 else document


def _autocast_now() -> tuple[tuple[str, str], ...]:
    another = _registered_device()
    devices = _DEVICES if another == _NO_NAME else (*_DEVICES, another)
    return tuple(
        [(device, _name(torch.get_autocast_dtype(device))) for device in devices if _is_on(device)]
    )


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_on(device: str) -> bool:
    try:
        return torch.is_autocast_enabled(device)
    except (RuntimeError, ValueError):  # this version of torch has no autocast for it
        return False


def training_mode_of(reference: Callable[[], Any]) -> Callable[[], bool]:
    """A function that says whether a module is in training mode. Each call runs it, so it looks
    directly where torch keeps the mode."""
    if "training" in vars(reference()):

        def from_dict() -> bool:
            model = reference()
            return model is not None and model.__dict__.get("training") is True

        return from_dict

    def from_attribute() -> bool:  # a module that is scripted or compiled has it elsewhere
        model = reference()
        try:
            return model is not None and model.training is True
        except Exception as error:  # a property of the application
            if is_interrupt(error):
                raise
            return False

    return from_attribute


# Calls that something traces, so that they do not run the model.

function_modes: Callable[[], int] = _C._len_torch_function_stack
"""How many modes intercept functions of torch."""
dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
"""How many modes intercept operators."""
_jit_state = _C._get_tracing_state
_functorch_level = getattr(_C._functorch, "peek_interpreter_stack", None)
_tracing_keys = tuple(
    getattr(_C._TorchDispatchModeKey, name)
    for name in ("FAKE", "PROXY", "FUNCTIONAL")
    if hasattr(_C._TorchDispatchModeKey, name)
)


class Traced(Exception):  # noqa: N818 - a signal between functions, not an error
    """The call does not run the model: something traces it."""


def is_proxy(cls: type) -> bool:
    """Whether values of this class trace a call for ``torch.fx``. torch's own function would answer
    for all threads."""
    module = sys.modules.get("torch.fx.proxy")
    return module is not None and issubclass(cls, module.Proxy)


def is_tracing() -> bool:
    """Whether this call runs with tracers in place of tensors: export, fake tensors, make_fx, jit,
    vmap.

    All of this is state of this thread. ``torch.compiler.is_compiling()`` is not: while one thread
    compiles, it is true in all threads, and the others keep serving.
    """
    if _jit_state() is not None:
        return True
    if _functorch_level is not None and _functorch_level() is not None:
        return True
    return dispatch_modes() > 0 and any(
        _C._get_dispatch_mode(key) is not None for key in _tracing_keys
    )
