"""Placeholders for objects that are not rebuilt here, and for values that are not on the tape."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.text import printable
from calltape_schema.objects import NESTED_TENSOR
from calltape_schema.remedies import Remedy
from calltape_schema.tree import Node, OpaqueNode, walk

__all__ = [
    "DATA_KEYS",
    "LEFT_OUT",
    "NEVER_MADE",
    "NOT_KNOWN",
    "NOT_PASSED",
    "NOT_REGISTERED",
    "UNKNOWN_CLASS",
    "Placeholder",
    "Unmade",
    "check_rebuilt",
    "has_data_keys",
    "placeholder_words",
    "placeholders_in",
    "unmade_advice",
    "unmade_in",
    "withheld_words",
    "without_argument",
    "without_the_argument",
]

_MAX_NAMES, _MAX_SHOWN = 48, 80
NOT_KNOWN, NOT_PASSED = "class not known here", "class not passed to open_tape here"
NOT_REGISTERED = "class not registered with torch's pytree here"
NEVER_MADE = "calltape makes no objects of Python's own classes, or of classes with __del__"
"""Of a class that it would be of no use to name."""
_CLASS_UNKNOWN = (NOT_KNOWN, NOT_PASSED)
DATA_KEYS = "its keys do not come back from call to call, as ids of requests: they are data"
"""Why no entry of a dict is described."""
_HOLDS_NOTHING = "call the model with what the object holds, in a dict, or a class of your own"
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

    @property
    def is_of_unknown_class(self) -> bool:
        """Whether it would be an object if its class were named: ``open_tape(path, classes=)``."""
        return self.reason in _CLASS_UNKNOWN and not self.withheld

    def __getitem__(self, name: Any) -> Any:
        for own_name, child in zip(self.names, self.children, strict=True):
            if own_name == name:
                return child
        raise KeyError(name)

    def __repr__(self) -> str:
        shown = ", ".join(str(name)[:_MAX_SHOWN] for name in self.names[:_MAX_NAMES])
        more = ", …" if len(self.names) > _MAX_NAMES else ""
        parts = shown and f"; holds {shown}{more}"
        return printable(f"<Placeholder for {self.type_name}: {self.reason}{parts}>")


class Unmade(Placeholder):
    """Stands for an object whose class is known, and refuses what the tape has."""


def check_rebuilt(arguments: Iterable[tuple[str, Any]], may_lack: Callable[[str], bool]) -> None:
    """Raises InferenceError if an argument contains a Placeholder: a model would fail on it with an
    error that does not say why. It names all unknown classes at once.

    Args:
        arguments: names and values.
        may_lack: tells of a name whether the model can be called without this argument.
    """
    placeholders = [(name, p) for name, value in arguments for p in placeholders_in(value)]
    if not placeholders:
        return
    if unknown := {
        placeholder.type_name: placeholder.reason
        for _, placeholder in placeholders
        if placeholder.is_of_unknown_class
    }:
        names = dict.fromkeys(
            name for name, placeholder in placeholders if placeholder.type_name in unknown
        )
        verb = "holds" if len(names) == 1 else "hold"
        classes = " and ".join(f"a {name}" for name in unknown)
        raise InferenceError(
            f"{' and '.join(names)} {verb} {classes}, which "
            f"{'was' if len(unknown) == 1 else 'were'} not rebuilt "
            f"({'; '.join(dict.fromkeys(unknown.values()))})",
            advice=f"{class_advice(list(unknown))}; for export, also call "
            "register_flattening_functions(tape=tape)",
        )
    name, first = placeholders[0]
    raise InferenceError(
        f"{name} holds a {first.type_name}, which was not rebuilt ({first.reason})",
        advice=_advice(name, first, may_lack(name)),
    )


LEFT_OUT = Remedy("Tape.remove_inputs", "--ignore")
"""What leaves an argument out."""


def has_data_keys(root: Node) -> bool:
    """Whether there is a dict below a node of a layout whose keys are data."""
    return any(isinstance(node, OpaqueNode) and node.reason == DATA_KEYS for node in walk(root))


def without_argument(name: str) -> str:
    """What to do about an argument that prevents the call, and without which the model may be
    called."""
    how = Remedy(f"Tape.remove_inputs([{name!r}])", f"--ignore {name}")
    return f"if the model does without {name}, leave it out with {how}"


def without_the_argument() -> Remedy:
    """The same for an argument whose name is not known."""
    return LEFT_OUT.after("if the model does without the argument, leave it out with ")


def _advice(name: str, placeholder: Placeholder, may_lack: bool) -> str:
    """What to do about a placeholder in an argument, if its class is known."""
    module, _, class_name = placeholder.type_name.rpartition(":")
    package = module.partition(".")[0]
    or_without = f"; or, {without_argument(name)}" if may_lack else ""
    if placeholder.reason == NOT_REGISTERED:
        return (
            f"register {class_name} with torch.utils._pytree.register_pytree_node in this process"
        )
    if placeholder.reason == NEVER_MADE:
        return f"{_HOLDS_NOTHING}, and record that{or_without}"
    if placeholder.type_name == NESTED_TENSOR:
        return "record all of its parts with their values"
    if placeholder.reason == DATA_KEYS:
        return f"pass what stands in it as lists or tensors, and record that{or_without}"
    if placeholder.reason == UNKNOWN_CLASS and (
        package == "builtins" or package in sys.stdlib_module_names - {"__main__"}
    ):
        # A generator, a file: it holds no tensors that a registration could name.
        return (
            f"no program takes one: read it before, and call the model with a list or tensors of "
            f"what it gives, and record that{or_without}"
        )
    if (
        placeholder.reason == UNKNOWN_CLASS and package == "torch"
    ):  # nobody registers these for others
        how = _INSTEAD_OF.get(class_name, "call the model with the tensors that it holds")
        return f"no program takes one: {how}, and record that{or_without}"
    if placeholder.reason == UNKNOWN_CLASS:
        return (
            f"register {class_name} with torch.utils._pytree.register_pytree_node, record again, "
            f"and {class_advice([placeholder.type_name])}; or call the model with the tensors that "
            f"it holds{or_without}"
        )
    return f"pass something else there that a tape can hold, and record again{or_without}"


_INSTEAD_OF = {
    "Generator": "draw the numbers before, and call the model with them",
    "BlockMask": "let the model make it, of tensors or sizes that it takes",
}
"""What to do instead of passing an object of one of these classes of torch."""


def unmade_advice(classes: Mapping[str, str]) -> str:
    """What to do about classes of which no object can be made here.

    Args:
        classes: with the reasons.
    """
    unknown = [name for name, reason in classes.items() if reason in _CLASS_UNKNOWN]
    if unknown:
        return class_advice(unknown)
    if NOT_REGISTERED in classes.values():
        return "register their classes with torch's pytree when the model is imported"
    if NEVER_MADE in classes.values():
        return f"{_HOLDS_NOTHING}, and record that"
    return "the reasons say what is missing"


def class_advice(names: Sequence[str]) -> str:
    """What to do about classes that are not known here."""
    some = list(names)[:_MAX_NAMES]
    short = ", ".join(name.rpartition(":")[2] for name in some)
    options = " ".join(f"--classes {name}" for name in some)
    return printable(f"pass {Remedy(f'open_tape(path, classes=[{short}])', options)}")


def placeholder_words(value: Any) -> str:
    """What in a value was not rebuilt, and why; empty if nothing is missing."""
    placeholder = next(placeholders_in(value), None)
    return (
        ""
        if placeholder is None
        else f"a {placeholder.type_name} that was not rebuilt ({placeholder.reason})"
    )


def unmade_in(value: Any) -> dict[str, str]:
    """The classes of objects in a value that the tape has and this process cannot make, each with
    the reason: the class is unknown, not registered, or refuses what the tape has."""
    reasons = (*_CLASS_UNKNOWN, NOT_REGISTERED, NEVER_MADE)
    return {
        placeholder.type_name: placeholder.reason
        for placeholder in placeholders_in(value)
        if not placeholder.withheld
        and (isinstance(placeholder, Unmade) or placeholder.reason in reasons)
    }


def placeholders_in(value: Any, seen: set[int] | None = None) -> Iterator[Placeholder]:
    """All placeholders in a value, the outer ones first."""
    seen = set() if seen is None else seen
    if isinstance(value, type) or hasattr(value, "untyped_storage") or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Placeholder):
        yield value
    parts: list[Any] = list(value) if isinstance(value, list | tuple | set | frozenset) else []
    if isinstance(value, dict):
        parts += dict.values(value)
    if isinstance(value, MappingProxyType):
        parts += value.values()
    parts += getattr(value, "__dict__", {}).values()
    for part in parts:
        yield from placeholders_in(part, seen)


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
