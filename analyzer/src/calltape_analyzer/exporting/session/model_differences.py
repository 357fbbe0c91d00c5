"""What a difference of results proves: another model, an argument that matters, or nothing.

A call or two of each variant is run before anything else: other weights would otherwise look like a
fault of each program, at each size. At sizes that no call had the values are made up, and the model
may have no answer to them: it returns NaN, something else each time, or what the last digit of an
input decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample, nudged
from calltape_analyzer.comparison.comparing import (
    Tolerances,
    compared,
    has_values,
    is_described,
)
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.facts import Fact
from calltape_analyzer.programs.notes import Question
from calltape_analyzer.programs.reasons import Because, Why
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = [
    "MAX_SINGLE",
    "doubt_of",
    "telling_calls",
    "unlike_recorded",
    "which_matter",
]

MAX_SINGLE = 8
"""So many arguments are changed one by one; of more, all count if one does."""

T = TypeVar("T")

_MAX_VARIANTS, _MAX_CHANGED = 64, 12


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


def telling_calls(variant: VariantFacts) -> Iterator[CallRef]:
    """The calls of a variant that are run: the first of the first and of the last size."""
    rows = variant.rows.items()
    yield from dict.fromkeys(seen.first for _, seen in (rows[0], rows[-1]))


def _difference(
    runner: ModelRuns, variant: VariantFacts, ref: CallRef, *, watched: bool
) -> Fact | None:
    """In what the model differs from the tape; None if it does not, or nobody knows."""
    call = runner.find(ref)
    seen = runner.observed(variant, ref) if watched else None
    expected = runner.recorded(call)
    if expected is None or not is_described(expected) or not has_values(expected):
        return None
    try:
        plan, sample = runner.planned(variant, call)
        got = seen if seen is not None else runner.eager(plan, sample)
        if compared(expected, got, runner.tolerances).agrees or not is_described(got):
            return None
        is_random = runner.drawn(plan, sample) is not None
    except Exception:  # of any type: the export of the variant will say so
        return None
    difference = compared(expected, got, runner.tolerances)
    return None if is_random or not difference.compared else difference.error


def which_matter(
    runner: ModelRuns,
    variants: Sequence[VariantFacts],
    changes: Callable[[VariantFacts], Sequence[T]],
    run: Callable[[Plan, Sample, Sequence[T]], Mapping[str, Any]],
    seconds: float,
    question: Question | None = None,
) -> Iterator[tuple[Sequence[T], Sequence[T] | None]]:
    """The changes of the first call of each variant, and those of them of which each alone makes
    the model return something else, or raise; all of them if only several together do, or if they
    are many.

    Args:
        runner: has the model.
        variants: of the calls. Of very many with changes, the first ones are run.
        changes: of the first call of a variant: plain data.
        run: gives what the model returns with some of them.
        seconds: how long the runs of one variant may take.
        question: what the variant is asked, if it is noted that it has no answer.

    Yields:
        None for those that matter if that is unknown, or the model raises without any change: the
        export of the variant will say so.
    """
    left = _MAX_CHANGED
    for variant in variants:
        if every := changes(variant):
            left -= 1
            ask = partial(_which_matter_in, runner, variant, every, run)
            unknown = None if question is None else (variant.name, question)
            yield every, None if left < 0 else runner.asked(ask, seconds, unknown)


def _which_matter_in(
    runner: ModelRuns,
    variant: VariantFacts,
    every: Sequence[T],
    run: Callable[[Plan, Sample, Sequence[T]], Mapping[str, Any]],
) -> Sequence[T] | None:
    try:
        planned = runner.planned(variant, variant.rows.first)
        expected = run(*planned, ())
    except Exception:  # models raise errors of any type
        return None

    def matters(some: Sequence[T]) -> bool:
        try:
            got = run(*planned, some)
        except Exception:
            return True
        return runner.differ(expected, got)

    if not matters(every):
        return []
    if len(every) == 1 or len(every) > MAX_SINGLE:
        return every
    return [one for one in every if matters([one])] or every


_ROUNDING = 16
"""A program adds and fuses in another order than the model: its rounding may be off by so many
times what one unit in the last place of all inputs makes of the model's results."""


def doubt_of(
    runner: ModelRuns,
    plan: Plan,
    sample: Sample,
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    changes: Mapping[int, Callable[[Any], Any]] | None = None,
) -> Because | None:
    """Why other results than those of the model prove nothing. None if they prove that the program
    is wrong.

    Args:
        runner: has the model.
        plan: makes its arguments,
        sample: of the values that were tried.
        expected: what the model returned.
        got: what the program returned.
        changes: of the arguments, as of :meth:`ModelRuns.run`.
    """
    if any(map(_has_nan, expected.values())):
        return Because(Why.MODEL_IS_NAN)
    try:
        again = runner.eager(plan, sample, seed=0, changes=changes)
        if not compared(expected, again, runner.tolerances).agrees:
            return Because(Why.MODEL_VARIES)
        near = runner.eager(plan, nudged(sample), changes=changes)
    except Exception:  # models raise errors of any type
        return Because(Why.MODEL_MAY_FAIL)
    if _is_within(expected, got, near, runner.tolerances):
        return Because(Why.INEXACT)
    return None


def _has_nan(leaf: Any) -> bool:
    is_inexact = getattr(leaf, "is_floating_point", bool)() or getattr(leaf, "is_complex", bool)()
    return is_inexact and bool(leaf.isnan().any())


def _is_within(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    near: Mapping[str, Any],
    tolerances: Tolerances,
) -> bool:
    """Whether each result that differs does so by little more than the model's own does if its
    inputs change in their last digit."""
    if not expected.keys() == got.keys() == near.keys():
        return False
    for path, value in expected.items():
        found = compared({path: value}, {path: got[path]}, tolerances)
        if found.agrees:
            continue
        own = compared({path: value}, {path: near[path]}, tolerances)
        if not found.max_abs <= _ROUNDING * own.max_abs < math.inf:
            return False
    return True
