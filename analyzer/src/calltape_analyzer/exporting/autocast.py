"""Whether autocast changes anything in the calls of a model.

In come variants. A recorded call of each that was under autocast is run once more without it. If
torch runs the same operators on the same dtypes, autocast had nothing to cast, and such calls are
of one variant with those without it (``CallSorter.ignore_autocast``): a model in bfloat16 under
autocast to bfloat16, or one that looks rows up. Equal results alone would not do: of two runs
whose numbers differ, the largest may still be at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import sample_in
from calltape_analyzer.exporting.observed_calls import hides_questions
from calltape_analyzer.exporting.runner import Runner
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["autocast_unread"]

_MAX_VARIANTS = 12

_Operator = tuple[Any, tuple[torch.dtype, ...]]


def autocast_unread(
    runner: Runner, variants: Sequence[VariantFacts], seconds: float
) -> frozenset[str]:
    """The dtypes that autocast casts to in some call, if the model runs the same without it.

    Args:
        runner: has the model.
        variants: of which the first call is run, if it was under autocast. A dtype that more of
            them have than a few counts as read.
        seconds: how long the runs of one variant may take.
    """
    under = [variant for variant in variants if variant.group.layout.context.met]
    if not under or hides_questions(runner.module):
        return frozenset()
    unread: set[str] = set()
    read: set[str] = set()
    for number, variant in enumerate(under):
        dtypes = {dtype for _, dtype in variant.group.layout.context.met}
        is_unread = number < _MAX_VARIANTS and runner.asked(
            partial(_runs_alike, runner, variant), seconds
        )
        (unread if is_unread else read).update(dtypes)
    return frozenset(unread - read)


def _runs_alike(runner: Runner, variant: VariantFacts) -> bool:
    """Whether the first call of a variant runs the same with and without autocast."""
    try:
        sample = sample_in(variant, runner.find(variant.rows.first), runner.sorter, runner.device)
        plan = Plan.of(variant, sample, runner.sorter.signature)
        plain = replace(plan.context, autocast=(), met=())
        with_it, without = _Operators(), _Operators()
        expected = runner.eager(plan, sample, within=with_it)
        got = runner.eager(plan, sample, context=plain, within=without)
    except Exception:  # of any type: the export of the variant will say so
        return False
    return with_it.ran == without.ran and not runner.differ(expected, got)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists the operators that run, with the dtypes of their tensors. Casts are among them."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """As of the mode that counts memory."""
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[_Operator] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        leaves = pytree.tree_leaves((args, given))
        self.ran.append((func, tuple(x.dtype for x in leaves if isinstance(x, torch.Tensor))))
        return func(*args, **given)
