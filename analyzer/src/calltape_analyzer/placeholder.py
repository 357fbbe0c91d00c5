"""What stands for an object that was not rebuilt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Placeholder"]


@dataclass(frozen=True, eq=False)
class Placeholder:
    """An inert stand-in for an object that was not rebuilt.

    Attributes:
        type_name: class of the recorded object, ``module:qualified.name``.
        reason: why this is not that object.
        names: field names, dict keys or positions of the children.
        children: what the object held, rebuilt.

    ``placeholder["layers"]`` is the child of that name.
    """

    type_name: str
    reason: str
    names: tuple[Any, ...] = ()
    children: tuple[Any, ...] = ()

    def __getitem__(self, name: Any) -> Any:
        for known, child in zip(self.names, self.children, strict=True):
            if known == name:
                return child
        raise KeyError(name)

    def __repr__(self) -> str:
        held = ", ".join(map(str, self.names))
        return f"<Placeholder for {self.type_name}: {self.reason}{held and f'; holds {held}'}>"
