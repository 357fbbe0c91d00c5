"""Many calls, reduced to what differs between them: a server makes thousands of calls in few
structures and shapes, and an inference looks at each combination once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from calltape_analyzer.binding import Argument, Bound, Key, Signature, bind
from calltape_analyzer.call import Call, Calls
from calltape_analyzer.classes import ClassIndex
from calltape_analyzer.flattening import Flattener
from calltape_schema.leaves import Leaf

__all__ = ["Pattern", "Patterns", "Shape"]

Shape = tuple[int, ...]


@dataclass(eq=False)
class Pattern:
    """Calls whose inputs differ in nothing that an inference looks at: one structure, one set of
    leaf facts, the same constants. ``calls`` are positions in the observed sequence, ascending.

    ``constants`` were passed by keyword, ``inner`` by position or inside a container. ``label``
    names the first of the calls for people.
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


class Patterns:
    """The patterns of a sequence of calls, in the order of their first call.

    Calls that raised are no evidence of what the model takes and are left out, unless all raised or
    ``with_raised`` asks for them; ``left_out`` counts them.
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
        self._patterns: dict[Any, Pattern] = {}
        raised: list[int] = []
        known: dict[Hashable, list[int]] = {}
        keys = calls.input_keys() if isinstance(calls, Calls) else repeat(None, len(calls))
        for position, key in enumerate(keys):
            # Calls of one key are of one pattern, and their records need no second look.
            seen = known.get(key) if key is not None else None
            if seen is None:
                call = calls[position]
                seen = raised if call.record.error is not None else self.pattern(call).calls
                if key is not None:
                    known[key] = seen
            seen.append(position)
        everything = with_raised or len(raised) == len(calls)
        self.left_out = 0 if everything else len(raised)
        if everything:
            for position in raised:
                self.pattern(calls[position]).calls.append(position)
            for pattern in self._patterns.values():
                pattern.calls.sort()  # two ascending runs: linear

    @property
    def patterns(self) -> list[Pattern]:
        """Those that calls were seen of, in the order of their first call."""
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

    def pattern(self, call: Call) -> Pattern:
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
            found = self._patterns[key] = Pattern(
                bound, inputs.facts(), constants, inner, f"call {call.number}"
            )
        return found
