"""Whether a model reads the order of the keys of its dicts: ``torch.cat(list(features.values()))``.

In come variants. A recorded call of each is run again with the keys in the opposite order. If that
changes what the model returns, the order is a part of the structure (``CallSorter.ordered``): calls
with another one are of other variants, and a program rejects them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import sample_in
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.observing.layout import turned_around
from calltape_analyzer.programs.notes import Question
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["key_orders_read"]

_MAX_VARIANTS = 12
_MAX_SINGLE = 8
"""So many dicts are tried one by one; of more, the order of all counts if that of one does."""


def key_orders_read(
    runner: ModelRuns, variants: Sequence[VariantFacts], seconds: float
) -> frozenset[str]:
    """The paths of the dicts whose order of keys changes what the model returns, or whether it
    raises.

    Args:
        runner: has the model.
        variants: of which the first call is run, if it has a dict with several keys. Of very many
            variants, the first ones.
        seconds: how long the runs of one variant may take.
    """
    found: set[str] = set()
    for variant in variants[:_MAX_VARIANTS]:
        paths = [path for path in variant.group.layout.unordered if path not in found]
        if paths:
            ask = partial(_read_in, runner, variant, paths)
            found.update(runner.asked(ask, seconds, (variant.name, Question.KEY_ORDER)) or ())
    return frozenset(found)


def _read_in(runner: ModelRuns, variant: VariantFacts, paths: Sequence[str]) -> list[str]:
    try:
        sample = sample_in(variant, runner.find(variant.rows.first), runner.sorter, runner.device)
        plan = Plan.of(variant, sample, runner.sorter.signature)
        expected = runner.eager(plan, sample)
    except Exception:  # of any type: the export of the variant will say so
        return []

    def changes(some: Collection[str]) -> bool:
        layout = turned_around(plan.template.layout, some)
        turned = replace(plan, template=replace(plan.template, layout=layout))
        try:
            got = runner.eager(turned, sample)
        except Exception:
            return True
        return runner.differ(expected, got)

    if not changes(paths):
        return []
    if len(paths) == 1 or len(paths) > _MAX_SINGLE:
        return list(paths)
    return [path for path in paths if changes([path])] or list(paths)
