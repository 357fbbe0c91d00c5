"""What targets are given: the variant that is meant, its arguments, and the recorded sizes of its
tensors.

Takes a `Tape` or a `Variant`, and arguments of a call; returns the one variant, tensors in the
order of its findings, and for engines that want a range and one typical size of each, the sizes
that most calls had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.size_table import SizeTable
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import some_of
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.variant_findings import TensorFinding

__all__ = [
    "Shape",
    "input_tensors",
    "most_common_shapes",
    "tensors_given",
    "variant_of",
]

_MAX_NAMED = 8


def variant_of(source: Tape | Variant) -> Variant:
    """The variant, or the only one of a tape.

    Raises:
        UsageError: the tape has several variants, or no calls.
    """
    if isinstance(source, Variant):
        return source
    check_tape(source, "a target")
    variants = source.variants()
    if len(variants) == 1:
        return variants[0]
    if not variants:
        raise UsageError("the tape has no calls", advice="record at least one call")
    names = some_of([repr(variant.name) for variant in variants], _MAX_NAMED)
    raise UsageError(
        f"the calls of this tape are {len(variants)} variants: {names}",
        advice="pass one of tape.variants(), or tape.only(variant=...)",
    )


def tensors_given(variant: Variant, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors in some arguments, as they are (not copies), in the order of
    ``variant.findings.tensors``. None stands for one that these arguments lack and that a merged
    variant completes.

    Raises:
        UsageError: the variant does not take these arguments.
    """
    from calltape_analyzer.arguments.samples import LiveCall

    live = LiveCall(tuple(args), kwargs, variant.sorter)
    if variant.facts.group.key.covers(live.placed.key):
        return live.sample.tensors
    completion = variant.facts.completion_of(live.placed.key)
    if completion is None:
        reason = variant.accepts(args, kwargs).reason
        raise UsageError(
            f"variant {variant.name} does not take these arguments ({reason})",
            advice="ask tape.variants() for the one whose accepts() is true",
        )
    return [None if at is None else live.sample.tensors[at] for at in completion.tensors]


Shape = tuple[int, ...]

_MAX_COMMON = 1024


def input_tensors(variant: Variant) -> list[tuple[int, TensorFinding]]:
    """The tensors that are inputs of a program, each with its place among all tensors of the
    variant. Those that follow from an attribute beside them are none."""
    from calltape_analyzer.arguments.plan import derived_tensors

    derived = derived_tensors(variant.facts.group.layout)
    return [(i, found) for i, found in enumerate(variant.findings.tensors) if i not in derived]


def most_common_shapes(rows: SizeTable) -> tuple[Shape, ...]:
    """The shapes of all tensors in the combination that most calls had, as it was recorded.

    Of several equally common ones, as growing caches leave them, those without an empty tensor are
    preferred, and of these the one in the middle by its number of elements. If they are
    thousands, this is asked of some of them.

    Args:
        rows: the sizes of the calls, such as ``variant.facts.all_rows``.
    """
    places = rows.most_common()
    common = [rows.row(at).shapes for at in places[:: -(-len(places) // _MAX_COMMON)]]
    fewest = min(map(_empty, common))
    common = sorted((s for s in common if _empty(s) == fewest), key=lambda s: (_elements(s), s))
    return common[(len(common) - 1) // 2]


def _empty(shapes: Sequence[Shape]) -> int:
    return sum(0 in shape for shape in shapes)


def _elements(shapes: Sequence[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)
