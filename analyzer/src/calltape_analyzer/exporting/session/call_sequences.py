"""Whether calls that follow each other are right: a model may keep something of a call for the next
one where no program keeps it.

A program shares the parameters and buffers of its model, and writes to them as the model does.
Anything else that the model reads is a constant of the program. Names do not tell whether that
matters: a mask that is built once, a counter for a log and the maps of the last call are harmless,
and the end of the last chunk is not. So a call is run after another one, and what it returns is
compared. Recorded calls may have come in an order that shows nothing (inputs that only grow), so
that they are run in other orders, too; and a number that calls change is set far beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any, NamedTuple

import torch

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.comparing import (
    is_described,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.exporting.session.sandbox import RunEndedError, Sandbox
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.model.calls import detached, eager
from calltape_analyzer.model.randomness import reseed
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import StateNeeded
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["out_of_sight", "why_lost"]

_MAX_BETWEEN = 2
"""Calls of so many other variants are run between those of one."""
_ROW = 6
"""A call is run so often in a row: what it leaves may be read by a later one than the next."""
_MAX_IN_ORDER = 8
"""So many calls are run one after the other, in several orders."""
_FAR = 1000
"""A number that calls change is moved by so much, and by so many times itself: nobody waits for a
counter."""
_MAX_MOVED = 8
_SECONDS = 30.0
"""How long that may take."""
_MAX_SEARCHED, _MAX_RUN = 4096, 32
"""So many calls are searched for those that a program takes, and so many are run."""


class _Served(NamedTuple):
    """A recorded call, and the program that serves it."""

    program: Program
    sample: Sample
    call: Call


def out_of_sight(
    runner: ModelRuns,
    variants: Sequence[VariantFacts],
    others: Sequence[VariantFacts],
    seconds: float,
) -> set[CallRef]:
    """The first calls of the variants for which a model returns something else when it is called
    again although its state was put back. They run apart: what the model keeps, nobody puts back.

    Args:
        runner: has the model.
        variants: whose first calls are run, twice each and once more after all others.
        others: calls of a few of these are run between.
        seconds: how long a run may take.
    """

    # With values that are not on the tape a run may not come to its end.
    def has_all_values(variant: VariantFacts) -> bool:
        return all(leaf.key for leaf in runner.find(variant.rows.first).record.inputs.facts())

    own, others = (list(filter(has_all_values, some)) for some in (variants, others))
    row = [variant for variant in own for _ in range(2)] + others[:_MAX_BETWEEN]
    row += own if len(row) > 2 else []
    known: dict[CallRef, dict[str, Any]] = {}

    def differs(place: int, _: Any) -> bool:
        ref = row[place].rows.first
        try:
            got = runner.eager(*runner.planned(row[place], ref))
        except Exception:  # the model raises: that is no evidence
            return False
        return runner.differ(known.setdefault(ref, got), got)

    found: set[CallRef] = set()
    with Sandbox(differs, runner.device) as runs:
        for place, variant in enumerate(row):
            with suppress(RunEndedError):
                if runs.ask(place, seconds):
                    found.add(variant.rows.first)
    return found


def why_lost(
    session: Session, program: Program, others: Iterable[Program], calls: Iterable[Call]
) -> StateNeeded | None:
    """Why a program is of no use: recorded calls go on from what the ones before left, and it does
    not keep that. None if that is not so. The program gets a note if it loses what matters, and no
    recorded call needed it: the host may have put it back itself before each call.

    Args:
        session: has the model.
        program: what it loses is looked for.
        others: serve calls that may come before.
        calls: of the tape.
    """
    program.note_state(session.state)
    if not program.lost:
        return None
    program.depends = _depends(session, program, others)
    program.note_state(session.state)
    if not program.depends:
        return None
    call = next(_not_reproduced(session, program, calls), None)
    if call is None and _is_put_back(session, [program, *others], calls):
        return None
    number = None if call is None else call.number
    return StateNeeded(tuple(program.lost), number, program.model.has_state)


def _is_put_back(session: Session, programs: Sequence[Program], calls: Iterable[Call]) -> bool:
    """Whether recorded calls show that the application puts the state back before each: in a row
    from the state at the export, the model returns something else than was recorded."""
    row = [one for call in islice(calls, _MAX_RUN) for one in _serving(session, programs, call)]
    known = [recorded_leaves(one.call) for one in row]
    return any(
        expected is not None and is_described(expected) and session.differ(expected, got)
        for expected, got in zip(known, _in_a_row(session, row, _of_model), strict=False)
    )


def _serving(session: Session, programs: Sequence[Program], call: Call) -> Iterator[_Served]:
    if call.under_way or has_raised(call):
        return
    placed = session.sorter.sorted(call.record.inputs)
    for program in programs:
        if program.rejects_call(placed) is None:
            yield from _calls_of(session, program, [call.ref])
            return


def _depends(session: Session, program: Program, others: Iterable[Program]) -> bool | None:
    """Whether in a row of calls the model returns something else than alone, and the program does
    not follow; None if that is unknown."""
    calls = list(_calls_of(session, program, _firsts(program)))
    if not calls:
        return None
    for other in islice(others, _MAX_BETWEEN):
        calls += _calls_of(session, other, islice(_firsts(other), 1))
    first, *between = calls
    is_known = False
    for row in ([first] * _ROW, *([first, other] * 2 for other in between)):
        found = _loses(session, row)
        if found:
            return True
        is_known = is_known or found is not None
    if not is_known:
        return None
    if _loses_in_other_orders(session, program, others):
        return True
    # A number that its calls change, and the program does not, may matter far beyond what it is
    # now: after a warm-up, say.
    names = program.lost[:_MAX_MOVED]
    return bool(
        session.asked(lambda: any(_minds(session, first, name) for name in names), _SECONDS)
    )


def _loses_in_other_orders(session: Session, program: Program, others: Iterable[Program]) -> bool:
    """Whether a program loses what calls before left, in some order of recorded calls."""
    found: dict[CallRef, _Served] = {}
    alone: dict[CallRef, Mapping[str, Any]] = {}
    for one in (program, *islice(others, _MAX_BETWEEN)):
        for served in _calls_of(session, one, _firsts(one, _MAX_IN_ORDER)):
            ref = served.call.ref
            # A program may take a size, and not the values.
            got = _in_a_row(session, [served], _of_program) if ref not in found else []
            own = _in_a_row(session, [served], _of_model) if got else []
            if own:
                found[ref], alone[ref] = served, own[0]
    row = [found[ref] for ref in sorted(found)]
    row = row[:: -(-len(row) // _MAX_IN_ORDER)] if row else row
    shuffled = list(row)
    Random(0).shuffle(shuffled)
    for order in (row[::-1], row, shuffled):
        after = _in_a_row(session, order, _of_model)
        moved = [
            i for i, got in enumerate(after)
            if order[i].program is program
            and session.differ(alone[order[i].call.ref], got)
        ]  # fmt: skip
        if moved:
            known = _in_a_row(session, order, _of_program)
            if any(i < len(known) and session.differ(after[i], known[i]) for i in moved):
                return True
    return False


def _minds(session: Session, call: _Served, name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    try:
        part = session.module.get_submodule(owner)
        value = vars(part)[attribute]
    except (AttributeError, KeyError):  # within a container, or no module
        return False
    if type(value) not in (int, float):
        return False
    with suppress(Exception):  # the model raises, so that it serves nothing there
        alone = session.eager(call.program.plan, call.sample)
        with session.undisturbed():
            setattr(part, attribute, type(value)(value * _FAR + _FAR))
            moved = _in_a_row(session, [call], _of_model)
        return bool(moved) and session.differ(alone, moved[0])
    return False


def _loses(session: Session, row: Sequence[_Served]) -> bool | None:
    """Whether the program of the first call of a row loses what calls before left, when that call
    comes again; None if it does not come to that."""
    after = _in_a_row(session, row, _of_model)
    again = [i for i in range(1, len(after)) if row[i] is row[0]]
    moved = [i for i in again if session.differ(after[0], after[i])]
    if not moved:
        return False if again else None
    got = _in_a_row(session, row, _of_program)
    known = [i for i in moved if i < len(got)]
    return any(session.differ(after[i], got[i]) for i in known) if known else None


def _firsts(program: Program, count: int = 2) -> Iterator[CallRef]:
    """The first calls of some sizes that a program serves, from the first size to the last."""
    rows = [
        seen.first for row, seen in program.variant.rows.items() if program.rejects(row) is None
    ]
    last = len(rows) - 1
    places = [last * at // max(count - 1, 1) for at in range(count)] if rows else []
    yield from dict.fromkeys(rows[at] for at in places)


def _calls_of(session: Session, program: Program, refs: Iterable[CallRef]) -> Iterator[_Served]:
    for ref in refs:
        with suppress(Exception):  # it cannot be read, which the export has said
            call = session.find(ref)
            yield _Served(program, session.sample(program.variant, call), call)


def _of_model(session: Session, call: _Served) -> Mapping[str, Any]:
    plan, given = call.program.plan, call.sample.cloned()
    value = eager(session.entry, plan, given, session.classes, session.device)
    return detached(leaves_of(value))


def _of_program(_: Session, call: _Served) -> Mapping[str, Any]:
    return call.program.leaves(call.program.outputs(call.sample.cloned()))


def _in_a_row(
    session: Session,
    row: Sequence[_Served],
    run: Callable[[Session, _Served], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """What calls return that begin where the ones before ended, the first in the state of the
    model now; until one raises, for which a state may be the reason. Random numbers begin anew for
    each, so that a call before moves none."""
    found = []
    with session.undisturbed():
        for call in row:
            reseed(session.module)
            try:
                leaves = run(session, call)
            except Exception:  # models, torch and runtimes raise errors of any type
                break
            # The next call may write to it.
            found.append({
                path: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
                for path, leaf in leaves.items()
            })  # fmt: skip
    return found


def _not_reproduced(session: Session, program: Program, calls: Iterable[Call]) -> Iterator[Call]:
    """The recorded calls that a program takes, and that began with another state than it has."""
    ended = (call for call in calls if not call.under_way and not has_raised(call))
    own = (
        call
        for call in islice(ended, _MAX_SEARCHED)
        if program.rejects_call(session.sorter.sorted(call.record.inputs)) is None
    )
    for call in islice(own, _MAX_RUN):
        found = session.replayed(program, call)
        if found.outcome == "ok" and found.error is not None:
            yield call
