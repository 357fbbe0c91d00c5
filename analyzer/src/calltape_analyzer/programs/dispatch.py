"""Which program serves a call: the first whose layout, constants, sizes and conditions accept it.

Takes a call and its values. Returns the program and its outputs, or raises ``NoVariant`` with a
reason for every program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from calltape_analyzer.arguments.samples import Sample, in_variant
from calltape_analyzer.errors import NoVariant
from calltape_analyzer.facts import Fact, Rejection
from calltape_analyzer.foreign_errors import failure_of, is_of_inputs
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.programs.caller_objects import restore
from calltape_analyzer.programs.program import Program, unknown_class_in
from calltape_analyzer.programs.reasons import (
    LeftOut,
    NotExported,
    RunFailed,
    SharesMemory,
)
from calltape_analyzer.pytree.description import has_module_keys
from calltape_analyzer.pytree.placeholder import LEFT_OUT
from calltape_analyzer.text import joined

__all__ = [
    "CallOrigin",
    "accepting_programs",
    "accepting_values",
    "no_variant",
    "serve",
]

CallOrigin: TypeAlias = "Literal['caller', 'exported', 'tape']"
"""Where a call comes from: a caller now, the exported tape, or a tape that may not be the exported
one."""

_TRIED = "the programs' attempts and missing tell what was tried"
_RECORDED: dict[CallOrigin, str] = {
    "exported": f"the export had this call, and made no program that takes it; {_TRIED}",
    "tape": "export this tape, which has the call; if these programs are of it already, none could "
    f"be made that takes the call: {_TRIED}",
}
"""What to do about a recorded call that no program accepts. Recording it again would not help."""


def accepting_programs(
    programs: Mapping[str, Program], call: SortedCall, ignored: Collection[str] = ()
) -> tuple[list[Program], dict[str, Rejection]]:
    """The programs that would accept a call, as far as that is known without its values and without
    running them, and for each other program why it would not.

    Args:
        programs: by name, in the order in which they are tried.
        call: the call.
        ignored: arguments to ignore (:meth:`Tape.remove_inputs`).
    """
    accepting: list[Program] = []
    reasons: dict[str, Rejection] = {}
    # The model would use such an argument, and no program knows how.
    passed = [name for name in call.layout.left_out if name not in ignored]
    left_out = LeftOut(tuple(passed)) if passed else None
    for program in programs.values():
        reason = left_out or program.rejects_call(call)
        if reason is None:
            accepting.append(program)
        else:
            reasons[program.name] = reason
    return accepting, reasons


def accepting_values(
    programs: Sequence[Program], call: SortedCall, sample: Sample, reasons: dict[str, Rejection]
) -> Iterator[tuple[Program, Sample]]:
    """The programs that accept the values of a call as well, each with the values in the layout of
    its variant.

    Args:
        programs: that accept the call without its values.
        call: the call.
        sample: its values.
        reasons: why a program rejects the values is added here, by the program's name.
    """
    for program in programs:
        program_sample = in_variant(program.variant, sample, call.key, call.row, program.device)
        rejection = program.rejects_values(program_sample)
        if rejection is None:
            yield program, program_sample
        else:
            reasons[program.name] = rejection


def serve(
    programs: Mapping[str, Program],
    call: SortedCall,
    sample: Sample,
    *,
    missing: Mapping[str, Fact],
    clone: bool,
    ignored: Collection[str] = (),
    origin: CallOrigin = "caller",
) -> tuple[Program, list[Any]]:
    """Runs a call through the first program that accepts it.

    Args:
        programs: by name, in the order in which they are tried.
        call: the call.
        sample: its values.
        missing: why variants have no program, by name; for the error.
        clone: whether the program gets copies of the tensors, because it may write to them.
        ignored: arguments to ignore (:meth:`Tape.remove_inputs`).
        origin: where the call comes from.

    Returns:
        The program, and its flat outputs.

    Raises:
        NoVariant: no program accepts it; says why not.
        Exception: an error of a program that does not concern its inputs.
    """
    accepting, reasons = accepting_programs(programs, call, ignored)
    for program, program_sample in accepting_values(accepting, call, sample, reasons):
        given = program_sample.cloned() if clone else program_sample
        # If it writes to the caller's tensors and fails, the next program needs the old values.
        must_restore = not clone and program is not accepting[-1] and program.model.has_state
        before = given.cloned() if must_restore else given
        try:
            return program, program.outputs(given)
        except Exception as error:
            if not is_of_inputs(error):
                raise
            restore(given, before)
            reasons[program.name] = RunFailed(failure_of(error))
    raise no_variant(
        "no program accepts these arguments", programs, call, reasons, missing, origin=origin
    )


def no_variant(
    text: str,
    programs: Mapping[str, Program],
    call: SortedCall,
    reasons: Mapping[str, Rejection],
    missing: Mapping[str, Fact],
    *,
    origin: CallOrigin = "caller",
) -> NoVariant:
    """The error that no program accepts a call, with what to do about it.

    Args:
        text: the error in words.
        programs: that were tried.
        call: the call.
        reasons: why each program rejects it.
        missing: why variants have no program, by name.
        origin: where the call comes from.
    """
    not_exported = {name: NotExported(why) for name, why in missing.items()}

    def distance(name: str) -> tuple[bool, bool, int]:
        """A key that sorts programs for the structure of the call first, then those that serve more
        than single sizes, then those with the same arguments."""
        program = programs.get(name)
        if program is None:
            return True, True, 0
        group = program.variant.group
        is_other = program.variant.row_in(call.key, call.row) is None
        is_narrow = program.is_constant or program.only_rows is not None
        return is_other, is_narrow, len(set(group.layout.nodes) ^ set(call.layout.nodes))

    ordered = sorted(reasons, key=distance)
    return NoVariant(
        text,
        {**{name: reasons[name] for name in ordered}, **not_exported},
        advice=_advice(programs, call, reasons, missing, origin),
    )


def _advice(
    programs: Mapping[str, Program],
    call: SortedCall,
    reasons: Mapping[str, Rejection],
    missing: Mapping[str, Fact],
    origin: CallOrigin,
) -> str:
    """What to do about a call that no program accepts."""
    if any(isinstance(reason, SharesMemory) for reason in reasons.values()):
        return "pass a copy of it, if a copy is meant"
    if any(unknown_class_in(p.variant.group, call, p.classes) for p in programs.values()):
        return "give load_programs the classes of your own"
    if any(map(has_module_keys, call.layout.nodes.values())):
        return "call them in programs.installed(model): the keys of a dict are modules of it"
    signature = call.signature
    foreign = [
        name
        for name in call.layout.nodes
        if name not in signature.by_name and not signature.is_of_variadic(name)
    ]
    if foreign and signature.variadic_keyword is None:
        return f"see whether it is the same model: the exported one takes no {joined(foreign, 3)}"
    if passed := call.layout.left_out:
        return f"call it without {joined(passed, 3)}, or export with what {LEFT_OUT} left out"
    if origin != "caller":
        return _RECORDED[origin]
    if any(program.knows_and_rejects(call) for program in programs.values()):
        return f"calls of these sizes were recorded, and none of the programs takes them; {_TRIED}"
    record_advice = "record calls like this one as well, and export again"
    if missing:
        names = joined([repr(name) for name in missing], 3)
        return f"if it is a call of {names}, {_TRIED}; if it is of none, {record_advice}"
    return record_advice
