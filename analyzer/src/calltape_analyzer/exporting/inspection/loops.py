"""Which loops of a model over selected items, such as experts that got a token, may run for all."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from calltape_analyzer.arguments.sizings import Sizing, sizings_of_one
from calltape_analyzer.comparison.comparing import compared, leaves_of
from calltape_analyzer.exporting.session.sandbox import RunEndedError
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.torch_fixes.nonzero_loops import Line, LoopEvidence
from calltape_analyzer.exporting.torch_fixes.patching import PATCHING
from calltape_analyzer.model.calls import eager
from calltape_analyzer.model.state import copied_from_state
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["harmless_loops"]

_MAX_LOOKED, _MAX_SMALL = 4, 2
"""Of how many recorded calls the loops are checked, and of how many sizes of one."""
_SECONDS = 60.0
"""How long such a run at a size of one may take."""


def harmless_loops(session: Session, variant: VariantFacts) -> frozenset[Line]:
    """The model's loops over selected items that may run for every item, as recorded calls of a
    variant show. A few calls run three times each."""

    def with_buffers(sizing: Sizing | CallRef) -> dict[str, Any]:
        """The leaves of what the model returns now, and its buffers after that."""
        plan, sample = session.planned(variant, sizing)
        with session.undisturbed():
            value = eager(session.entry, plan, sample.cloned(), session.classes, session.device)
            leaves = copied_from_state(session.module, leaves_of(value))
            buffers = session.module.named_buffers()
            return {**leaves, **{f"buffer {name}": one.clone() for name, one in buffers}}

    def are_same(expected: dict[str, Any], got: dict[str, Any]) -> bool:
        verdict = compared(expected, got, session.tolerances)
        return verdict.agrees and verdict.compared > 0

    def loops_at(sizing: Sizing | CallRef) -> LoopEvidence:
        evidence = LoopEvidence()
        with PATCHING, suppress(Exception):  # errors of any type are no evidence
            evidence.look(partial(with_buffers, sizing), are_same)
        return evidence

    total_evidence = LoopEvidence()
    # From the last: a decode step has the fewest tokens.
    firsts = [seen.first for _, seen in variant.rows.items()]
    for ref in firsts[: -_MAX_LOOKED - 1 : -1]:
        total_evidence.add(loops_at(ref))
    for sizing in sizings_of_one(variant, _MAX_SMALL) if total_evidence.is_open else ():
        with suppress(RunEndedError):  # nobody recorded these sizes
            total_evidence.add(session.in_sandbox(partial(loops_at, sizing), _SECONDS))
    return total_evidence.allowed
