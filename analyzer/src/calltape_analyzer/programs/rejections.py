"""Why a program, or a model in its runtime, does not take a call."""

from __future__ import annotations

from typing import Any, Literal

from calltape_analyzer.facts import Fact, Names, Rejection
from calltape_analyzer.foreign_errors import inputs_in, size_in
from calltape_analyzer.observing.groups import Group, SortedCall, shown_constant
from calltape_analyzer.programs.notes import ServesOnly
from calltape_analyzer.pytree.classes import ClassIndex, name_of
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.tree import FieldsNode, Node, ScalarNode, children_of

__all__ = ["PLACEHOLDER", "constants_of", "rejects_constants", "unknown_class_in"]

Taker = Literal["model", "program"]


class OtherCall(Rejection, code="other_call"):
    """A call has another structure, dtype or constant than the calls of the program."""

    difference: str


class UnknownClass(Rejection, code="unknown_class"):
    """An argument is a placeholder for an object of a class, or holds one: the class was not known
    when the programs were loaded."""

    argument: str
    type_name: str
    is_whole: bool


class LeftOut(Rejection, code="left_out"):
    """A call passes arguments that were left out at the export."""

    names: Names


class OtherDtype(Rejection, code="other_dtype"):
    """A tensor has another dtype than an input."""

    place: str
    got: str
    wanted: str
    by: Taker = "program"


class OtherRank(Rejection, code="other_rank"):
    """A tensor has more or fewer dimensions than an input."""

    place: str
    got: int
    wanted: int
    by: Taker = "program"


class OtherSize(Rejection, code="other_size"):
    """A size or an int is another one than that of an input."""

    place: str
    got: int
    wanted: int
    by: Taker = "program"


class UnequalSizes(Rejection, code="unequal_sizes"):
    """A size is another one than elsewhere in the call, and a trace took them to be equal."""

    place: str
    got: int
    wanted: int


class UnequalNames(Rejection, code="unequal_names"):
    """Two sizes differ whose dimensions have one name in an ONNX model."""

    place: str
    got: int
    other: str
    wanted: int
    name: str


class OutOfRange(Rejection, code="out_of_range"):
    """A size is below the least, or above the most, that a trace allows."""

    place: str
    got: int
    least: int | None = None
    most: int | None = None


class GuardFails(Rejection, code="guard_fails"):
    """A condition on sizes does not hold.

    Attributes:
        guard: in torch's notation.
        names: of the inputs in it, in their order.
    """

    guard: str
    names: Names

    @property
    def named(self) -> dict[str, str]:
        """The names of the inputs, by what torch writes."""
        return dict(zip((text for text, _ in inputs_in(self.guard)), self.names, strict=False))

    @property
    def dimension(self) -> str | None:
        found = size_in(self.guard)
        return None if found is None else f"{self.named.get(found[0], found[0])}{found[1]}"


class ByTrace(Rejection, code="by_trace"):
    """A condition of a trace does not hold: recorded calls do not say so."""

    condition: Rejection

    @property
    def dimension(self) -> str | None:
        return self.condition.dimension


class OtherValue(Rejection, code="other_value"):
    """A text, number or tensor has another value than the constant of a program, as shown; None if
    both look the same when they are cut."""

    place: str
    got: str
    wanted: str | None


class SharesMemory(Rejection, code="shares_memory"):
    """An argument is the model's own tensor, for which the model returns something else."""

    place: str
    own: str


class Unverified(Rejection, code="unverified"):
    """A program that serves only some sizes was not verified at these; nobody knows whether it
    would be right.

    Attributes:
        recorded: whether calls had them.
        only: what it serves.
    """

    recorded: bool
    only: ServesOnly | None


class RunFailed(Rejection, code="run_failed"):
    """A program took the call, and raised an error."""

    why: Fact


class NotExported(Rejection, code="not_exported"):
    """There is no program."""

    why: Fact


class NoProgram(Rejection, code="no_program"):
    """None of several programs takes a call.

    Attributes:
        names, whys: of the programs, in the same order.
    """

    names: Names
    whys: tuple[Fact, ...]

    @property
    def dimension(self) -> str | None:
        known = (why.dimension for why in self.whys if isinstance(why, Rejection))
        return next(filter(None, known), None)


class FilledState(Rejection, code="filled_state"):
    """The call brings a cache that is filled, and the model takes none."""

    name: str


def constants_of(call: SortedCall) -> dict[tuple[str, str], Any]:
    """The texts and floats of a call, by argument and path."""
    every = zip(call.layout.others, call.constants, strict=True)
    return {(place.argument, place.path): value for place, value in every}


def rejects_constants(variant: VariantFacts, call: SortedCall) -> OtherValue | None:
    """Why a program that is for certain values is not for a call; None if it is."""
    given = constants_of(call) if variant.constant_scalars else {}
    for i, values in variant.constant_scalars.items():
        place = variant.group.layout.scalars[i]
        got = given.get((place.argument, place.path))
        if repr(got) not in map(repr, values):
            shown, own = shown_constant(got), ", ".join(map(shown_constant, values))
            return OtherValue(str(place), shown, own if own != shown else None)
    return None


PLACEHOLDER = name_of(Placeholder)


def unknown_class_in(group: Group, placed: SortedCall, classes: ClassIndex) -> UnknownClass | None:
    """The first argument that differs from a group's for this reason; None if none does.

    Args:
        group: of the program.
        placed: the call.
        classes: the classes that the program was loaded with.
    """
    theirs = dict(placed.layout.keys)
    for name, key in group.layout.keys:
        if name in placed.layout.nodes and theirs[name] != key:
            node = placed.layout.nodes[name]
            found = _type_name(node, placed)
            if found is not None and classes.get(found) is None:
                return UnknownClass(name, found, _is_placeholder(node))
    return None


def _type_name(root: Node, placed: SortedCall) -> str | None:
    """The class that a placeholder in a tree stands for."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FieldsNode) and _is_placeholder(node):
            named = dict(zip(node.fields, node.children, strict=True)).get("type_name")
            if isinstance(named, ScalarNode):
                constants = zip(placed.layout.others, placed.constants, strict=True)
                path = placed.layout.scalars[named.scalar]
                return next((str(value) for place, value in constants if place == path), None)
        waiting += children_of(node)
    return None


def _is_placeholder(node: Node) -> bool:
    return isinstance(node, FieldsNode) and node.type == PLACEHOLDER
