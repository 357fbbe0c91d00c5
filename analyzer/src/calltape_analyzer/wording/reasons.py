"""Reasons why an export has no program, or no better one, and export attempts, as sentences."""

from __future__ import annotations

from calltape_analyzer.arguments.sizings import GROWTH
from calltape_analyzer.facts import Other
from calltape_analyzer.foreign_errors import ErrorKind, Raised
from calltape_analyzer.programs import reasons
from calltape_analyzer.programs.reasons import Sampled, Strategy, Tried
from calltape_analyzer.text import listed, printable
from calltape_analyzer.wording.notes import (
    draws_text,
    probe_option,
    state_advice,
    state_names,
)
from calltape_schema.remedies import Remedy

__all__ = ["WORDS"]

_MODEL = "the model itself"
_BEYOND = " (of an argument, the memory between and beyond its elements is on no tape)"
_WHYS = {
    reasons.Why.NOTHING_COMPARED: "nothing was compared: no recorded output has an element that is "
    "a number (record a call whose outputs have some)",
    reasons.Why.NOT_EXPORTED: "not exported",
    reasons.Why.NO_PROGRAM: "no program takes its sizes",
    reasons.Why.OUT_OF_SIGHT: "the model returns something else when it is called again with the "
    "same arguments, although its buffers and attributes were put back: it keeps state where no "
    "program has it, in a global, a closure, a class, deep in containers or in an object that is "
    "not plain Python (keep it in a registered buffer, or let the model take it as an argument and "
    "return it), or what it returns is left to chance",
    reasons.Why.OTHER_WITHOUT_CACHE: f"{_MODEL} returns other values with an empty cache",
    reasons.Why.LATE: "trying it would take too much of the export's time",
    reasons.Why.NO_TIME: "there was no time to try it",
    reasons.Why.TOO_LARGE: f"more than {GROWTH} times what was recorded",
    reasons.Why.UNMEASURED: "no run was measured",
    reasons.Why.OTHER_STRIDES: "tensors of these sizes have another layout in memory",
    reasons.Why.MODEL_IS_NAN: f"{_MODEL} returns NaN",
    reasons.Why.MODEL_NOT_FINITE: f"{_MODEL} returned NaN or infinity",
    reasons.Why.MODEL_VARIES: f"{_MODEL} returns something else each time",
    reasons.Why.MODEL_MAY_FAIL: f"{_MODEL} does not always run",
    reasons.Why.INEXACT: f"{_MODEL} is not more exact than the difference",
    reasons.Why.COINCIDENCE: "it is the same as the model with other values",
    reasons.Why.OTHER_RESULT: "the program returned something else than the model",
}
_ADVICE = {
    reasons.Advice.PAD: "pass padded sequences, and mask what follows them",
    reasons.Advice.KEEP_TENSOR: "keep it a tensor, or pass the number as an argument",
    reasons.Advice.USE_WHERE: "use torch.where or torch.cond, or leave the check out while "
    "torch.compiler.is_exporting()",
    reasons.Advice.MULTIPLY: "multiply by the mask instead of selecting",
    reasons.Advice.LOOP_OVER_SIZE: "the number of rounds has to be known: loop over a size",
}
_RANDOM = {
    reasons.RandomAdvice.VERIFY_AT_MODEL: "verify where the model is, after export: both are run "
    "from one state",
    reasons.RandomAdvice.OTHERS_DRAWN: "the program draws others, or in another order; pass them "
    "as an argument",
    reasons.RandomAdvice.CONSTANT: "the program has a number that was drawn at its export, as a "
    "constant; pass them as an argument",
}


def _cause(cause: reasons.Cause) -> str:
    why = cause.why
    if cause.kind is reasons.CauseKind.ERROR or not isinstance(why, Raised):
        return f"{why} (at {cause.place})"
    if cause.kind is reasons.CauseKind.NESTED_TENSOR:
        return (
            f"{why.error}: the model makes a nested tensor at {cause.place}, which torch.export "
            "does not trace (compute on values and offsets, or on padded tensors with a mask)"
        )
    needed = f"{why.error}: {why.sentence}: the model needs the value of a tensor at {cause.place}"
    return needed if cause.advice is None else f"{needed} ({_ADVICE[cause.advice]})"


def _end(fact: reasons.Ended) -> str:
    if fact.end is reasons.End.LATE:
        return f"took more than {fact.seconds:.0f} s, and was ended"
    if fact.end is reasons.End.NOT_TRIED:
        return "could not be tried in another process"
    when = "with an empty cache" if fact.empty_cache else "when that was tried"
    return f"ended its process {when}{f' ({fact.how})' if fact.how else ''}"


def _of_model(fact: reasons.OfModel) -> str:
    why = _end(fact.why) if isinstance(fact.why, reasons.Ended) else fact.why
    return f"{_MODEL}{', at recorded sizes' if fact.at_recorded else ''}: {why}"


def _time_up(fact: reasons.TimeUp) -> str:
    begin = "interrupted" if fact.interrupted else "not tried"
    return f"{begin}: the time of {fact.seconds:g} s for all was up"


def _too_slow(fact: reasons.TooSlow) -> str:
    took = "a run before it took" if fact.was_run else "would take"
    return f"{took} more than {fact.seconds:.0f} s"


def _too_much(fact: reasons.TooMuchMemory) -> str:
    python = "max_memory is" if fact.is_given else "without max_memory it is"
    granted = Remedy(python, "a run may take")
    return f"may take {_bytes(fact.needed)} of memory; {granted} {_bytes(fact.allowed)}"


def _bytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _state_needed(fact: reasons.StateNeeded) -> str:
    shown = "recorded calls in another order, or after more of them, would get something else"
    if fact.call is not None:
        shown = f"call {fact.call} is not reproduced"
    return (
        f"what the model returns depends on what the call before left in it "
        f"({state_names(fact.names)}), and the program does not keep that: {shown} "
        f"({state_advice(fact.has_state)}; if each recorded call began in one state, export the "
        "model in that)"
    )


def _untraceable(fact: reasons.Untraceable) -> str:
    names = printable(listed(list(fact.names)))
    if fact.kind is reasons.UntraceableKind.DATA_KEYS:
        return (
            f"{names} has a dict whose keys do not come back from call to call: they are data, as "
            "ids of requests are, and torch.export takes keys for structure. A program would take "
            "the calls of one set of keys only: give the model a forward that takes what stands "
            "in the dict as lists or tensors, and record that"
        )
    if fact.kind is reasons.UntraceableKind.NESTED:
        are = "is a nested tensor" if len(fact.names) == 1 else "are nested tensors"
        return (
            f"{names} {are}, and torch.export makes no program that takes one and can be run: give "
            "the model a forward that takes the values and the offsets and computes on them, or "
            "padded tensors with a mask, and record that"
        )
    if fact.kind is reasons.UntraceableKind.SPARSE:
        return (
            f"{names} of layout {printable(listed(list(fact.layouts)))} has no values on a tape, "
            "so that no program could be compared: call the model with a dense tensor, or with the "
            "indices and the values, and record that"
        )
    return (
        f"the model returns a nested tensor ({names}), and torch.export makes no program that "
        "makes one: compute on values and offsets, or on padded tensors with a mask, return these, "
        "and record that"
    )


_STRATEGIES = {
    Strategy.PLAIN: "",
    Strategy.OPEN_LENGTHS: "lengths of recurrent layers open",
    Strategy.GROWING_BUFFERS: "buffers may grow",
    Strategy.OPEN_SIZE_INTS: "ints of sizes open",
    Strategy.DEFERRED: "runtime asserts deferred",
    Strategy.OPEN_INTS: "ints of tensors open",
    Strategy.NOT_EMPTY: "results not empty",
    Strategy.OPEN_NUMBERS: "by its values, numbers of tensors open",
    Strategy.BY_VALUES: "by its values",
    Strategy.BY_VALUES_OPEN_INTS: "by its values, ints of tensors open",
    Strategy.BY_VALUES_DEFERRED: "by its values, runtime asserts deferred",
    Strategy.EVERY_ITEM: "loops over every item",
    Strategy.OPEN_FLOATS: "floats of sizes open",
    Strategy.UNNOTICED: "as if it were not traced",
    Strategy.BATCHED_EXPERTS: "experts as batched_mm",
    Strategy.FIRST_DIMENSIONS: "only first dimensions open",
    Strategy.ONE_SIZE: "for these sizes only",
    Strategy.MERGED: "one program for both",
    Strategy.NOT_TRACED: "not traced",
    Strategy.IN_A_ROW: "calls in a row",
    Strategy.COMPARED: "compared with the model",
    Strategy.BESIDE: "sizes beside those that were wrong",
}


def _tried(fact: Tried) -> str:
    sample = "" if fact.sample is None else str(fact.sample)
    return ", ".join(filter(None, [sample, _STRATEGIES[fact.strategy]]))


def _sampled(fact: Sampled) -> str:
    if not fact.sizes:
        return f"call {fact.call} as recorded"
    return f"call {fact.call} resized to {fact.sizes}"


WORDS = {
    Tried: _tried,
    Sampled: _sampled,
    Other: "{text}",
    Raised: lambda fact: (
        f"{fact.error}: {fact.said}" + _BEYOND * (ErrorKind.BEYOND_MEMORY in fact.kinds)
    ),
    reasons.Because: lambda fact: _WHYS[fact.why],
    reasons.Cause: _cause,
    reasons.OfCall: "call {call}: {why}",
    reasons.Unseen: "at unseen sizes: {why}",
    reasons.OfModel: _of_model,
    reasons.InState: lambda fact: (
        "the model itself returns something else now, because its calls change its state "
        f"({state_names(fact.names)}); from the state that it has now the program does the same"
    ),
    reasons.MaybeState: lambda fact: (
        f"{fact.difference}; maybe because the model has state ({state_names(fact.names)}) and "
        "was in another then"
    ),
    reasons.RandomDiffers: lambda fact: (
        f"random: {fact.difference} ({draws_text(fact.generators)}); {_RANDOM[fact.advice]}"
    ),
    reasons.TimeUp: _time_up,
    reasons.NotTried: "it was not tried ({why})",
    reasons.Ended: lambda fact: f"{fact.what or _MODEL} {_end(fact)}",
    reasons.SyntheticHarms: "call {call}: its values are not on the tape, and with synthetic ones "
    "the model does not finish: {how} (record values, or leave the call out)",
    reasons.TooSlow: _too_slow,
    reasons.TooMuchMemory: _too_much,
    reasons.RecordedOnly: lambda fact: f"only recorded sizes are run ({probe_option(fact.probe)})",
    reasons.PointsInto: "values of {name} point into it",
    reasons.RaisedType: lambda fact: (
        f"{_MODEL if fact.is_model else 'the program'} raised {fact.error}"
    ),
    reasons.UntriedSize: "{sizes}: {why}",
    reasons.Untraceable: _untraceable,
    reasons.StateNeeded: _state_needed,
    reasons.DrawnByPython: lambda fact: (
        f"random: {draws_text(fact.generators)}, and what it returns depends on them; a program "
        "cannot draw from the generators of Python and numpy (draw with torch, or pass them as an "
        "argument)"
    ),
    reasons.Fault: "a fault of calltape, which is worth a report: {why}",
    reasons.MostPrograms: "a variant gets at most {most} programs",
    reasons.EachAlone: "each of them would need a program of its own, and {most} have one",
    reasons.ValuesLeft: "{left} of {calls} calls; the model does something else for each value, "
    "and a variant gets at most {most} programs",
    reasons.ConstantsLeft: "{left} of {values} values: a variant gets at most {most}",
    reasons.ValuesRejected: "call {call} has the sizes of another call, and values that no program "
    "takes",
}
