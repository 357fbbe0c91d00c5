"""What stands for an object that was not rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.printable import printable
from calltape_schema.tree import OpaqueNode

__all__ = ["Placeholder", "withheld_words"]

_MAX_NAMES, _MAX_SHOWN = 48, 80


@dataclass(frozen=True, eq=False)
class Placeholder:
    """An inert stand-in for an object that was not rebuilt.

    Attributes:
        type_name: class of the recorded object, ``module:qualified.name``.
        reason: why this is not that object.
        names: field names, dict keys or positions of the children.
        children: what the object held, rebuilt.
        withheld: whether the tape was not to have it; ``reason`` says what it was.

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


def withheld_words(node: OpaqueNode, scalars: Sequence[Any] = ()) -> str | None:
    """What a scalar was that the tape was not to have; None for anything else.

    Args:
        node: any placeholder of a structure.
        scalars: of the same tree, which have the length of a text; none where it is not known.
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
