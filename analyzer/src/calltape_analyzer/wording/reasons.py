"""Notes on programs, reasons why an export has none, or no better one, and export attempts, as
sentences."""

from __future__ import annotations

from itertools import zip_longest

from calltape_analyzer.arguments.sizings import GROWTH
from calltape_analyzer.facts import Other, OtherNote
from calltape_analyzer.foreign_errors import ErrorMeaning, Raised
from calltape_analyzer.programs import notes, reasons
from calltape_analyzer.programs.reasons import Sampled, Tried
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.reading.selection import outside_words
from calltape_analyzer.text import counted, joined, listed, printable, some_of, variant_names
from calltape_schema.remedies import Remedy

__all__ = ["WORDS", "draws_text"]

_MAX_SHOWN = 4
"""How many names a note lists."""
_HAS_STATE = "the model has state that its calls change"
_QUESTIONS = {
    notes.Question.STRIDES: "whether the model reads how its arguments lie in memory is unknown, "
    "and its programs get contiguous copies of calls of any layout",
    notes.Question.KEY_ORDER: "whether the model reads the order of the keys of its dicts is "
    "unknown, and its programs take any order",
}


def _state_names(names: tuple[str, ...]) -> str:
    """Names of a model's state, shortened if there are many."""
    return some_of(names, _MAX_SHOWN)


def draws_text(generators: tuple[str, ...]) -> str:
    """A clause that a model draws random numbers, with the names of the generators."""
    owners = joined(["Python's random" if owner == "random" else owner for owner in generators], 4)
    return f"the model draws random numbers with {owners}"


def _state_advice(has_state: bool) -> str:
    """Advice on how to keep state in a program."""
    as_argument = "let the model take it as an argument and return it"
    return f"keep it in a registered buffer, or {as_argument}" if has_state else as_argument


def _probe_option(probe: str) -> Remedy:
    """The ``probe`` option as the user would write it."""
    return Remedy(f"probe={probe!r}", f"--probe {probe}")


def _state_kept(note: notes.StateKept) -> str:
    return (
        f"{_HAS_STATE} ({_state_names(note.names)}); the program changes it as well, so that each "
        "call begins where the one before ended; recorded calls were compared from the state at "
        "the export, one by one and in order (export the model in the state in which the "
        "recording began)"
    )


def _state_lost(note: notes.StateLost) -> str:
    pairs = zip_longest(note.names, note.values[: len(note.names)], fillvalue="")
    shown = _state_names(tuple(f"{name}={value}" if value else name for name, value in pairs))
    is_constant = (
        "and the program does not: it is a constant of the program, as it was at the export"
        if note.has_state
        else "and the program has none: each call begins with the state at the export"
    )
    follows = f" ({_state_advice(note.has_state)})"
    if note.depends:
        follows = (
            ", although what the model returns in the next calls depends on it: only calls that "
            f"begin in that state are right{follows}"
        )
    elif note.depends is not None:
        follows = "; what the model returned in calls in a row did not depend on it"
    return f"{_HAS_STATE} ({shown}) {is_constant}{follows}"


def _unwritten(note: notes.Unwritten) -> str:
    what = f"leaves {note.name} as it was, which the model changes in place"
    returned = " and returns: calls through calltape write the result there" * note.is_returned
    return f"{what}{returned}"


def _shared_memory(note: notes.SharedMemory) -> str:
    share, copies = ("shares", "a copy") if len(note.outputs) == 1 else ("share", "copies")
    return (
        f"the model's {joined(note.outputs, _MAX_SHOWN)} {share} memory with {note.name}; the "
        f"program may return {copies}, so that later writes to {note.name} do not show there"
    )


def _why_only(note: notes.WhyOnly) -> str:
    if note.kind is notes.WhyNotOthers.CONDITIONS:
        return "it has conditions that cannot be checked here"
    if note.kind is notes.WhyNotOthers.FAILED:
        return f"{note.runtime} failed at {note.sizes} sizes that it should take"
    if note.kind is notes.WhyNotOthers.OTHER_MODEL:
        return f"at {note.sizes} recorded sizes {_NOT_AS_NOW}"
    wrong = f"{note.sizes} recorded sizes"
    if note.kind is notes.WhyNotOthers.WRONG_UNSEEN:
        wrong = f"{note.sizes} of {note.tried} sizes that were never recorded"
    return f"it returned wrong values at {wrong}"


_NOT_AS_NOW = "what was recorded is not what the model returns now"


def _excluded(note: notes.Excluded) -> str:
    why = _NOT_AS_NOW if note.is_unlike else "the model does something else there"
    return f"does not take a size of {note.size} for {', '.join(note.names)}: {why}"


def _constant_texts(note: notes.ConstantTexts) -> str:
    lengths = ""
    if note.shortest is not None:
        lengths = f" (texts of lengths {note.shortest}..{note.longest})"
        if note.shortest == note.longest:
            lengths = f" (texts of length {note.shortest})"
    return (
        f"{', '.join(note.names)} varies from call to call and is a constant of it: that of one "
        f"call; {note.tried} of {note.values} recorded values{lengths} were tried and make no "
        "difference; others are served too, and nothing was shown of them"
    )


def _probed(note: notes.Probed) -> str:
    tried = f"tried at {counted(note.sizes, 'unrecorded size')}"
    if note.sizes and note.probe == "near":
        tried += f", none more than {GROWTH} times as large"
    return f"{tried} ({_probe_option(note.probe)}){_came_to(note)}"


def _came_to(note: notes.Probed) -> str:
    """The results at unrecorded sizes; empty if other notes cover them."""
    if not note.sizes and not note.varied:
        return ": none varied in the recorded calls"
    if not note.sizes:
        declined = f": the model itself raised an error at {counted(note.declined, 'size')}"
        return declined if note.declined else ""
    if note.agreed == note.sizes:
        return ": the same as the model"
    parts = [f"the same as the model at {note.agreed}"]
    if untried := note.sizes - note.agreed - note.wrong:
        parts.append(f"rejected or failed at {untried}")
    if note.wrong:
        parts.append(f"other values at {note.wrong}")
    return f": {', '.join(parts)}"


def _takes_zero(note: notes.TakesZero) -> str:
    how = "outputs have no elements there; their dtypes and shapes are the model's"
    if note.has_values:
        how = "outputs were compared with the model's"
    return f"takes a size of 0 for {', '.join(note.names)}: {how}"


def _merge_cost(note: notes.MergeCost) -> str:
    without = Remedy("; ExportOptions(merge='never') makes the same programs without it", "")
    shown = some_of(note.names, 2)
    return f"one program for {shown} was tried in vain, for {note.seconds} s{without}"


def _merge_rejects(note: notes.MergeRejects) -> str:
    without = Remedy(
        "; ExportOptions(merge='never') makes a program for each, which may accept them", ""
    )
    return (
        f"the one program for {some_of(note.names, 2)} rejects sizes that the model accepts"
        f"{without}"
    )


def _other_model(note: notes.OtherModel) -> str:
    are = "call" if len(note.calls) == 1 else "calls"
    calls = some_of(list(dict.fromkeys(note.calls)), 4)
    reasons = [
        f"the model does not return what was recorded for {are} {calls} "
        f"({note.difference}): it has other weights, or another seed, mode or state"
    ]
    if note.outside:
        reasons.append(outside_words(note.outside))
    if note.asked:
        reasons.append(
            f"its code asks for {joined(note.asked, 5)}, and may have got another answer in the "
            "recording"
        )
    return "; ".join(reasons)


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
        f"({_state_names(fact.names)}), and the program does not keep that: {shown} "
        f"({_state_advice(fact.has_state)}; if each recorded call began in one state, export the "
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
    OtherNote: "{text}",
    notes.OneSize: "for the sizes of one recorded call only: its dimensions are constants",
    notes.ByValues: "was traced with the values of one call: calls with others may be rejected",
    notes.StateKept: _state_kept,
    notes.StateLost: _state_lost,
    notes.Unwritten: _unwritten,
    notes.OtherStrides: "returns {output} {got} in memory where it was recorded {wanted}: its "
    "values are compared, its strides are not",
    notes.SharedMemory: _shared_memory,
    notes.Draws: lambda note: (
        f"random: {draws_text(note.generators)}, so no tape has what a later call returns; its "
        "calls were compared with the model, both from one state of the generators"
    ),
    notes.NotDrawn: lambda note: (
        f"random: {draws_text(note.generators)}; what it returned was the same with the smallest, "
        "the largest and other numbers, so its programs draw none of them"
    ),
    notes.WhyOnly: _why_only,
    notes.ServesOnly: lambda note: (
        f"serves {counted(note.sizes, 'recorded size')} only: {note.why}"
    ),
    notes.ServesSome: "serves {sizes} of {of} recorded sizes of its variant",
    notes.Excluded: _excluded,
    notes.FailsAt: lambda note: (
        f"{note.runtime} fails at {'; '.join(note.sizes)}, and raises an error there"
    ),
    notes.NotCompared: "not verified: {what}",
    notes.ComesAsPlaceholder: "a {type_name} comes as a placeholder: {reason}",
    notes.ReturnsPlaceholders: lambda note: (
        f"returns placeholders for {', '.join(note.classes)}, not known here"
    ),
    notes.OfProgram: "{program}: {note}",
    notes.ConstantTensor: "{place} is a constant of it: calls with another value of it are "
    "rejected",
    notes.ConstantTexts: _constant_texts,
    notes.OpenFloats: lambda note: (
        f"takes any value of {', '.join(note.names)}, as a float64 tensor without dimensions: "
        f"{note.tried} of {note.values} recorded values were tried"
    ),
    notes.UnreadInputs: lambda note: (
        f"nothing of it depends on the values of {joined(note.names, _MAX_SHOWN)}"
    ),
    notes.EmptyAgrees: "if nothing is found it goes on where the model stops early: with what "
    "values select made empty, it returned what the model returned",
    notes.TracedInTraining: "was exported in training mode, in which its calls were recorded: if "
    "that is not meant, call eval() before recording",
    notes.ModelInTraining: "the model is in training mode; where its calls were recorded in "
    "evaluation mode, it was run and exported in that",
    notes.Probed: _probed,
    # How many sizes a proof has time for depends on the machine; the verdict counts them.
    notes.Untried: lambda note: (
        f"not tried: {note.first}" + (f", and {note.more} more" if note.more else "")
    ),
    notes.EveryItem: "loops over what is hit run for every item; recorded calls allow it",
    notes.TracedUnseen: "traced at sizes that were not recorded",
    notes.TakesZero: _takes_zero,
    notes.MergeCost: _merge_cost,
    notes.MergeRejects: _merge_rejects,
    notes.OwnTensor: "the model returns something else if {place} is its own {own}, or a part of "
    "it: such calls are refused where the model is, and no tape tells them from others",
    notes.SeveralLayouts: lambda note: (
        f"calls have {joined(note.names, 5)} in several layouts in memory: these programs take all "
        "of them, and a package of AOTInductor only that of its example"
    ),
    notes.AskedModes: lambda note: (
        f"the model asks for the {' and '.join(note.modes)} mode of its caller and returns "
        "something else: calls with and without it have programs of their own"
    ),
    notes.KeyOrders: lambda note: (
        f"the model reads the order of the keys of {joined(note.names, 5)}: a program takes the "
        "order that it was traced with"
    ),
    notes.StridesRead: lambda note: (
        f"the model reads the strides of {joined(note.names, 5)}: a program takes the layout in "
        "memory that it was traced with"
    ),
    notes.GradsRead: lambda note: (
        f"the model may read requires_grad of {joined(note.names, 5)}: a program takes tensors of "
        "which it is as in the calls that it was traced for"
    ),
    notes.AskedFacts: lambda note: (
        f"the model's code asks for {joined(note.asked, 5)}: a program does not get this from its "
        "arguments, and calltape did not test whether results depend on it"
    ),
    notes.NotAsked: lambda note: f"{note.variant}: {_QUESTIONS[note.question]}: {note.why}",
    notes.OtherModel: _other_model,
    notes.ValuesUnchecked: lambda note: (
        f"{variant_names(note.programs, _MAX_SHOWN)}: only a run checks guards on values of "
        "tensors, and may reject calls that are accepted here"
    ),
    Tried: _tried,
    Sampled: _sampled,
    Other: "{text}",
    Raised: lambda fact: (
        f"{fact.error}: {fact.said}" + _BEYOND * (ErrorMeaning.BEYOND_MEMORY in fact.kinds)
    ),
    reasons.Because: lambda fact: _WHYS[fact.why],
    reasons.Cause: _cause,
    reasons.OfCall: "call {call}: {why}",
    reasons.Unseen: "at unseen sizes: {why}",
    reasons.OfModel: _of_model,
    reasons.InState: lambda fact: (
        "the model itself returns something else now, because its calls change its state "
        f"({_state_names(fact.names)}); from the state that it has now the program does the same"
    ),
    reasons.MaybeState: lambda fact: (
        f"{fact.difference}; maybe because the model has state ({_state_names(fact.names)}) and "
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
    reasons.RecordedOnly: lambda fact: f"only recorded sizes are run ({_probe_option(fact.probe)})",
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
