"""Whether calls that follow each other are right: a model may keep something of a call for the next
one where no program keeps it.

A program shares the parameters and buffers of its model, and writes to them as the model does.
Anything else that the model reads is a constant of the program. Names do not tell whether that
matters: a mask that is built once, a counter for a log and the maps of the last call are harmless,
and the end of the last chunk is not. So a call is run after another one, and what it returns is
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample, sample_in
from calltape_analyzer.comparison.comparing import compared, leaves_of
from calltape_analyzer.exporting.runner import Runner
from calltape_analyzer.exporting.verifier import Verifier
from calltape_analyzer.model.calls import eager
from calltape_analyzer.model.contexts import detached
from calltape_analyzer.observing.evidence import has_raised
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.program import Program, shown_state
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["IN_A_ROW", "why_lost", "why_out_of_sight"]

IN_A_ROW = "calls in a row"
"""What an attempt says of a variant whose calls depend on those before."""

_MAX_BETWEEN = 2
"""Calls of so many other variants are run between those of one."""
_ROW = 6
"""A call is run so often in a row: what it leaves may be read by a later one than the next."""
_MAX_SEARCHED, _MAX_RUN = 4096, 32
"""So many calls are searched for those that a program takes, and so many are run."""


class _Served(NamedTuple):
    """A recorded call, and the program that serves it."""

    program: Program
    sample: Sample


def why_out_of_sight(
    runner: Runner, variant: VariantFacts, others: Sequence[VariantFacts], seconds: float
) -> str | None:
    """Why there is no program if a model returns something else when it is called again although
    its state was put back; None if it does not. It runs apart: what it keeps, nobody puts back.

    Args:
        runner: has the model.
        variant: whose first call is run.
        others: calls of these are run between.
        seconds: how long the runs may take.
    """
    if not all(leaf.key for leaf in runner.find(variant.rows.first).record.inputs.facts()):
        return None  # with made-up values it may not come to its end
    between = [one for one in others if one is not variant][:_MAX_BETWEEN]
    if not runner.asked(partial(_differs_again, runner, variant, between), seconds):
        return None
    return (
        "the model returns something else when it is called again with the same arguments, "
        "although its buffers and attributes were put back: it keeps state where no program has "
        "it, in a global, a closure, a class, deep in containers or in an object that is not plain "
        "Python (keep it in a registered buffer, or let the model take it as an argument and "
        "return it), or what it returns is left to chance"
    )


def _differs_again(runner: Runner, variant: VariantFacts, between: Sequence[VariantFacts]) -> bool:
    def run(one: VariantFacts) -> dict[str, Any]:
        sample = sample_in(one, runner.find(one.rows.first), runner.sorter, runner.device)
        return runner.eager(Plan.of(one, sample, runner.sorter.signature), sample)

    with suppress(Exception):  # the model raises: that is no evidence
        first = run(variant)
        for others in ((), between):
            for other in others:
                with suppress(Exception):
                    run(other)
            if _differ(runner, first, run(variant)):
                return True
    return False


def _differ(runner: Runner, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two results differ. What cannot be compared is no evidence."""
    found = compared(one, other, runner.tolerances)
    return not found.agrees and (found.compared > 0 or one.keys() != other.keys())


def why_lost(
    verifier: Verifier, program: Program, others: Iterable[Program], calls: Iterable[Call]
) -> str | None:
    """Why a program is of no use: recorded calls go on from what the ones before left, and it does
    not keep that. None if that is not so. The program gets a note if it loses what matters, and no
    recorded call needed it: the host may have put it back itself before each call.

    Args:
        verifier: has the model.
        program: what it loses is looked for.
        others: serve calls that may come before.
        calls: of the tape.
    """
    program.note_state(verifier.state)
    if not program.lost:
        return None
    program.depends = _depends(verifier, program, others)
    program.note_state(verifier.state)
    if not program.depends:
        return None
    call = next(_not_reproduced(verifier, program, calls), None)
    if call is None:
        return None
    return (
        f"what the model returns depends on what the call before left in it "
        f"({shown_state(program.lost)}), and the program does not keep that: call {call.number} is "
        f"not reproduced ({program.keeping}; if each recorded call began in one state, export the "
        "model in that)"
    )


def _depends(verifier: Verifier, program: Program, others: Iterable[Program]) -> bool | None:
    """Whether in a row of calls the model returns something else than alone, and the program does
    not follow; None if that is unknown."""
    calls = list(_calls_of(verifier, program, _firsts(program)))
    if not calls:
        return None
    for other in islice(others, _MAX_BETWEEN):
        calls += _calls_of(verifier, other, islice(_firsts(other), 1))
    first, *between = calls
    is_known = False
    for row in ([first] * _ROW, *([first, other] * 2 for other in between)):
        found = _loses(verifier, row)
        if found:
            return True
        is_known = is_known or found is not None
    return False if is_known else None


def _loses(verifier: Verifier, row: Sequence[_Served]) -> bool | None:
    """Whether the program of the first call of a row loses what calls before left, when that call
    comes again; None if it does not come to that."""
    after = _in_a_row(verifier, row, _of_model)
    again = [i for i in range(1, len(after)) if row[i] is row[0]]
    moved = [i for i in again if _differ(verifier, after[0], after[i])]
    if not moved:
        return False if again else None
    got = _in_a_row(verifier, row, _of_program)
    known = [i for i in moved if i < len(got)]
    return any(_differ(verifier, after[i], got[i]) for i in known) if known else None


def _firsts(program: Program) -> Iterator[CallRef]:
    """The first calls of two sizes that a program serves: the first size, and the last."""
    rows = [
        seen.first for row, seen in program.variant.rows.items() if program.refuses(row) is None
    ]
    yield from dict.fromkeys([*rows[:1], *rows[-1:]])


def _calls_of(verifier: Verifier, program: Program, refs: Iterable[CallRef]) -> Iterator[_Served]:
    for ref in refs:
        with suppress(Exception):  # it cannot be read, which the export has said
            call = verifier.find(ref)
            sample = sample_in(program.variant, call, verifier.sorter, verifier.device)
            yield _Served(program, sample)


def _of_model(verifier: Verifier, call: _Served) -> Mapping[str, Any]:
    plan, given = call.program.plan, call.sample.cloned()
    value = eager(verifier.entry, plan, given, verifier.classes, verifier.device)
    return detached(leaves_of(value))


def _of_program(_: Verifier, call: _Served) -> Mapping[str, Any]:
    return call.program.leaves(call.program.outputs(call.sample.cloned()))


def _in_a_row(
    verifier: Verifier,
    row: Sequence[_Served],
    run: Callable[[Verifier, _Served], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """What calls return that begin where the ones before ended, the first in the state of the
    model now; until one raises, for which a state may be the reason. Random numbers begin anew for
    each, so that a call before moves none."""
    import torch

    from calltape_analyzer.model.randomness import reseed

    found = []
    with verifier.undisturbed():
        for call in row:
            reseed(verifier.module)
            try:
                leaves = run(verifier, call)
            except Exception:  # models, torch and runtimes raise errors of any type
                break
            # The next call may write to it.
            found.append({
                path: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
                for path, leaf in leaves.items()
            })  # fmt: skip
    return found


def _not_reproduced(verifier: Verifier, program: Program, calls: Iterable[Call]) -> Iterator[Call]:
    """The recorded calls that a program takes, and that began with another state than it has."""
    scratch = Attempt(variant=program.name, what=IN_A_ROW)
    ended = (call for call in calls if not call.under_way and not has_raised(call))
    own = (
        call
        for call in islice(ended, _MAX_SEARCHED)
        if program.refuses_call(verifier.sorter.sorted(call.record.inputs)) is None
    )
    for call in islice(own, _MAX_RUN):
        found = verifier.replayed(program, call, scratch)
        if found.ok and found.error is not None:
            yield call
