"""Arguments in hand, and those of recorded calls, in the terms of a variant's findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.variant import Variant

__all__ = ["arguments_of_row", "tensors_given"]


def tensors_given(variant: Variant, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors in some arguments, as they are (not copies), in the order of
    ``variant.findings.tensors``. None stands for one that these arguments lack and that a merged
    variant completes.

    Raises:
        UsageError: the variant does not take these arguments.
    """
    from calltape_analyzer.live_calls import LiveCall

    live = LiveCall(tuple(args), kwargs, variant._gatherer)
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
    from calltape_analyzer.exporting.plan import Plan
    from calltape_analyzer.exporting.templates import as_passed, checked
    from calltape_analyzer.samples import sample_in

    facts, gatherer, tape = variant.facts, variant._gatherer, variant._tape
    sample = sample_in(facts, tape.calls.at(facts.rows[row][1].first), gatherer, device)
    plan = Plan.of(facts, sample, gatherer.signature)
    arguments = plan.build(sample, tape.class_index, device)
    checked(arguments)
    return as_passed(arguments, facts.group.layout.positional, plan.signature)
