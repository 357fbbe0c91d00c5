"""The form in which arguments are returned: a tuple, or a dict by parameter name.

In come positional and keyword arguments. Out goes one of the two, as ``torch.onnx.InputObserver``
returns it.
"""

from __future__ import annotations

from typing import Any

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.signature import Signature

__all__ = ["as_one"]


def as_one(
    args: tuple[Any, ...], kwargs: dict[str, Any], signature: Signature
) -> tuple[Any, ...] | dict[str, Any]:
    """The arguments in the form of ``torch.onnx.InputObserver``: a tuple if all are positional, a
    dict by parameter name otherwise.

    Raises:
        InferenceError: members of ``*args`` have no name.
    """
    if not kwargs:
        return args
    if not args:
        return kwargs
    if signature.variadic_positional is not None:
        raise InferenceError(
            "Arguments of a method with *args are neither a tuple nor a dict alone",
            advice="set as_args_kwargs=True",
        )
    named = {signature.name_at(i): value for i, value in enumerate(args)}
    return {**named, **kwargs}
