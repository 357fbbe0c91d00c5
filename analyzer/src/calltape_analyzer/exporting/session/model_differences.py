"""Whether the model returns what was recorded, and whether a program follows it from call to call.

A call or two of each variant runs before anything else, because other weights than the recorded
ones would look like a fault of each program at each size.

A program shares the parameters and buffers of its model, and writes to them as the model does.
Anything else that the model reads is a constant of the program. Names do not show whether that
matters: a mask that is built once, a counter for a log and the attention maps of the last call are
harmless, and the end of the last chunk is not. So calls run after one another, and their results
are compared. The recorded order may show nothing (inputs that only grow), so other orders run as
well, and a number that calls change is set to a much larger value.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from random import Random
from typing import Any, NamedTuple

import torch

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.comparing import (
    compared,
    has_values,
    is_described,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.exporting.session.sandbox import RunEndedError, Sandbox
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.verification import replay_call
from calltape_analyzer.facts import Fact
from calltape_analyzer.model.calls import detached, eager
from calltape_analyzer.model.randomness import generators_kept, reseed
from calltape_analyzer.model.state import copied_from_state, number_text, unchanged
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import StateNeeded
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = [
    "calls_with_hidden_state",
    "differences_from_tape",
    "telling_calls",
    "why_state_lost",
]

_MAX_VARIANTS = 64


_MAX_BEFORE, _BEFORE_SECONDS = 32, 2.0
"""How many calls before one are run to see whether they explain its result, and how long."""


def differences_from_tape(
    session: Session, variants: Sequence[VariantFacts], calls: Iterable[Call], *, observe: bool
) -> dict[CallRef, Fact]:
    """By call, how the result of the model differs from the recorded one. Calls that draw random
    numbers are not judged, nor are those of a model that calls change.

    Args:
        session: has the model.
        variants: the :func:`telling_calls` of each are run.
        calls: of the tape. If one differs, those before it run as well, because they may have left
            state.
        observe: whether these runs are observed (:meth:`Session.observe`).
    """
    found: dict[CallRef, Fact] = {}
    for variant in variants[:_MAX_VARIANTS]:
        for ref in telling_calls(variant):
            difference = _difference(session, variant, ref, observe=observe)
            if difference is not None:
                found[ref] = difference
    if found and not session.state:
        _find_state(session, variants, calls, min(found))  # the fewest calls are before it
    return {} if session.state else found


def _find_state(
    session: Session, variants: Sequence[VariantFacts], calls: Iterable[Call], last: CallRef
) -> None:
    """Adds what calls change in the model to the state of the session, if a call returns what was
    recorded once those before it have run."""
    before = takewhile(lambda call: call.ref <= last, islice(calls, _MAX_SEARCHED))
    row = deque((call for call in before if call.ref.tape == last.tape), _MAX_BEFORE)
    until = time.perf_counter() + session.budget.within(_BEFORE_SECONDS)
    got: Mapping[str, Any] | None = None
    with generators_kept(session.module), unchanged(session.module) as changed:
        for call in row if len(row) > 1 else ():
            key = session.sorter.sorted(call.record.inputs).key
            variant = next((one for one in variants if one.group.key.covers(key)), None)
            got = None
            if variant is not None and time.perf_counter() < until:
                with suppress(Exception):  # the model raises: that is no evidence
                    plan, given = session.planned(variant, call)
                    value = eager(session.entry, plan, given, session.classes, session.device)
                    got = copied_from_state(session.module, detached(leaves_of(value)))
    expected = session.recorded(session.find(last))
    if got is None or expected is None or row[-1].ref != last:
        return
    if compared(expected, got, session.tolerances).agrees:
        session.add_state({name: number_text(value) for name, value in changed.items()})


def telling_calls(variant: VariantFacts) -> Iterator[CallRef]:
    """The calls of a variant that are run: the first ones of its first and of its last size."""
    rows = variant.rows.items()
    yield from dict.fromkeys(seen.first for _, seen in (rows[0], rows[-1]))


def _difference(
    session: Session, variant: VariantFacts, ref: CallRef, *, observe: bool
) -> Fact | None:
    """How the model differs from the tape; None if it does not, or if that is unknown."""
    call = session.find(ref)
    observed = session.observe(variant, ref) if observe else None
    expected = session.recorded(call)
    if expected is None or not is_described(expected) or not has_values(expected):
        return None
    try:
        plan, sample = session.planned(variant, call)
        got = observed if observed is not None else session.eager(plan, sample)
        difference = compared(expected, got, session.tolerances)
        if difference.agrees or not is_described(got):
            return None
        is_random = session.random_results(plan, sample) is not None
    except Exception:  # of any type: the export of the variant will report it
        return None
    return None if is_random or not difference.compared else difference.error


_MAX_BETWEEN = 2
"""Of how many other variants calls run between those of one."""
_ROW = 6
"""How often a call runs in a row: a later call than the next may read what it leaves."""
_MAX_IN_ORDER = 8
"""How many calls run one after another, in several orders."""
_FAR = 1000
"""By how much, and by how many times itself, a number that calls change is moved: counting that far
would take too long."""
_MAX_MOVED = 8
_SECONDS = 30.0
"""How long runs with a moved number may take."""
_MAX_SEARCHED, _MAX_RUN = 4096, 32
"""How many calls are searched for those that a program accepts, and how many are run."""


class _Served(NamedTuple):
    """A recorded call, and the program that serves it."""

    program: Program
    sample: Sample
    call: Call


def calls_with_hidden_state(
    session: Session,
    variants: Sequence[VariantFacts],
    others: Sequence[VariantFacts],
    seconds: float,
) -> set[CallRef]:
    """The first calls of the variants for which a model returns something else when it is called
    again, although its state was restored. They run in the sandbox, because nothing can restore the
    hidden state.

    Args:
        session: has the model.
        variants: whose first calls run twice each, and once more after all others.
        others: calls of a few of these run in between.
        seconds: how long a run may take.
    """

    # With synthetic values a run may not finish.
    def has_all_values(variant: VariantFacts) -> bool:
        return all(leaf.key for leaf in session.find(variant.rows.first).record.inputs.facts())

    own, others = (list(filter(has_all_values, some)) for some in (variants, others))
    own.reverse()  # decode steps cost less, and the last one need not run again:
    row = [variant for variant in own for _ in range(2)] + others[:_MAX_BETWEEN]
    row += own if others else own[:-1]  # it ran after all others
    known: dict[CallRef, dict[str, Any]] = {}

    def differs(place: int, _: Any) -> bool:
        ref = row[place].rows.first
        try:
            got = session.eager(*session.planned(row[place], ref))
        except Exception:  # the model raises: that is no evidence
            return False
        return session.differ(known.setdefault(ref, got), got)

    found: set[CallRef] = set()
    with Sandbox(differs, session.device) as sandbox:
        for place, variant in enumerate(row):
            with suppress(RunEndedError):
                if sandbox.ask(place, seconds):
                    found.add(variant.rows.first)
    return found


def why_state_lost(
    session: Session, program: Program, others: Iterable[Program], calls: Iterable[Call]
) -> StateNeeded | None:
    """Why a program is useless: recorded calls continue from state that previous calls left, and
    the program does not keep it. None if that is not so. If no recorded call needed the lost state,
    the
    program only gets a note: the application may have reset the state before each call.

    Args:
        session: has the model.
        program: whose lost state is searched for.
        others: programs that serve calls which may come before.
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
    """Whether recorded calls show that the application resets the state before each: run in a row
    from the state at the export, the model does not return what was recorded."""
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
    """Whether the model returns something else for a call in a row than for the call alone, and the
    program does not; None if that is unknown."""
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
    # A number that calls change, and the program does not, may matter only when it is much larger:
    # after a warm-up, say.
    names = program.lost[:_MAX_MOVED]
    return bool(
        session.answer(lambda: any(_reads_number(session, first, name) for name in names), _SECONDS)
    )


def _loses_in_other_orders(session: Session, program: Program, others: Iterable[Program]) -> bool:
    """Whether a program loses state that the previous calls left, in some order of recorded
    calls."""
    found: dict[CallRef, _Served] = {}
    alone: dict[CallRef, Mapping[str, Any]] = {}
    for one in (program, *islice(others, _MAX_BETWEEN)):
        for served in _calls_of(session, one, _firsts(one, _MAX_IN_ORDER)):
            ref = served.call.ref
            # A program may accept the sizes and reject the values.
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


def _reads_number(session: Session, call: _Served, name: str) -> bool:
    """Whether the model returns something else if a number among its attributes is much larger."""
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
    """Whether the program of the first call of a row loses what previous calls left, when that call
    is repeated; None if no repetition is reached."""
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
        with suppress(Exception):  # it cannot be read, which the export has reported
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
    """The results of calls that run one after another from the current state of the model, up to
    the first one that raises, since the state may be the reason. Each call starts from the same
    random numbers."""
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
    """The recorded calls that a program accepts, and that started from another state than its
    own."""
    ended = (call for call in calls if not call.under_way and not has_raised(call))
    own = (
        call
        for call in islice(ended, _MAX_SEARCHED)
        if program.rejects_call(session.sorter.sorted(call.record.inputs)) is None
    )
    for call in islice(own, _MAX_RUN):
        replayed = replay_call(session, program, call)
        if replayed.outcome == "ok" and replayed.error is not None:
            yield call
