"""Placeholders for objects that are not rebuilt here, and for values that are not on the tape."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.text import printable
from calltape_schema.nested_tensors import NESTED_TENSOR
from calltape_schema.tree import OpaqueNode

__all__ = ["UNKNOWN_CLASS", "Placeholder", "check_rebuilt", "placeholder_words", "withheld_words"]

_MAX_NAMES, _MAX_SHOWN = 48, 80
UNKNOWN_CLASS = "a class that calltape does not know"
"""What a recorder says of an object of any other class."""


@dataclass(frozen=True, eq=False)
class Placeholder:
    """Stands for an object that was not rebuilt, and does nothing.

    Attributes:
        type_name: the class of the recorded object, ``module:qualified.name``.
        reason: why the object was not rebuilt.
        names: the field names, dict keys or positions of the children.
        children: the parts of the object, rebuilt.
        withheld: whether the policy kept the value off the tape; ``reason`` says what it was.

    ``placeholder["layers"]`` is the child of that name.
    """

    type_name: str
    reason: str
    names: tuple[Any, ...] = ()
    children: tuple[Any, ...] = ()
    withheld: bool = False

    def __getitem__(self, name: Any) -> Any:
        for known, child in zip(self.names, self.children, strict=True):
            if known == name:
                return child
        raise KeyError(name)

    def __repr__(self) -> str:
        shown = ", ".join(str(name)[:_MAX_SHOWN] for name in self.names[:_MAX_NAMES])
        more = ", …" if len(self.names) > _MAX_NAMES else ""
        held = shown and f"; holds {shown}{more}"
        return printable(f"<Placeholder for {self.type_name}: {self.reason}{held}>")


def check_rebuilt(name: str, value: Any) -> None:
    """Raises InferenceError if an argument contains a Placeholder: a model would fail on it with an
    error that does not say why."""
    found = _placeholder_in(value, set())
    if found is None:
        return
    class_name = found.type_name.rpartition(":")[2]
    advice = f"leave it out with Tape.remove_inputs([{name!r}])"
    if found.reason.startswith("class not "):
        advice = (
            f"pass open_tape(path, classes=[{class_name}]), or `calltape args --classes "
            f"{found.type_name}`; for export, also call register_flattening_functions(tape=tape)"
        )
    elif found.type_name == NESTED_TENSOR:
        advice = "record all of its parts with their values"
    elif found.reason == UNKNOWN_CLASS and _is_of_python(found.type_name):
        advice = (
            f"no program takes one: read it before, and call the model with a list or tensors of "
            f"what it gives, and record that; or, if the model does without {name}, {advice}"
        )
    elif found.reason == UNKNOWN_CLASS:
        advice = (
            f"register {class_name} with torch.utils._pytree.register_pytree_node, record again, "
            f"and pass open_tape(path, classes=[{class_name}]); or call the model with the tensors "
            f"that it holds; or, if the model does without {name}, {advice}"
        )
    raise InferenceError(
        f"{name} holds a {found.type_name}, which was not rebuilt ({found.reason})", advice=advice
    )


def _is_of_python(type_name: str) -> bool:
    """Whether an object is a generator, a file or another object of Python's own library. It holds
    no tensors that a registration could name."""
    package = type_name.partition(":")[0].partition(".")[0]
    return package == "builtins" or package in sys.stdlib_module_names - {"__main__"}


def placeholder_words(value: Any) -> str:
    """What in a value was not rebuilt, and why; empty if nothing is missing."""
    found = _placeholder_in(value, set())
    return "" if found is None else f"a {found.type_name} that was not rebuilt ({found.reason})"


def _placeholder_in(value: Any, seen: set[int]) -> Placeholder | None:
    if isinstance(value, Placeholder):
        return value
    if isinstance(value, type) or hasattr(value, "untyped_storage") or id(value) in seen:
        return None
    seen.add(id(value))
    parts: list[Any] = list(value) if isinstance(value, list | tuple | set | frozenset) else []
    if isinstance(value, Mapping):
        parts += value.values()
    parts += getattr(value, "__dict__", {}).values()
    return next((f for part in parts if (f := _placeholder_in(part, seen)) is not None), None)


def withheld_words(node: OpaqueNode, scalars: Sequence[Any] = ()) -> str | None:
    """What a scalar was whose value the policy kept off the tape; None for any other node.

    Args:
        node: an opaque node of a structure.
        scalars: of the same tree, which have the length of a text; empty if it is not known.
    """
    if node.of is None:
        return None
    length = None if node.length is None or not scalars else scalars[node.length]
    if node.of == "str":
        letters = "" if length is None else f" of {length} character{'s' * (length != 1)}"
        return f"text{letters}, not kept"
    if node.of == "bytes":
        return f"bytes{'' if length is None else f', {length} of them'}, not kept"
    return f"{node.of}, not kept"
