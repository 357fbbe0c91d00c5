"""What an explanation is asked about: an argument, a path below it, or a symbol.

In come the variants of a tape and the text that names the subject. Out goes an explanation: what
each variant has there, with the reasons of its dimensions. Parts that are alike are one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.explanation.explanation import (
    Explanation,
    PartExplanation,
)
from calltape_analyzer.explanation.reasons import (
    VariantReasons,
    parts_of,
    parts_of_symbol,
    reasons_of,
)
from calltape_analyzer.observing.fixed_values import structure_values
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSource
from calltape_analyzer.text import counted, listed, variant_names
from calltape_analyzer.variant import Variant

__all__ = ["explain"]


def explain(
    tape: CallSource,
    variants: Sequence[Variant],
    argument: str,
    axis: int | None = None,
    *,
    path: str = "",
    only: Collection[str] | None = None,
    reasons: Sequence[VariantReasons] | None = None,
) -> Explanation:
    """Says why a dimension, an int or an argument is what it is; see :meth:`Tape.explain`.

    Args:
        tape: has the calls.
        variants: all of its variants, which are evidence of each other.
        argument, axis, path: as there.
        only: the names of the variants to explain; all by default.
        reasons: those of the variants (:func:`reasons_of`), for one who asks for many subjects.

    Raises:
        UsageError: no call passes the subject, or no tensor there has the dimension.
    """
    text = f"{argument}.{path.lstrip('.')}" if path else argument
    every = reasons_of(tape, variants) if reasons is None else reasons
    reasons = [own for own in every if only is None or own.variant.name in only]
    variants = [own.variant for own in reasons]
    found = [parts_of(own, text) for own in reasons]
    if not any(found) and axis is None and (named := re.fullmatch(r"(.+)\[(-?\d{1,9})\]", text)):
        # `calltape variants` and its warnings write a dimension in this way.
        text, axis = named[1], int(named[2])
        found = [parts_of(own, text) for own in reasons]
    notes = list(_absences(variants, found, text))
    if not any(found) and axis is None:
        notes = []  # a symbol that a variant does not have is not left out of its calls
        found = [parts_of_symbol(own, text) for own in reasons]
    if not any(found) and (name := _name_at(text, tape)) is not None:
        whole = [own.variant for own in every]
        return explain(tape, whole, name, axis, only=only, reasons=every)
    if not any(found):
        known = [p.name for p in Signature.of(tape.target).parameters if "VAR_" not in p.kind]
        if text in tape.removed:
            raise UsageError(
                f"{text} was left out with remove_inputs",
                advice="open the tape again",
            )
        if axis is not None and any(parts_of_symbol(own, text) for own in reasons):
            raise UsageError(f"{text} is a symbol, which has no axes", advice="leave the axis out")
        if text not in known:
            raise _unknown(text, variants)
        notes = [f"no call passes {text}, or only its default"]
    parts = [part for parts in found for part in parts]
    if axis is not None and parts:
        parts, axis = _at_axis(parts, axis, text)
    return Explanation(subject=text, axis=axis, parts=tuple(_alike(parts)), notes=tuple(notes))


def _name_at(text: str, tape: CallSource) -> str | None:
    """What an argument is called that the text names by its position: ``0``, or ``0.keys``."""
    position, dot, below = text.partition(".")
    if not (position.isascii() and position.isdecimal() and len(position) < 4):
        return None
    signature = Signature.of(tape.target)
    names = [one.name for one in signature.parameters if one.kind in _BY_POSITION]
    if int(position) >= len(names) and signature.variadic_positional is None:
        return None
    name = signature.name_at(int(position))
    return None if name in tape.removed else f"{name}{dot}{below}"


_BY_POSITION = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")


def _at_axis(
    parts: Sequence[PartExplanation], axis: int, text: str
) -> tuple[list[PartExplanation], int]:
    """The parts with one dimension each, and the axis, counted from 0 if it is the same in all."""
    made: list[PartExplanation] = []
    for part in parts:
        rank = len(part.dimensions)
        at = axis + rank if axis < 0 else axis
        if part.dtype is not None and 0 <= at < rank:
            made.append(part.model_copy(update={"dimensions": (part.dimensions[at],)}))
    if not made:
        ranks = sorted({len(p.dimensions) for p in parts if p.dtype is not None})
        what = f"its rank is {' or '.join(map(str, ranks))}" if ranks else "it is not a tensor"
        raise UsageError(f"{text} has no dimension {axis}: {what}", advice="leave it out")
    axes = {part.dimensions[0].axis for part in made}
    only = axes.pop() if len(axes) == 1 else axis
    return made, axis if only is None else only


def _absences(
    variants: Sequence[Variant], found: Sequence[Sequence[PartExplanation]], text: str
) -> Iterator[str]:
    without = [v for v, parts in zip(variants, found, strict=True) if not parts]
    calls = sum(len(v) for v in without)
    if calls:
        names = variant_names([v.name for v in without])
        yield f"{text} is left out, or its default, in {counted(calls, 'call')}: {names}"


def _alike(parts: Sequence[PartExplanation]) -> Iterator[PartExplanation]:
    """Parts of one variant that differ in nothing but their place, as one part."""
    same: dict[Any, list[PartExplanation]] = {}
    for part in parts:
        same.setdefault(_key(part), []).append(part)
    for first, *others in same.values():
        places = (*first.places, *(name for part in others for name in part.places))
        dimensions = []
        for found in first.dimensions:
            own = {name if found.axis is None else f"{name}[{found.axis}]" for name in places}
            equals = tuple(name for name in found.equals if name not in own)
            dimensions.append(found.model_copy(update={"equals": equals}))
        yield first.model_copy(update={"places": places, "dimensions": tuple(dimensions)})


def _key(part: PartExplanation) -> Any:
    dimensions = tuple(
        (d.axis, d.dynamic, d.reason, d.symbol, d.seen, d.distinct, d.whole)
        for d in part.dimensions
    )
    return part.variant, part.kind, part.dtype, part.value, dimensions, part.layouts


def _unknown(text: str, variants: Sequence[Variant]) -> UsageError:
    places: dict[str, None] = {}
    arguments: dict[str, None] = {}
    for variant in variants:
        layout = variant.facts.group.layout
        arguments |= dict.fromkeys(layout.arguments)
        places |= dict.fromkeys(layout.arguments)
        places |= dict.fromkeys(map(str, (*layout.tensors, *layout.scalars)))
        places |= dict.fromkeys(value.place for value in structure_values(layout))
    close = difflib.get_close_matches(text, islice(places, 4096), n=3)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    known = listed(list(arguments), 12) or "none"
    return UsageError(f"no call passes {text}", advice=f"{meant}The arguments are: {known}")
