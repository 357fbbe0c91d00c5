"""Visitors for values that are not containers: tensors, scalars, constants, placeholders.

A visitor gets the state of the walk and a value, and appends the tokens of the value.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any

import torch

from calltape_recorder.bounds import MAX_INT_BITS, MAX_NAME_CHARACTERS, MAX_TEXT_BYTES
from calltape_recorder.capture.names import ModuleNames
from calltape_recorder.threads import is_interrupt
from calltape_schema.bounds import MAX_STRING_BYTES
from calltape_schema.objects import (
    dict_of,
    has_own_hash,
    is_in_its_module,
    jagged_parts,
    module_of,
    mro_of,
    name_of,
    names_beside,
    names_on_tensor,
    qualname_of,
)


class Walk:
    """The state of one walk."""

    __slots__ = (
        "context", "leaf_numbers", "leaves", "limit", "module_names", "nested", "path",
        "repeated", "scalars", "text", "tokens",
    )  # fmt: skip

    def __init__(
        self, limit: int, nested: int | None = None, module_names: ModuleNames | None = None
    ) -> None:
        self.tokens: list[Any] = []
        self.leaves: list[Any] = []
        self.scalars: list[Any] = []
        self.leaf_numbers: dict[int, int] = {}  # by id of a tensor, which ``leaves`` keeps alive
        self.path: set[int] = set()  # ids of the containers around the current value
        self.text = 0
        self.context = 0  # > 0 within the context of a custom node, which may have no tensor
        self.limit = limit  # how many tokens and scalars there may be
        self.repeated = 0  # how many tokens "again" stands for
        # How many objects of unknown classes are around the current value; None if the walk does
        # not look into them.
        self.nested = nested
        self.module_names = module_names

    def room(self) -> int:
        """How many tokens and scalars there may be more."""
        return self.limit - len(self.tokens) - len(self.scalars) - self.repeated


Visitor = Callable[[Walk, Any], None]
_Tensor = torch.Tensor


def tensor(walk: Walk, value: Any) -> None:
    if walk.context:
        opaque(walk, value, "a tensor in the context of a registered class")
        return
    if walk.nested is not None and (type(value) is not _Tensor or value.__dict__):
        beside(walk, names_on_tensor(value))
    leaves = walk.leaves
    count = len(leaves)
    leaf = walk.leaf_numbers.setdefault(id(value), count)
    if leaf == count:
        leaves.append(value)
        walk.tokens.append("tensor")
    else:
        walk.tokens.append(("tensor", leaf))


def beside(walk: Walk, names: tuple[str, ...]) -> None:
    """Notes the names of attributes that a value has and the tape does not describe. This token
    comes before the token of the value."""
    if names:
        walk.tokens.append(("beside", names))


def array(walk: Walk, value: Any) -> None:
    if walk.context:
        opaque(walk, value, "an array in the context of a registered class")
        return
    leaf = walk.leaf_numbers.setdefault(id(value), len(walk.leaves))
    if leaf == len(walk.leaves):
        walk.leaves.append(value)
    walk.tokens.append(("ndarray", leaf))


def always(token: Any) -> Visitor:
    """A visitor for values that all have one token."""
    return lambda walk, value: walk.tokens.append(token)


def boolean(walk: Walk, value: Any) -> None:
    walk.tokens.append("true" if value else "false")


def integer(walk: Walk, value: int) -> None:
    if value.bit_length() > MAX_INT_BITS:
        opaque(walk, value, f"an int of {value.bit_length()} bits")
        return
    walk.tokens.append("int")
    walk.scalars.append(value)


def floating(walk: Walk, value: float) -> None:
    walk.tokens.append("float")
    walk.scalars.append(value)


def complex_number(walk: Walk, value: complex) -> None:
    walk.tokens.append("complex")
    walk.scalars.append((value.real, value.imag))


def text_bytes(value: str | bytes) -> int:
    """An upper bound of the bytes of a text in UTF-8; of a byte string, their number."""
    return len(value) * (1 if isinstance(value, bytes) or value.isascii() else 4)


def _text_fits(walk: Walk, value: str | bytes) -> bool:
    size = text_bytes(value)
    walk.text += size
    if size <= MAX_STRING_BYTES and walk.text <= MAX_TEXT_BYTES:
        return True
    opaque(walk, value, "a text or bytes too long for a tape")
    return False


def text(walk: Walk, value: str) -> None:
    # A short text needs no check.
    if len(value) <= 256 or _text_fits(walk, value):
        walk.tokens.append("str")
        walk.scalars.append(value)


def byte_string(walk: Walk, value: bytes) -> None:
    if _text_fits(walk, value):
        walk.tokens.append("bytes")
        walk.scalars.append(value)


def subclassed(exact: Callable[[Any], Any], visit: Visitor) -> Visitor:
    """A visitor for scalars of a subclass. ``exact`` reads the plain value without methods that the
    subclass overrides."""

    def visitor(walk: Walk, value: Any) -> None:
        if walk.nested is not None and not walk.context:
            beside(walk, names_beside(value))
        visit(walk, exact(value))
        kind = walk.tokens[-1]
        if isinstance(kind, str) and kind not in ("true", "false"):
            walk.tokens[-1] = ("scalar", kind, type(value))

    return visitor


def constant(kind: str) -> Visitor:
    def visitor(walk: Walk, value: Any) -> None:
        walk.tokens.append((kind, value))

    return visitor


def enum_member(walk: Walk, value: enum.Enum) -> None:
    state = dict_of(value) or {}
    name, plain = state.get("_name_"), state.get("_value_")
    if id(type(plain)) not in _ENUM_VALUES:
        plain = None
    elif type(plain) is int:
        plain = plain if plain.bit_length() < 64 else None
    elif len(str(plain)) > MAX_NAME_CHARACTERS:
        plain = None
    if type(name) is not str:
        # Before Python 3.11 a combination of flags has no name. An empty combination never has one.
        name = str(plain)
    if len(name) > MAX_NAME_CHARACTERS:
        opaque(walk, value, "an enum member with a long name")
    else:
        # The type is next to the value, because tokens with True and with 1 would be equal.
        walk.tokens.append(("enum", type(value), name, type(plain), plain))


_ENUM_VALUES = frozenset(map(id, (str, bytes, int, float, bool)))


def class_itself(walk: Walk, value: type) -> None:
    if has_own_hash(value):
        walk.tokens.append(("opaque", type(value), "a class whose hash is code"))
    elif walk.nested is not None and not is_in_its_module(value):
        opaque(walk, value, "a class that its module does not have")
    else:
        walk.tokens.append(("class", value))


def opaque(walk: Walk, value: Any, reason: str) -> None:
    # No repr(): it runs the application's code, and its text may be private.
    walk.tokens.append(("opaque", type(value), reason))


def opaque_because(reason: str) -> Visitor:
    return lambda walk, value: opaque(walk, value, reason)


def stand_in(cls: type) -> type:
    """A class of the same name that has no code."""
    return type(name_of(cls), (), {"__module__": module_of(cls), "__qualname__": qualname_of(cls)})


def jagged(walk: Walk, value: Any) -> None:
    """Notes a nested tensor in the jagged layout as an object whose parts are plain tensors.

    If it has unknown parts, it is noted as a tensor, and the tape will have neither its bytes nor
    its shape. The same goes for the strided layout, which torch no longer develops: it has no class
    of its own by which a walk would find it.
    """
    parts = None if walk.context else _parts_of_jagged(value, of_input=walk.nested is None)
    if parts is None or len(parts) > walk.room():
        tensor(walk, value)
        return
    walk.tokens.append(("nested", tuple(parts)))
    for part in parts.values():
        if type(part) is bool:
            boolean(walk, part)
        elif type(part) is int:
            integer(walk, part)
        else:
            tensor(walk, part)


def _parts_of_jagged(value: Any, *, of_input: bool) -> dict[str, Any] | None:
    try:
        # Neither a mode of the application nor the class itself sees what is read.
        with torch._C.DisableTorchFunction():
            return jagged_parts(value, of_input=of_input)
    except Exception as error:  # another torch may have it otherwise
        if is_interrupt(error):
            raise
        return None


def numpy_visitor(cls: type) -> Visitor | None:
    """The visitor for a class of NumPy itself, found without importing NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or module_of(cls) != "numpy" or vars(numpy).get(name_of(cls)) is not cls:
        return None
    if name_of(cls) == "ndarray":
        return array
    names = {name_of(base) for base in mro_of(cls)}
    for name, visit in _NUMPY_SCALARS:
        if name in names and "timedelta64" not in names and name_of(cls) not in _WIDE:
            return subclassed(lambda value: value.item(), visit)
    is_bool = not names.isdisjoint({"bool", "bool_"})  # NumPy 2 and 1
    return subclassed(lambda value: value.item(), boolean) if is_bool else None


_NUMPY_SCALARS = (
    ("integer", integer), ("floating", floating), ("complexfloating", complex_number),
)  # fmt: skip

# .item() of a value of these types does not give a plain Python number.
_WIDE = frozenset({"longdouble", "clongdouble", "float128", "complex256", "float96", "complex192"})
