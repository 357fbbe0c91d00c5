"""Values in the nesting of an argument, such as its dynamic shapes.

In comes a flattened argument and a value per leaf. Out go the values in the argument's lists,
tuples, dicts and named tuples, which is the form that ``torch.export`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from calltape_analyzer.pytree.classes import is_named_tuple_of

__all__ = ["Nested", "nested", "rebuilt_namedtuple"]


class Nested(Protocol):
    """A leaf, or a container: ``list``, ``tuple``, ``dict`` or ``namedtuple``. ``keys`` are those
    of a dict, or the fields of a named tuple, whose class ``type`` names."""

    @property
    def kind(self) -> str: ...
    @property
    def children(self) -> tuple[Any, ...]: ...
    @property
    def keys(self) -> tuple[Any, ...]: ...
    @property
    def type(self) -> str | None: ...


N = TypeVar("N", bound=Nested)


def nested(form: N, leaf: Callable[[N], Any], namedtuple: Callable[[N, list[Any]], Any]) -> Any:
    """Values in the containers of a form.

    Args:
        form: of the argument.
        leaf: gives the value of a leaf.
        namedtuple: gives the value of a named tuple with these parts.
    """
    if form.kind not in ("list", "tuple", "dict", "namedtuple"):
        return leaf(form)
    parts = [nested(child, leaf, namedtuple) for child in form.children]
    if form.kind == "dict":
        return dict(zip(form.keys, parts, strict=True))
    if form.kind == "namedtuple":
        return namedtuple(form, parts)
    return tuple(parts) if form.kind == "tuple" else parts


def rebuilt_namedtuple(cls: type | None, form: Nested, parts: Sequence[Any]) -> Any:
    """A named tuple of these parts, whatever they are; a plain tuple if the class is not known
    here, or has other fields."""
    known: Any = cls
    return tuple.__new__(known, parts) if is_named_tuple_of(known, form.keys) else tuple(parts)
