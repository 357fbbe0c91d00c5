"""Everything that follows from the calls alone, before a question is asked, and its report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from calltape_analyzer.alignment import Alignment
from calltape_analyzer.arguments import representative, specialized
from calltape_analyzer.binding import Signature
from calltape_analyzer.call import Call
from calltape_analyzer.dims import (
    BatchFor,
    DimNames,
    Track,
    check_declared,
    check_dim_names,
    dynamic_axes_of,
    is_batch,
    name_dimensions,
)
from calltape_analyzer.errors import UsageError
from calltape_analyzer.findings import (
    MAX_SIZES_SHOWN,
    ArgumentFinding,
    AxisFinding,
    LeafFinding,
    Nesting,
    ShapeFindings,
    SizeSeen,
)
from calltape_analyzer.flattening import Form
from calltape_analyzer.patterns import Pattern, Patterns
from calltape_analyzer.traffic_counters import Counters
from calltape_analyzer.whole_shapes import WholeShapes

__all__ = ["Evidence", "axis_findings"]

_MAX_AXES_NOTED = 3


@dataclass
class Evidence:
    """The calls, reduced and aligned. ``groups`` has the tracks of each argument, ``reduced``
    has every call's pattern."""

    calls: Sequence[Call]
    signature: Signature
    reduced: Patterns
    patterns: list[Pattern]
    alignment: Alignment
    groups: list[list[Track]]

    @cached_property
    def tracks(self) -> list[Track]:
        """All tracks, in flattening order."""
        return [track for group in self.groups for track in group]

    @cached_property
    def seen(self) -> int:
        """How many calls the evidence rests on."""
        return sum(len(pattern.calls) for pattern in self.patterns)

    def representative(self) -> int:
        """Position of the call whose arguments stand for all."""
        return self._representative().first

    def _representative(self) -> Pattern:
        varied = [track.varied() for track in self.tracks]
        return representative(self.alignment, self.patterns, varied)

    def findings(
        self, declared: BatchFor, dim_names: DimNames, counters: Counters | None = None
    ) -> ShapeFindings:
        """The report; see :meth:`calltape_analyzer.inference.Inference.findings`.

        Args:
            declared, dim_names: as there.
            counters: of the whole traffic, where they are known.
        """
        tracks = self.tracks
        check_declared(declared)
        self._check_dim_names(dim_names)
        batch = [is_batch(track.key, declared, self.signature) for track in tracks]
        dynamic = [dynamic_axes_of(t, b) for t, b in zip(tracks, batch, strict=True)]
        names = name_dimensions(tracks, dynamic, dim_names) if dim_names else {}
        whole = WholeShapes.of(counters, self) if counters is not None else WholeShapes()
        leaves = [
            self._leaf(i, axes, {axis: names.get((i, axis)) for axis in axes}, whole)
            for i, axes in enumerate(dynamic)
        ]
        places = [f"{track.name}{track.path}" for track in tracks]
        told = whole.notes(self.seen, places, lambda i, axis: axis in dynamic[i])
        return self._report(leaves, (*told, *self._specialized(dynamic)))

    def _check_dim_names(self, dim_names: DimNames) -> None:
        arguments = self.alignment.best.bound.all
        known = {self.signature.name_of(argument.key) for argument in arguments}
        known |= {parameter.name for parameter in self.signature.parameters}
        check_dim_names(dim_names, known | {argument.key for argument in arguments})

    def _leaf(
        self, i: int, dynamic: Sequence[int], names: Mapping[int, str | None], whole: WholeShapes
    ) -> LeafFinding | None:
        track = self.tracks[i]
        if not track.shapes:
            return None
        return LeafFinding(
            path=track.path,
            dtype=track.dtype,
            axes=tuple(
                found.model_copy(update={"whole": (span.min, span.max)})
                if (span := whole.spans.get((i, found.axis))) is not None
                else found
                for found in axis_findings(track, dynamic, names, self.calls)
            ),
            calls=track.calls,
            missing=self.seen - track.calls,
        )

    def _report(
        self, leaves: Sequence[LeafFinding | None], notes: tuple[str, ...]
    ) -> ShapeFindings:
        positional, named = self._arguments(leaves)
        variadic = self.signature.variadic_positional
        if variadic is not None and len(positional) <= variadic[1]:
            variadic = None  # torch.export wants no entry for *args that took nothing
        return ShapeFindings(
            calls=self.seen,
            arguments=(*positional, *named),
            as_tuple=not named and variadic is None,
            variadic=variadic,
            extra=self._extra(named),
            representative=self.calls[self.representative()].index,
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

    def _extra(self, named: Sequence[ArgumentFinding]) -> tuple[str, tuple[str, ...]] | None:
        taken_by = self.signature.variadic_keyword
        names = set(self.signature.names)
        outside = tuple(a.name for a in named if a.name not in names)
        if taken_by is None or not outside:
            return None
        if any(a.name == taken_by for a in named):
            raise UsageError(
                f"Keyword argument name collision: a call passes {taken_by!r}, which is also the "
                f"name of **{taken_by}",
                advice="rename the argument",
            )
        return taken_by, outside

    def _notes(self) -> tuple[str, ...]:
        notes = list(dict.fromkeys(self.alignment.notes))
        if self.reduced.left_out:
            notes.append(f"{self.reduced.left_out} calls raised and are left out")
        if self.alignment.has_late:
            notes.append(
                "some calls pass an object that has no tensors yet, or not all of them; they count "
                "as missing"
            )
        return tuple(notes)

    def _specialized(self, dynamic: Sequence[Sequence[int]]) -> tuple[str, ...]:
        """What torch.export will hold against the representative call."""
        chosen = self._representative()
        found = specialized(chosen, self.alignment.row(chosen), dynamic)
        if not found:
            return ()
        shown = [
            f"size {size} on the dynamic axis {axis} of {self.tracks[i].name}{self.tracks[i].path}"
            for i, axis, size in found[:_MAX_AXES_NOTED]
        ]
        more = len(found) - len(shown)
        axes = ", ".join([*shown, *([f"{more} more"] if more else [])])
        return (
            f"{chosen.label} stands for all and has {axes}; torch.export specializes 0 and 1: "
            f"{self._way_out(dynamic)}",
        )

    def _way_out(self, dynamic: Sequence[Sequence[int]]) -> str:
        for pattern in self.patterns:
            row = self.alignment.row(pattern)
            if None not in self.alignment.needed(pattern) and not specialized(
                pattern, row, dynamic
            ):
                return f"export with infer_arguments({pattern.first}), which has at least 2 there"
        return "record a call with at least 2 there (a second turn of a conversation, a batch of 2)"


def axis_findings(
    track: Track,
    dynamic: Sequence[int],
    names: Mapping[int, str | None],
    calls: Sequence[Call],
) -> tuple[AxisFinding, ...]:
    """The report on each axis of a tensor."""
    varied = set(track.varied())
    found: list[AxisFinding] = []
    for axis in range(track.rank):
        sizes = track.sizes(axis)
        shown = [
            SizeSeen(size=size, calls=seen.calls, first_call=calls[seen.first].number)
            for size, seen in _ends(list(sizes.items()))
        ]
        reason = "declared" if axis in dynamic else "constant"
        found.append(
            AxisFinding(
                axis=axis,
                dynamic=axis in dynamic,
                reason="varied" if axis in varied else reason,
                sizes=tuple(shown),
                distinct=len(sizes),
                name=names.get(axis),
            )
        )
    return tuple(found)


def _ends(sizes: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """All of few sizes; of many the smallest, and the largest."""
    if len(sizes) <= MAX_SIZES_SHOWN:
        return sizes
    return [*sizes[: MAX_SIZES_SHOWN - 1], sizes[-1]]


def _nesting(form: Form, leaves: Sequence[LeafFinding | None]) -> Nesting:
    """The form of an argument, whose tensors are numbered by the leaves that are there."""
    count = itertools.count()
    position = iter([None if leaf is None else next(count) for leaf in leaves])

    def nested(form: Form) -> Nesting:
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
