"""Many calls, reduced to what differs between them.

In come the calls of a tape. Out go call patterns: a server makes thousands of calls with few
structures and shapes, and an inference looks at each combination once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.inference.binding import Argument, Bound, bind
from calltape_analyzer.observing.evidence import raised_are_evidence
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.flattening import Flattener
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.calls import Calls, Place, SeenInputs
from calltape_schema.records import Tree
from calltape_schema.tree import Leaf

__all__ = ["CallPattern", "CallPatterns", "Shape", "call_at", "place_of", "seen_in"]

Shape = tuple[int, ...]


@dataclass(eq=False)
class CallPattern:
    """Calls that are equal to an inference: same arguments, shapes, dtypes and constants.

    Attributes:
        bound: their arguments.
        facts: dtype, shape, ... of each leaf.
        constants: the scalars passed by keyword, as (name, value).
        inner: the scalars passed by position or inside a container, as (path, value).
        label: the name of the first call, for people.
        inputs: of the first call; None for arguments that nobody recorded.
        calls: how many they are.
        first, last: where the first and the last of them are; None for arguments that nobody
            recorded.
    """

    bound: Bound
    facts: Sequence[Leaf]
    constants: tuple[tuple[str, Any], ...]
    inner: tuple[tuple[str, Any], ...] = ()
    label: str = "the given arguments"
    inputs: Tree | None = None
    calls: int = 0
    first: Place | None = None
    last: Place | None = None

    def add(self, seen: SeenInputs) -> None:
        """Counts calls."""
        self.calls += seen.calls
        self.first = seen.first if self.first is None else min(self.first, seen.first)
        self.last = seen.last if self.last is None else max(self.last, seen.last)

    def shape(self, argument: Argument, leaf: int) -> Shape:
        """The sizes of one tensor."""
        if argument.given is not None:
            return argument.given.shape(leaf)
        return self.facts[leaf].shape

    def dtype(self, argument: Argument, leaf: int) -> str:
        """The dtype of one tensor, as torch names it."""
        if argument.given is not None:
            return str(argument.given.tensors[leaf].dtype).removeprefix("torch.")
        return self.facts[leaf].dtype


class CallPatterns:
    """The patterns of a sequence of calls, in the order of their first call.

    Args:
        calls: of one target.
        signature: of the recorded method.
        value_if_missing: as for :func:`~calltape_analyzer.inference.binding.bind`.
        with_raised: whether calls that raised are evidence in any case, as they are to
            ``torch.onnx.InputObserver``.

    Attributes:
        left_out: how many calls raised and are no evidence.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        signature: Signature,
        value_if_missing: Mapping[Key, Any],
        *,
        with_raised: bool = False,
    ) -> None:
        self._signature = signature
        self._value_if_missing = value_if_missing
        self._classes = ClassIndex()
        self._bound: dict[bytes, Bound] = {}
        self._patterns: dict[Any, CallPattern] = {}
        self._shown = calls.shown if isinstance(calls, Calls) else _number
        raised: list[SeenInputs] = []
        every = 0
        for seen in seen_in(calls):
            every += seen.calls
            if seen.raised:
                raised.append(seen)
            else:
                self._add(seen)
        left_out = sum(seen.calls for seen in raised)
        everything = with_raised or raised_are_evidence(every - left_out)
        self.left_out = 0 if everything else left_out
        for seen in raised if everything else ():
            self._add(seen)

    @property
    def patterns(self) -> list[CallPattern]:
        """The patterns of calls that are evidence, in the order of their first call."""
        seen = [pattern for pattern in self._patterns.values() if pattern.calls]
        return sorted(seen, key=place_of)

    def bound(self, inputs: Tree) -> Bound:
        """The arguments of a call."""
        bound = self._bound.get(inputs.structure)
        if bound is None:
            flattener = Flattener(inputs.facts(), inputs.scalars, self._classes)
            bound = bind(inputs.spec(), flattener, self._signature, self._value_if_missing)
            self._bound[inputs.structure] = bound
        return bound

    def pattern(self, seen: SeenInputs) -> CallPattern:
        """The pattern of calls."""
        inputs = seen.inputs
        bound = self.bound(inputs)
        constants = bound.constant_values(inputs.scalars, self._signature)
        inner = bound.inner_values(inputs.scalars)
        # As text, because the hashes of ints are not salted: 2**k tuples of -1 and -2 have one.
        key = (inputs.structure, inputs.leaves, repr(constants), repr(inner))
        found = self._patterns.get(key)
        if found is None:
            # spec() checks that the leaves fit the structure, which differs with the leaves.
            inputs.spec()
            label = self._label(seen)
            found = CallPattern(bound, inputs.facts(), constants, inner, label, inputs)
            self._patterns[key] = found
        return found

    def _add(self, seen: SeenInputs) -> None:
        pattern = self.pattern(seen)
        pattern.add(seen)
        if pattern.first is seen.first:  # a later file may have an earlier call
            pattern.label, pattern.inputs = self._label(seen), seen.inputs

    def _label(self, seen: SeenInputs) -> str:
        return f"call {self._shown(seen.first.ref)}"


def seen_in(calls: Sequence[Call]) -> Iterator[SeenInputs]:
    """The inputs of calls. Those of a tape come with their numbers of calls, others one by one."""
    if isinstance(calls, Calls):
        return calls.by_inputs()
    return (call.seen(position) for position, call in enumerate(calls))


def place_of(pattern: CallPattern) -> Place:
    """Where the first call of a recorded pattern is."""
    assert pattern.first is not None
    return pattern.first


def call_at(calls: Sequence[Call], place: Place) -> Call:
    """The call at a place in these calls."""
    return calls.at(place.ref) if isinstance(calls, Calls) else calls[place.at]


def _number(ref: CallRef) -> str:
    return str(ref.number)
