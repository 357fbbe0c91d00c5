"""Whether this is the model that was recorded: a call or two of each variant, run before anything
else.

In come variants. Out goes what the model does not return as the tape has it. Other weights would
otherwise look like a fault of each program, at each size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import sample_in
from calltape_analyzer.comparison.comparing import (
    compared,
    has_values,
    is_described,
    recorded_leaves,
)
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.facts import Fact
from calltape_analyzer.programs.notes import OtherModel
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["other_model", "telling_calls", "unlike_recorded"]

_MAX_VARIANTS = 64


def unlike_recorded(
    runner: ModelRuns, variants: Sequence[VariantFacts], *, watched: bool
) -> dict[CallRef, Fact]:
    """The calls, of those that were run, for which the model returns something else than was
    recorded, and in what that differs. Calls of a model that draws random numbers, or that calls
    change, are not judged.

    Args:
        runner: has the model.
        variants: of each, :func:`telling_calls` are run.
        watched: whether it is noted what the model asks (:meth:`ModelRuns.observed`).
    """
    found: dict[CallRef, Fact] = {}
    for variant in variants[:_MAX_VARIANTS]:
        for ref in telling_calls(variant):
            difference = _difference(runner, variant, ref, watched=watched)
            if difference is not None:
                found[ref] = difference
    return {} if runner.state else found


def other_model(
    found: Mapping[CallRef, Fact], outside: Sequence[str] = (), asked: Sequence[str] = ()
) -> OtherModel:
    """What is unlike, as a note.

    Args:
        found: the calls, as of :func:`unlike_recorded`.
        outside: the modes that the recording had around the model.
        asked: what the model's code asks of its caller.
    """
    calls = tuple(f"{ref.number}" for ref in found)
    return OtherModel(calls, next(iter(found.values())), tuple(outside), tuple(asked))


def telling_calls(variant: VariantFacts) -> Iterator[CallRef]:
    """The calls of a variant that are run: the first of the first and of the last size."""
    rows = variant.rows.items()
    yield from dict.fromkeys(seen.first for _, seen in (rows[0], rows[-1]))


def _difference(
    runner: ModelRuns, variant: VariantFacts, ref: CallRef, *, watched: bool
) -> Fact | None:
    """In what the model differs from the tape; None if it does not, or nobody knows."""
    call = runner.find(ref)
    seen = runner.observed(variant, ref).leaves if watched else None
    outputs = call.record.outputs
    leaves = (*call.record.inputs.facts(), *(outputs.facts() if outputs is not None else ()))
    if outputs is None or not all(leaf.key for leaf in leaves):
        return None
    expected = recorded_leaves(call)
    if expected is None or not is_described(expected) or not has_values(expected):
        return None
    try:
        sample = sample_in(variant, call, runner.sorter, runner.device)
        plan = Plan.of(variant, sample, runner.sorter.signature)
        got = seen if seen is not None else runner.eager(plan, sample)
        if compared(expected, got, runner.tolerances).agrees or not is_described(got):
            return None
        is_random = runner.drawn(plan, sample) is not None
    except Exception:  # of any type: the export of the variant will say so
        return None
    difference = compared(expected, got, runner.tolerances)
    return None if is_random or not difference.compared else difference.error
