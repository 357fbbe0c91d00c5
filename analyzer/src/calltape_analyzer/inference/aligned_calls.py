"""The calls of a tape as calls of one program: aligned, and reported as findings.

In come the calls, reduced to patterns and aligned. Out go the call that stands for all of them, and
the findings: which dimensions are dynamic, and what shows it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from calltape_analyzer.inference.aligned_slots import AlignedSlot
from calltape_analyzer.inference.alignment import AlignedRow, Alignment
from calltape_analyzer.inference.counted_shapes import CountedShapes
from calltape_analyzer.inference.dimension_names import name_dimensions
from calltape_analyzer.inference.findings import (
    ArgumentFinding,
    AxisFinding,
    LeafFinding,
    Nesting,
    ShapeFindings,
)
from calltape_analyzer.inference.patterns import CallPattern, CallPatterns, place_of
from calltape_analyzer.inference.representative import representative, specialized
from calltape_analyzer.observing.declarations import (
    BatchFor,
    DimNames,
    check_batch,
    check_dim_names,
    is_batch,
)
from calltape_analyzer.observing.evidence import left_out_note
from calltape_analyzer.observing.parameter_nesting import ParameterNesting
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.observing.sizes_seen import MAX_SIZES_SHOWN, SizeSeen
from calltape_analyzer.observing.tallies import Span
from calltape_analyzer.observing.traffic_counters import CountedKind, TrafficCounters
from calltape_analyzer.pytree.flattening import FlatTree
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.text import counted

__all__ = ["AlignedCalls"]

_MAX_AXES_NOTED = 3


@dataclass
class AlignedCalls:
    """The calls of one program, before a question is asked.

    Attributes:
        calls: all calls of the tape.
        signature: of the recorded method.
        reduced: the pattern of each call.
        patterns: the patterns of the calls that are evidence.
        alignment: which argument of one pattern is which of another's.
        by_argument: the slots of each argument.
        like_observer: whether the representative call is the one that the peers choose.
    """

    calls: Sequence[Call]
    signature: Signature
    reduced: CallPatterns
    patterns: list[CallPattern]
    alignment: Alignment
    by_argument: list[list[AlignedSlot]]
    like_observer: bool = False

    @cached_property
    def slots(self) -> list[AlignedSlot]:
        """All slots, in flattening order."""
        return [slot for own in self.by_argument for slot in own]

    @cached_property
    def seen(self) -> int:
        """How many calls are evidence."""
        return sum(pattern.calls for pattern in self.patterns)

    def representative(self) -> CallPattern:
        """The pattern whose first call stands for all."""
        varied = [slot.dynamic_axes() for slot in self.slots]
        return representative(
            self.alignment, self.patterns, varied, like_observer=self.like_observer
        )

    def findings(
        self, declared: BatchFor, dim_names: DimNames, counters: TrafficCounters | None = None
    ) -> ShapeFindings:
        """The dynamic dimensions with their evidence.

        Args:
            declared, dim_names: as for :meth:`OneProgram.findings`.
            counters: of the whole traffic, if they are known.
        """
        slots = self.slots
        known = self._known_arguments()
        check_batch(declared, known)
        check_dim_names(dim_names, known)
        batch = [is_batch(slot.key, declared, self.signature) for slot in slots]
        dynamic = [slot.dynamic_axes(b) for slot, b in zip(slots, batch, strict=True)]
        names = name_dimensions(slots, dynamic, dim_names) if dim_names else {}
        whole = CountedShapes()
        if counters is not None:
            whole = CountedShapes.of(counters, self._rows_by_kind(), slots)
        leaves = [
            self._leaf(i, axes, {axis: names.get((i, axis)) for axis in axes}, whole)
            for i, axes in enumerate(dynamic)
        ]
        told = whole.notes(
            self.seen, [str(slot) for slot in slots], lambda i, axis: axis in dynamic[i]
        )
        return self._report(leaves, (*told, *self._other_dtypes(), *self._specialized(dynamic)))

    def _rows_by_kind(self) -> dict[CountedKind, AlignedRow]:
        """The row of the first pattern of each kind that counters tell apart."""
        rows: dict[CountedKind, AlignedRow] = {}
        for pattern in self.patterns:
            assert pattern.inputs is not None
            kind = CountedKind.of(pattern.inputs)
            rows.setdefault(kind, self.alignment.row(pattern))
        return rows

    def _known_arguments(self) -> set[Key]:
        """The names and positions by which a caller may name an argument."""
        arguments = self.alignment.best.bound.all
        known: set[Key] = {self.signature.name_of(argument.key) for argument in arguments}
        known |= {parameter.name for parameter in self.signature.parameters}
        return known | {argument.key for argument in arguments}

    def _leaf(
        self,
        i: int,
        dynamic: Sequence[int],
        names: Mapping[int, str | None],
        whole: CountedShapes,
    ) -> LeafFinding | None:
        slot = self.slots[i]
        if not slot.shapes:
            return None
        return LeafFinding(
            path=slot.path,
            dtype=slot.dtype,
            axes=tuple(
                self._axis(slot, axis, axis in dynamic, names.get(axis), whole.spans.get((i, axis)))
                for axis in range(slot.rank)
            ),
            calls=slot.calls,
            missing=self.seen - slot.calls,
        )

    def _axis(
        self, slot: AlignedSlot, axis: int, is_dynamic: bool, name: str | None, span: Span | None
    ) -> AxisFinding:
        sizes = slot.sizes(axis)
        shown = [
            SizeSeen(size=size, calls=seen.calls, first_call=seen.first.ref.number)
            for size, seen in _ends(list(sizes.items()))
        ]
        reason = "declared" if is_dynamic else "constant"
        return AxisFinding(
            axis=axis,
            dynamic=is_dynamic,
            reason="varied" if len(sizes) > 1 else reason,
            sizes=tuple(shown),
            distinct=len(sizes),
            name=name,
            whole=None if span is None else (span.min, span.max),
        )

    def _report(
        self, leaves: Sequence[LeafFinding | None], notes: tuple[str, ...]
    ) -> ShapeFindings:
        positional, named = self._arguments(leaves)
        names = [argument.name for argument in (*positional, *named)]
        nesting = ParameterNesting.of(self.signature, len(positional), names)
        return ShapeFindings(
            calls=self.seen,
            arguments=(*positional, *named),
            as_tuple=nesting.as_tuple,
            variadic=nesting.variadic,
            extra=nesting.extra,
            representative=place_of(self.representative()).ref.number,
            notes=(*self._notes(), *notes),
        )

    def _arguments(
        self, leaves: Sequence[LeafFinding | None]
    ) -> tuple[list[ArgumentFinding], list[ArgumentFinding]]:
        """Positional arguments, and those by name with the constants."""
        positional: list[ArgumentFinding] = []
        named = [
            ArgumentFinding(name=name, passed="constant", nesting=Nesting(kind="constant"))
            for name, _ in self.alignment.best.constants
        ]
        start = 0
        for argument, (reference, _) in zip(
            self.alignment.best.bound.all, self.alignment.references, strict=True
        ):
            own = leaves[start : start + len(reference.slots)]
            start += len(own)
            found = ArgumentFinding(
                name=self.signature.name_of(argument.key),
                passed="keyword" if argument.is_keyword else "positional",
                leaves=tuple(leaf for leaf in own if leaf is not None),
                nesting=_nesting(reference.form, own),
            )
            (named if argument.is_keyword else positional).append(found)
        order = {name: i for i, name in enumerate(self.signature.names)}
        return positional, sorted(named, key=lambda a: order.get(a.name, len(order)))

    def _notes(self) -> tuple[str, ...]:
        notes = list(dict.fromkeys(self.alignment.notes))
        if self.reduced.left_out:
            notes.append(left_out_note(self.reduced.left_out))
        if self.alignment.has_late:
            notes.append(
                "some calls pass an object that has no tensors yet, or not all of them; they count "
                "as missing"
            )
        return tuple(notes)

    def _other_dtypes(self) -> Iterator[str]:
        """The arguments whose tensors differ in dtype from call to call: a program takes one."""
        found = [slot for slot in self.slots if len(slot.dtypes) > 1]
        for slot in found[:_MAX_AXES_NOTED]:
            kinds = [f"{dtype} in {counted(n, 'call')}" for dtype, n in slot.dtypes.items()]
            more = counted(len(found) - _MAX_AXES_NOTED, "more argument")
            others = f" ({more} like it)" if len(found) > _MAX_AXES_NOTED else ""
            yield (
                f"{slot} is {', '.join(kinds)}{others}: a program takes one dtype; variants() "
                "tells such calls apart"
            )

    def _specialized(self, dynamic: Sequence[Sequence[int]]) -> tuple[str, ...]:
        """The dynamic sizes of the representative call that torch.export takes for constants."""
        chosen = self.representative()
        found = specialized(chosen, self.alignment.row(chosen), dynamic)
        if not found:
            return ()
        shown = [
            f"size {size} on the dynamic axis {axis} of {self.slots[i]}"
            for i, axis, size in found[:_MAX_AXES_NOTED]
        ]
        more = len(found) - len(shown)
        axes = ", ".join([*shown, *([f"{more} more"] if more else [])])
        return (
            f"{chosen.label} stands for all and has {axes}; torch.export specializes 0 and 1: "
            f"{self._way_out(dynamic)}",
        )

    def _asking_for(self, pattern: CallPattern) -> str:
        place = place_of(pattern)
        if not isinstance(self.calls, Calls):
            return f"infer_arguments({place.at})"
        address = self.calls.address_of(place.ref)
        call = place.ref.number if address is None else repr(address)
        asked = f"infer_arguments(tape.find({call}).index)"
        return asked if self.calls.are_single else f"{asked} of {self.calls.path(place.ref)}"

    def _way_out(self, dynamic: Sequence[Sequence[int]]) -> str:
        for pattern in self.patterns:
            row = self.alignment.row(pattern)
            if None not in self.alignment.needed(pattern) and not specialized(
                pattern, row, dynamic
            ):
                return f"export with {self._asking_for(pattern)}, which has at least 2 there"
        return "record a call with at least 2 there (a second turn of a conversation, a batch of 2)"


def _ends(sizes: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """All sizes, if they are few; else the smallest ones and the largest."""
    if len(sizes) <= MAX_SIZES_SHOWN:
        return sizes
    return [*sizes[: MAX_SIZES_SHOWN - 1], sizes[-1]]


def _nesting(form: FlatTree, leaves: Sequence[LeafFinding | None]) -> Nesting:
    """How the leaves of an argument nest. Leaves that no call has are constants, and do not
    count."""
    count = itertools.count()
    position = iter([None if leaf is None else next(count) for leaf in leaves])

    def nested(form: FlatTree) -> Nesting:
        if form.slot is not None:
            number = next(position)
            return Nesting(kind="constant" if number is None else "tensor", leaf=number)
        return Nesting(
            kind=form.kind if form.kind != "slot" else "constant",
            children=tuple(nested(child) for child in form.children),
            keys=form.keys,
            type=form.type,
        )

    return nested(form)
