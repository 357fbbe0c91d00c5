"""Many calls, reduced to what differs between them.

In come the calls of a tape. Out go call patterns: a server makes thousands of calls with few
structures and shapes, and an inference looks at each combination once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from calltape_analyzer.inference.binding import Argument, Bound, bind
from calltape_analyzer.observing.evidence import has_raised, raised_are_evidence
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.flattening import Flattener
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.calls import Calls
from calltape_schema.leaves import Leaf

__all__ = ["CallPattern", "CallPatterns", "Shape"]

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
        calls: their positions in the observed sequence, ascending.
    """

    bound: Bound
    facts: Sequence[Leaf]
    constants: tuple[tuple[str, Any], ...]
    inner: tuple[tuple[str, Any], ...] = ()
    label: str = "the given arguments"
    calls: list[int] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Position of the first such call."""
        return self.calls[0]

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
        raised: list[int] = []
        known: dict[Hashable, list[int]] = {}
        keys = calls.inputs_numbers() if isinstance(calls, Calls) else repeat(None, len(calls))
        for position, key in enumerate(keys):
            # Calls of one key are of one pattern, and their records need no second look.
            seen = known.get(key) if key is not None else None
            if seen is None:
                call = calls[position]
                seen = raised if has_raised(call) else self.pattern(call).calls
                if key is not None:
                    known[key] = seen
            seen.append(position)
        everything = with_raised or raised_are_evidence(len(calls) - len(raised))
        self.left_out = 0 if everything else len(raised)
        if everything:
            for position in raised:
                self.pattern(calls[position]).calls.append(position)
            for pattern in self._patterns.values():
                pattern.calls.sort()  # two ascending runs: linear

    @property
    def patterns(self) -> list[CallPattern]:
        """The patterns of calls that are evidence, in the order of their first call."""
        seen = [pattern for pattern in self._patterns.values() if pattern.calls]
        return sorted(seen, key=lambda pattern: pattern.first)

    def bound(self, call: Call) -> Bound:
        """The arguments of a call."""
        inputs = call.record.inputs
        bound = self._bound.get(inputs.structure)
        if bound is None:
            flattener = Flattener(inputs.facts(), inputs.scalars, self._classes)
            bound = bind(inputs.spec(), flattener, self._signature, self._value_if_missing)
            self._bound[inputs.structure] = bound
        return bound

    def pattern(self, call: Call) -> CallPattern:
        """The pattern of a call."""
        inputs = call.record.inputs
        bound = self.bound(call)
        constants = bound.constant_values(inputs.scalars, self._signature)
        inner = bound.inner_values(inputs.scalars)
        key = (inputs.structure, inputs.leaves, constants, inner)
        found = self._patterns.get(key)
        if found is None:
            # spec() checks that the leaves fit the structure, which differs with the leaves.
            inputs.spec()
            found = self._patterns[key] = CallPattern(
                bound, inputs.facts(), constants, inner, f"call {self._shown(call.ref)}"
            )
        return found


def _number(ref: CallRef) -> str:
    return str(ref.number)
