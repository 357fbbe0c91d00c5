"""The context that a call ran in: ``torch.autocast``, the default dtype, the grad and inference
modes, and whether the model was in training mode.

A context is that of a recorded call, or the one that the thread of a live call is in. Autocast and
the default dtype separate calls as their structure does: a program was traced under them. The grad
and inference modes separate calls only if the model asks for them, training mode only if a tape has
both.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from calltape_analyzer.text import some_of
from calltape_schema.tree import Autocast, CallContext

__all__ = ["CONTEXT", "FLOAT", "ORDINARY", "Context", "Mode"]

CONTEXT = "(context)"
"""Stands for the name of an argument in the keys of a layout."""

Mode = Literal["grad", "inference", "training"]
FLOAT = "float32"
"""The default dtype of torch, if nobody has set another."""
_MAX_NAMED = 5
_KINDS = frozenset({"cpu", "cuda", "xpu", "mps"})
"""Where a call without tensors may run."""


@dataclass(frozen=True)
class Context:
    """What a call ran in.

    Attributes:
        autocast: pairs of a type of device and the dtype that autocast casts to there.
        effective_autocast: those of them for a type of device that an argument is on. The others
            have no effect on a model whose arguments are where it is.
        grad, inference: whether gradients were recorded, and whether inference mode was on.
        modes: those that separate calls.
        dtype: the default dtype of torch.
        training: whether the model was in training mode.
    """

    autocast: tuple[tuple[str, str], ...] = ()
    effective_autocast: tuple[tuple[str, str], ...] = ()
    grad: bool = True
    inference: bool = False
    modes: frozenset[Mode] = frozenset()
    dtype: str = FLOAT
    training: bool = False

    @classmethod
    def of(
        cls,
        recorded: CallContext | None,
        devices: Collection[str] = (),
        modes: Collection[Mode] = (),
    ) -> Context:
        """Of a recorded call.

        Args:
            recorded: what the tape has; None for torch's defaults.
            devices: of the arguments, such as ``cuda:0``. Without any, the call ran where the model
                was, which nobody has noted.
            modes: those that separate calls.
        """
        context = recorded or _DEFAULT
        types = {_type(device) for device in devices}
        pairs = tuple(sorted((autocast.device, autocast.dtype) for autocast in context.autocast))
        effective = tuple(pair for pair in pairs if not types or pair[0] in types)
        return cls(
            pairs, effective, context.grad, context.inference, frozenset(modes),
            context.default_dtype,
            context.training,
        )  # fmt: skip

    @classmethod
    def now(cls, devices: Iterable[str] = (), modes: Collection[Mode] = ()) -> Context:
        """Of a call that this thread makes, with arguments on these devices. It takes the place of
        one of a model in evaluation mode."""
        import torch

        types = {_type(device) for device in devices} or _KINDS
        on = sorted(device for device in types if _is_on(device))
        pairs = tuple((device, _name(torch.get_autocast_dtype(device))) for device in on)
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        dtype = _name(torch.get_default_dtype())
        return cls(pairs, pairs, grad, inference, frozenset(modes), dtype)

    def recorded(self) -> CallContext | None:
        """As a structure has it, without autocast that has no effect; None if that is
        torch's default."""
        casts = tuple(
            Autocast(device=device, dtype=dtype) for device, dtype in self.effective_autocast
        )
        context = CallContext(
            autocast=casts,
            grad=self.grad,
            inference=self.inference,
            default_dtype=self.dtype,
            training=self.training,
        )
        return None if context == _DEFAULT else context

    @property
    def key(self) -> tuple[tuple[str, Hashable], ...]:
        """What it adds to the keys of a layout: nothing for calls without autocast and with torch's
        own default dtype, if no mode separates calls. A program may serve calls of another device
        than the recorded one."""
        states = tuple((mode, getattr(self, mode)) for mode in sorted(self.modes))
        dtypes = tuple(sorted({dtype for _, dtype in self.effective_autocast}))
        default = () if self.dtype == FLOAT else (self.dtype,)
        return ((CONTEXT, (dtypes, states, default)),) if dtypes or states or default else ()

    def words(self) -> str | None:
        """For people: ``autocast cpu bfloat16, no_grad``; None for torch's defaults."""
        words = [f"autocast {device} {dtype}" for device, dtype in self.autocast]
        words += [self.dtype_in_words()] if self.dtype != FLOAT else []
        if self.inference:
            words.append("inference_mode")
        if self.grad == self.inference:
            words.append("gradients" if self.grad else "no_grad")
        if self.training:
            words.append("training")
        return ", ".join(words) or None

    def separating(self, other: Context | None = None) -> str:
        """What of it separates calls, in words: ``no autocast``, ``autocast cpu bfloat16, no
        gradients``.

        Args:
            other: of calls that it is told apart from.
        """
        words = [self.autocast_in_words()] if self.effective_autocast or self.modes else []
        if self.dtype != (FLOAT if other is None else other.dtype):
            words.append(self.dtype_in_words())
        return some_of(words, _MAX_NAMED) or "no autocast"

    def autocast_in_words(self) -> str:
        """Autocast, and the modes that the model asks for: ``no autocast``."""
        words = [f"autocast {device} {dtype}" for device, dtype in self.effective_autocast]
        if "grad" in self.modes:
            words.append("gradients" if self.grad else "no gradients")
        if "inference" in self.modes:
            words.append("inference mode" if self.inference else "no inference mode")
        if "training" in self.modes:
            words.append("training mode" if self.training else "evaluation mode")
        return some_of(words, _MAX_NAMED) or "no autocast"

    def dtype_in_words(self) -> str:
        """``default dtype float64``."""
        return f"default dtype {self.dtype}"


def _type(device: str) -> str:
    return device.partition(":")[0]


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _is_on(device: str) -> bool:
    import torch

    try:
        return torch.is_autocast_enabled(device)
    except (RuntimeError, ValueError):  # torch has no autocast for it
        return False


_DEFAULT = CallContext()
ORDINARY = Context()
