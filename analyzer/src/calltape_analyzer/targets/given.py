"""What targets are given: the variant that is meant, and arguments in the terms of its findings.

In come a `Tape` or a `Variant`, and arguments of a call. Out go the one variant, and tensors in the
order of its findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import some_of
from calltape_analyzer.variant import Variant

__all__ = ["arguments_of_row", "tensors_given", "variant_of"]

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

    live = LiveCall(tuple(args), kwargs, variant._sorter)
    if variant.facts.group.key.takes(live.placed.key):
        return live.sample.tensors
    completion = variant.facts.completion_of(live.placed.key)
    if completion is None:
        reason = variant.accepts(args, kwargs).reason
        raise UsageError(
            f"variant {variant.name} does not take these arguments ({reason})",
            advice="ask tape.variants() for the one whose accepts() is true",
        )
    return [None if at is None else live.sample.tensors[at] for at in completion.tensors]


def arguments_of_row(
    variant: Variant, row: int, device: Any = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the first call that had a row's sizes, in the form of
    ``variant.infer_arguments()``.

    Args:
        variant: any.
        row: a place among ``variant.facts.rows``.
        device: where the tensors are made; the CPU by default.

    Raises:
        InferenceError: an argument holds an object of a class that is not known here.
    """
    from calltape_analyzer.arguments.plan import Plan, as_passed, checked
    from calltape_analyzer.arguments.samples import sample_in

    facts, sorter, tape = variant.facts, variant._sorter, variant._tape
    sample = sample_in(facts, tape.calls.at(facts.rows.seen(row).first), sorter, device)
    plan = Plan.of(facts, sample, sorter.signature)
    arguments = plan.build(sample, tape.class_index, device)
    checked(arguments, plan.signature)
    return as_passed(arguments, facts.group.layout.positional, plan.signature)
