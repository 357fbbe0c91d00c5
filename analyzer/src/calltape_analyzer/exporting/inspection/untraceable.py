"""What no program can do: nested tensors, sparse ones, dicts by data, random numbers of Python.

torch.export (2.15) fails on a nested tensor, as an argument and where the model makes one; with
``strict=True`` it makes a program of one that can be neither run nor saved. Of a sparse tensor the
tape has no values. Nobody has to wait for such a trace.

A model may draw random numbers with Python or numpy: ``if random.random() < 0.1``. A trace sees
what came of a number, and not the number: a program cannot draw it. Nor do two runs tell: a rare
branch is not taken in either. So a recorded call is run with the smallest and the largest numbers
that the generators give. What is the same with all of them does not depend on them: a model may
draw for its training mode only, or give its generator a seed of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample, sample_in
from calltape_analyzer.comparison.comparing import compared
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.model.code import may_draw
from calltape_analyzer.programs.notes import NotDrawn
from calltape_analyzer.programs.reasons import DrawnByPython, Untraceable, UntraceableKind
from calltape_analyzer.pytree.nodes import nested_places
from calltape_analyzer.pytree.placeholder import has_data_keys
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts

if TYPE_CHECKING:
    from calltape_analyzer.model.randomness import Numbers

__all__ = ["drawn_by_python", "why_untraceable"]

_STORED = ("strided", "jagged")
"""The layouts whose values a tape has."""


def why_untraceable(variant: VariantFacts, call: Call) -> Untraceable | None:
    """Why torch.export can make no program of a variant; None if it may.

    Args:
        variant: what is to be exported.
        call: the first call of the variant.
    """
    by_data = [
        str(name) for name, root in variant.group.layout.nodes.items() if has_data_keys(root)
    ]
    if by_data:
        return Untraceable(UntraceableKind.DATA_KEYS, tuple(by_data))
    group = variant.group
    layouts = {
        str(place): facts.layout
        for place, facts in zip(group.layout.tensors, group.facts, strict=True)
    }
    passed = [path for _, path in group.layout.nested_places]
    passed += [path for path, layout in layouts.items() if layout == "nested"]
    if passed:
        return Untraceable(UntraceableKind.NESTED, tuple(passed))
    sparse = {path: layout for path, layout in layouts.items() if layout not in _STORED}
    if sparse:
        layouts_of = tuple(sorted(set(sparse.values())))
        return Untraceable(UntraceableKind.SPARSE, tuple(sparse), layouts_of)
    outputs = call.record.outputs
    places = () if outputs is None else nested_places(outputs.spec().root, "outputs")
    made = [path for _, path in places]
    if made:
        return Untraceable(UntraceableKind.RETURNS_NESTED, tuple(made))
    return None


_MAX_ROWS = 24
_NUMBERS: tuple[Numbers, ...] = ("smallest", "largest", "others")


def drawn_by_python(session: Session, variant: VariantFacts) -> DrawnByPython | NotDrawn | None:
    """Whether the model draws random numbers with Python or numpy in recorded calls.

    Args:
        session: has the model.
        variant: of the calls. One of each size is run if the code of the model names a function
            that draws, else one.

    Returns:
        Why there is no program, if results depend on these numbers; else a note, if it draws any.
    """
    note: NotDrawn | None = None
    for plan, sample in _calls(session, variant):
        moved: Sequence[str] = ()
        with suppress(Exception):  # the model raises: that is no evidence
            moved = [name for name in session.moved(plan, sample) if name != "torch"]
        if not moved:
            continue
        if _matter(session, plan, sample, moved):
            return DrawnByPython(tuple(moved))
        note = NotDrawn(tuple(moved))
    return note


def _calls(session: Session, variant: VariantFacts) -> Iterator[tuple[Plan, Sample]]:
    rows = _MAX_ROWS if may_draw(session.module) else 1
    for _, seen in islice(variant.rows.items(), rows):
        watched = session.was_watched(seen.first)
        effects = watched.effects if watched is not None and watched.asked is not None else None
        if effects is not None and set(effects.moved) <= {"torch"}:
            continue
        sample = sample_in(variant, session.find(seen.first), session.sorter, session.device)
        yield Plan.of(variant, sample, session.sorter.signature), sample


def _matter(session: Session, plan: Plan, sample: Sample, moved: Sequence[str]) -> bool:
    """Whether a result depends on numbers of Python and numpy."""
    from calltape_analyzer.model.randomness import OF_NUMPY

    if OF_NUMPY in moved:  # nobody can make it give the smallest
        return True

    def differs() -> bool:
        now = session.eager(plan, sample)
        others = (session.eager(plan, sample, python=numbers) for numbers in _NUMBERS)
        return not all(compared(now, other, session.tolerances).agrees for other in others)

    try:  # apart, because with numbers that are never drawn it may not come to its end
        return bool(session.in_sandbox(differs, session.budget.within(session.probing.seconds)))
    except Exception:  # models raise errors of any type
        return True
