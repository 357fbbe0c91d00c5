"""Whether it matters to a model that two arguments are one object, or share memory.

In come variants. A recorded call of each is run with equal copies instead. If the model returns the
same, and writes the same, the calls are of one variant with those whose arguments are apart
(``CallSorter.unshared``): a loss called with ``labels=ids`` asks nothing of that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample, sample_in
from calltape_analyzer.comparison.comparing import leaves_of
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.model.calls import detached, eager
from calltape_analyzer.observing.groups import Shared
from calltape_analyzer.pytree.memory import copies
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["sharing_unread"]

_MAX_VARIANTS = 12
_MAX_SINGLE = 8
"""So many pairs are tried one by one; of more, all count as read if one is."""

_Names = tuple[str, str]


def sharing_unread(
    runner: ModelRuns, variants: Sequence[VariantFacts], seconds: float
) -> frozenset[_Names]:
    """The pairs of paths of tensors that share memory in some call, if a model returns the same for
    copies.

    Args:
        runner: has the model.
        variants: of which the first call is run, if arguments share memory there. Of very many
            variants, the first ones; pairs of the others stay apart.
        seconds: how long the runs of one variant may take.
    """
    unread: set[_Names] = set()
    read: set[_Names] = set()
    sharing = [variant for variant in variants if variant.group.key.shared]
    for number, variant in enumerate(sharing):
        pairs = variant.group.key.shared
        names = [_names(variant, pair) for pair in pairs]
        if number >= _MAX_VARIANTS:
            read.update(names)
            continue
        found = runner.asked(partial(_read_in, runner, variant, pairs), seconds)
        if found is None:
            read.update(names)
        else:
            unread.update(names)
            read.update(names[at] for at in found)
    return frozenset(unread - read)


def _names(variant: VariantFacts, pair: Shared) -> _Names:
    places = variant.group.layout.tensors
    return str(places[pair.one]), str(places[pair.other])


def _read_in(runner: ModelRuns, variant: VariantFacts, pairs: Sequence[Shared]) -> list[int]:
    """The numbers of the pairs that matter to a call of a variant."""
    every = list(range(len(pairs)))
    try:
        sample = sample_in(variant, runner.find(variant.rows.first), runner.sorter, runner.device)
        plan = Plan.of(variant, sample, runner.sorter.signature)
        expected = _run(runner, plan, sample)
    except Exception:  # of any type: the export of the variant will say so
        return every

    def matters(some: Collection[int]) -> bool:
        tensors = list(sample.tensors)
        for at in some:
            tensors[pairs[at].other] = copies([tensors[pairs[at].other]])[0]
        try:
            got = _run(runner, plan, replace(sample, tensors=tensors))
        except Exception:
            return True
        return runner.differ(expected, got)

    if not matters(every):
        return []
    if len(pairs) == 1 or len(pairs) > _MAX_SINGLE:
        return every
    return [at for at in every if matters([at])] or every


def _run(runner: ModelRuns, plan: Plan, sample: Sample) -> dict[str, Any]:
    """What the model returns, and what is in its arguments afterwards."""
    from calltape_analyzer.model.state import apart_from

    with runner.undisturbed():
        given = sample.cloned()
        value = eager(runner.entry, plan, given, runner.classes, runner.device)
        found = apart_from(runner.module, detached(leaves_of(value)))
    arguments = {f"argument {i}": one for i, one in enumerate(given.tensors)}
    return {**found, **detached(arguments)}
