"""Which new calls will be served: a verdict per variant.

Takes the variants of a tape and the programs that were made for them; returns, for each variant,
whether its programs take sizes that nobody recorded. Nothing is run: programs know the sizes that
they take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple

from calltape_analyzer.arguments.samples import resized_row
from calltape_analyzer.arguments.sizings import (
    Sizing,
    followed,
    row_at,
    sizings_below,
    sizings_beyond,
    sizings_unseen,
    values_at,
)
from calltape_analyzer.facts import Fact, Names
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs.notes import OpenFloats
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import Because, Why
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["Lack", "Scope", "VariantVerdict", "takes", "verdicts_on"]

Scope = Literal["general", "recorded sizes only", "rejected"]

_MAX_ROWS = 4096
_MAX_UNSEEN = 6
_STEPS = (1, 2, 3)


class Lack(NamedTuple):
    """Why a variant, or some of its sizes or values, have no program.

    Attributes:
        variant: that was to be exported.
        kind: what has none.
        reason: why.
    """

    variant: VariantFacts
    kind: Literal["variant", "sizes", "values"]
    reason: Fact


class VariantVerdict(Fact, code="verdict"):
    """Which calls of one variant will be served.

    Attributes:
        variant: its name.
        scope: ``"general"``: every recorded size has a program that takes others as well, and each
            size that varied may have values that nobody recorded. ``"recorded sizes only"``: some
            of that is not so. ``"rejected"``: no call is served.
        calls: how many calls it has on the tape.
        sizes: how many recorded sizes were looked at.
        rejected: how many of them have no program.
        lacks_values: whether some recorded values have none.
        constant: how many have only programs for one size or one value.
        open: the dimensions and numbers that may have values that nobody recorded.
        closed: those that varied, and may not; and floats that differ between variants, each of
            which is for one value.
        tried, taken: how many unrecorded sizes were looked at, and how many of them a
            program takes.
        reason: why the scope is not ``"general"``; None if no size varied.
    """

    variant: str
    scope: Scope
    calls: int
    sizes: int
    rejected: int = 0
    lacks_values: bool = False
    constant: int = 0
    open: Names = ()
    closed: Names = ()
    tried: int = 0
    taken: int = 0
    reason: Fact | None = None


def verdicts_on(
    variants: Iterable[VariantFacts], programs: Sequence[Program], lacks: Sequence[Lack]
) -> list[VariantVerdict]:
    """The verdict on each variant of a tape.

    Args:
        variants: of the tape.
        programs: that were made.
        lacks: what has none.
    """
    every = list(variants)
    floats = _floats_of(every)
    return [
        _verdict_on(
            variant,
            programs,
            [one for one in lacks if _is_of(one.variant, variant)],
            floats[_tensors(variant)],
        )
        for variant in every
    ]


def _tensors(variant: VariantFacts) -> Hashable:
    return variant.group.facts, variant.group.layout.tensors


def _floats_of(variants: Iterable[VariantFacts]) -> dict[Hashable, list[str]]:
    """The floats that differ between variants of the same tensors, where None is a default that was
    not passed. A program for one float takes no other."""
    found: dict[Hashable, list[dict[str, str]]] = defaultdict(list)
    for variant in variants:
        fixed = {str(place): repr(v) for place, v in variant.group.fixed() if type(v) is float}
        found[_tensors(variant)].append(fixed)
    return {
        tensors: [
            name
            for name in sorted({*chain.from_iterable(alike)})
            if len({fixed.get(name) for fixed in alike}) > 1
        ]
        for tensors, alike in found.items()
    }


def _is_of(part: VariantFacts, variant: VariantFacts) -> bool:
    """Whether a variant that was exported has calls of one of the tape."""
    key = variant.group.key
    if not part.group.key.covers(key):
        return part.completion_of(key) is not None
    return any(part.rejects(row) is None for row in variant.rows)


def _verdict_on(
    variant: VariantFacts,
    programs: Sequence[Program],
    lacks: Sequence[Lack],
    floats: Sequence[str],
) -> VariantVerdict:
    rows = list(variant.rows)[:_MAX_ROWS]
    rejected = constant = 0
    limits: list[Fact] = []
    single = [one for one in programs if one.is_constant or one.only is not None]
    wide = [one for one in programs if one not in single]
    for row in rows:
        if takes(wide, variant, row):
            continue
        narrow = next((one for one in single if takes([one], variant, row)), None)
        rejected += narrow is None
        constant += narrow is not None
        limits += [narrow.why_only] if narrow is not None and narrow.why_only else []
    free = [i for i, symbol in enumerate(variant.symbols) if symbol.relation is None]
    moved = [i for i in free if _may_move(wide, variant, i)]
    beside = _beside(variant)
    taken = sum(takes(wide, variant, row_at(variant, s)) for s in beside)
    lacks_values = any(one.kind == "values" or one.variant.constant_scalars for one in lacks)
    lacks_sizes = bool(rejected) or any(one.kind != "values" for one in lacks)
    open_numbers, held = _numbers(wide, variant)
    numbers = list(dict.fromkeys([*floats, *held]))
    is_whole = not (lacks_sizes or lacks_values or constant or numbers)
    scope: Scope = "general"
    reason: Fact | None = None
    if rejected == len(rows):
        scope = "rejected"
        reason = lacks[-1].reason if lacks else Because(Why.NO_PROGRAM)
    elif not is_whole or len(moved) < len(free) or not (free or open_numbers):
        scope = "recorded sizes only"
        if lacks:
            reason = lacks[-1].reason
        elif limits:
            reason = limits[0]
        elif wide and len(moved) < len(free):
            rejections = (_rejections(wide, variant, row_at(variant, one)) for one in beside)
            reason = next(filter(None, chain.from_iterable(rejections)), None)
    return VariantVerdict(
        variant=variant.name,
        scope=scope,
        calls=variant.calls,
        sizes=len(rows),
        rejected=rejected,
        lacks_values=lacks_values,
        constant=constant,
        open=(*(_name(variant, i) for i in moved), *open_numbers),
        closed=(*(_name(variant, i) for i in free if i not in moved), *numbers),
        tried=len(beside),
        taken=taken,
        reason=reason,
    )


def _numbers(programs: Iterable[Program], variant: VariantFacts) -> tuple[list[str], list[str]]:
    """The floats that programs for calls of a variant take with any value; and those that are
    constants of some, or were inputs with one value only. A text or a switch is not expected to be
    another one."""
    shown: set[str] = set()
    inputs: set[str] = set()
    held: set[str] = set()
    for program in programs:
        own = program.variant
        if own.group.key.covers(variant.group.key):
            names = [str(place) for place in own.group.layout.scalars]
            told = (note for note in program.told if isinstance(note, OpenFloats))
            shown |= {name for note in told for name in note.names}
            inputs |= {names[i] for i in own.open_floats}
            held |= {
                names[i] for i, values in own.constant_scalars.items() if type(values[0]) is float
            }
    return sorted((inputs & shown) - held), sorted(held | (inputs - shown))


def takes(programs: Iterable[Program], variant: VariantFacts, row: SizeRow) -> bool:
    """Whether a program takes the sizes of a row of a variant."""
    return None in _rejections(programs, variant, row)


def _rejections(
    programs: Iterable[Program], variant: VariantFacts, row: SizeRow
) -> Iterator[Fact | None]:
    """Why each program that is for these calls rejects sizes; None if it takes them."""
    for program in programs:
        own = program.variant.row_in(variant.group.key, row)
        if own is not None:
            yield program.rejects(own)


def _beside(variant: VariantFacts) -> list[Sizing]:
    """Sizes that no call had, near the recorded ones, and twice and half as large."""
    found = [
        *sizings_unseen(variant, _MAX_UNSEEN),
        *sizings_beyond(variant, _MAX_UNSEEN),
        *sizings_below(variant, _MAX_UNSEEN),
    ]
    return list(dict.fromkeys(found))


def _may_move(programs: Sequence[Program], variant: VariantFacts, place: int) -> bool:
    """Whether a program takes a value of a symbol that no call had, with recorded ones of the
    others."""
    symbol = variant.symbols[place]
    known = set(symbol.values)
    for row in range(min(len(variant.rows), _MAX_UNSEEN)):
        values = values_at(variant, row)
        wanted = [values[place] + step * symbol.unit for step in _STEPS]
        for value in (*wanted, max(known) + symbol.unit, 2 * max(known)):
            moved = None if value in known else followed(variant.symbols, values, {place: value})
            if moved is not None and takes(programs, variant, resized_row(variant, row, moved)):
                return True
    return False


def _name(variant: VariantFacts, place: int) -> str:
    return variant.group.layout.column_name(variant.symbols[place].columns[0])
