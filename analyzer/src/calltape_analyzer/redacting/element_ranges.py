"""The ranges of integer tensors over all calls of one kind.

The range of a single call tells what its few elements are. The analysis only says the range of all
calls of a variant, so each call of the new tape gets that one.
"""

from __future__ import annotations

from collections.abc import Hashable

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.evidence import counters_of_evidence
from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.tape import Tape
from calltape_analyzer.variants.counters_by_variant import counted_calls
from calltape_schema.errors import TapeError
from calltape_schema.records import Tree

__all__ = ["ElementRanges"]

_MAX_KNOWN = 4096


class ElementRanges:
    """The ranges of one tape."""

    def __init__(self, tape: Tape) -> None:
        self._sorter = CallSorter.of(tape)
        try:
            self._groups = tape._soundly(lambda: self._groups_of(tape))
        except (InferenceError, TapeError):  # the analysis says nothing of it either
            self._groups = []
        self._known: dict[Hashable, dict[int, tuple[int, int]]] = {}

    def _groups_of(self, tape: Tape) -> list[Group]:
        """The groups of the calls, divided by the texts that divide variants."""
        self._sorter, made = CallSorter.of(tape).settled(tape.calls)
        sorter = self._sorter
        counters = counters_of_evidence(tape.counters, tape.calls, made.left_out)
        made.set_counted_calls(counted_calls(counters, sorter.signature, sorter.renamed))
        return list(made.groups.values())

    def of(self, tree: Tree, leaf: int) -> tuple[int, int] | None:
        """The range of a leaf; None if no call of its kind is evidence.

        Raises:
            TapeError: the tree breaks the format.
        """
        placed = self._sorter.sorted(tree)
        key = tree.structure, placed.key
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            group = next((one for one in self._groups if one.key.takes(placed.key)), None)
            numbers = [path.number for path in placed.layout.tensors]
            found = self._known[key] = {} if group is None else _by_leaf(group, numbers)
        return found.get(leaf)


def _by_leaf(group: Group, numbers: list[int]) -> dict[int, tuple[int, int]]:
    spans = group.ranges.items()
    return {numbers[tensor]: (span.min, span.max) for tensor, span in spans}
