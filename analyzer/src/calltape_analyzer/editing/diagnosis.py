"""Everything that is wrong or unwise about a tape, in words, with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from calltape_analyzer.editing.contents import Contents, contents_of
from calltape_analyzer.editing.evidence_symptoms import evidence_symptoms
from calltape_analyzer.editing.storage_symptoms import storage_symptoms
from calltape_analyzer.editing.symptom import Symptom
from calltape_analyzer.plain_data import PlainData
from calltape_analyzer.reading.call import advice_on_outputs
from calltape_analyzer.reading.damage import RepeatedCallsError
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, listed, printable, some_of
from calltape_analyzer.writing.coverage import DAMAGED

__all__ = ["Diagnosis", "diagnose", "symptoms_of"]

_MAX_NAMED = 5


class Diagnosis(PlainData):
    """What was found on a tape. ``str()`` of it is text for people.

    Attributes:
        calls: how many calls were looked at.
        symptoms: the most serious first.
    """

    calls: int
    symptoms: tuple[Symptom, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is nothing but notes."""
        return all(symptom.level == "note" for symptom in self.symptoms)

    def __str__(self) -> str:
        if not self.symptoms:
            return f"{counted(self.calls, 'call')}: nothing wrong was found"
        return "\n".join(map(str, self.symptoms))


_ORDER: dict[Literal["error", "warning", "note"], int] = {"error": 0, "warning": 1, "note": 2}


def diagnose(tape: Tape) -> Diagnosis:
    """Looks for everything that is wrong or unwise about a tape. Reads all of it, and compares
    every tensor with its checksum.

    Raises:
        UsageError: this is no tape.
    """
    check_tape(tape, "diagnose")
    found = contents_of(tape)
    return Diagnosis(calls=found.calls, symptoms=tuple(symptoms_of(tape, found)))


def symptoms_of(tape: Tape, found: Contents | None) -> list[Symptom]:
    """What is wrong or unwise, the most serious first.

    Args:
        tape: the tape.
        found: its contents; None if only its files are to be looked at.
    """
    symptoms = [*_file_symptoms(tape), *_lost_symptoms(tape)]
    if found is not None:
        symptoms += _content_symptoms(found)
        if found.calls:
            symptoms += evidence_symptoms(tape)
    return sorted(symptoms, key=lambda symptom: _ORDER[symptom.level])


def _file_symptoms(tape: Tape) -> Iterator[Symptom]:
    """What is wrong with the files."""
    repeated = sum(segment.left_out for segment in tape.segments)
    twice = [error for error in tape.damage if "same number" in error.reason]
    copies = [error for error in tape.damage if isinstance(error, RepeatedCallsError)]
    repeats = {id(error) for error in (*twice, *copies)}
    others = [error for error in tape.damage if id(error) not in repeats]
    if others:
        yield Symptom(
            kind="damage",
            level="error",
            text=f"{counted(len(others), 'place')} damaged: "
            + some_of([error.reason for error in others], _MAX_NAMED, "; "),
            advice="copy the file again from where it came, or take what is left with "
            "`calltape recover`",
        )
    if repeated or twice or copies:
        numbers = f"{counted(repeated, 'call')} of the other files" if repeated else "some calls"
        yield Symptom(
            kind="duplicates",
            level="error",
            text=f"{numbers} have numbers that another call of the same recording has; each number "
            "counts once",
            advice="open only one of the copies",
        )
    unsealed = [s.path for s in tape.segments if s.end is None and not s.is_ahead]
    if unsealed:
        rest = f", with {tape.unfinished} bytes of unfinished calls" * bool(tape.unfinished)
        yield Symptom(
            kind="unsealed",
            level="warning",
            text=f"{counted(len(unsealed), 'file')} not sealed{rest}: its process still records, "
            "was killed, or the file was cut off",
            advice="close the recorder, or seal what is there with `calltape recover`",
        )
    for recording, numbers_ in tape.missing_files.items():
        shown = some_of([str(number) for number in numbers_], _MAX_NAMED)
        yield Symptom(
            kind="missing_files",
            level="warning",
            text=f"of recording {recording.hex()[:8]}, the files numbered {shown} are not here",
            advice="open all files of the recording together",
        )


def _lost_symptoms(tape: Tape) -> Iterator[Symptom]:
    lost = tape.coverage.lost
    unknown = {k: lost.pop(k) for k in list(lost) if k.startswith("unknown")}
    damaged = {k: lost.pop(k) for k in list(lost) if k == DAMAGED}
    should = "of the traffic should be on the tape, and nobody left them out"
    for reasons, what, advice in (
        (lost, should, "give the recorder a larger queue or disk; docs/production.md says how"),
        (damaged, should, "they could not be read when this tape was made; copy the tape that it "
         "was made of again from where it came"),
        (unknown, "missing, and nobody knows what became of them",
         "open the files that have them too, if there are any"),
    ):  # fmt: skip
        if reasons:
            yield Symptom(
                kind="lost",
                level="warning",
                text=f"{counted(sum(reasons.values()), 'call')} {what}: "
                + some_of([f"{calls} {printable(k)}" for k, calls in reasons.items()], 8),
                advice=advice,
            )
    ends = [segment.end for segment in tape.segments if segment.end is not None]
    if any(end.coverage.at_least for end in ends):
        yield Symptom(
            kind="open_end",
            level="warning",
            text="it was made of a tape without an end: a last call may have been torn, and how "
            "many calls followed is not known",
            advice="copy the tape that it was made of again from where it came, if it is whole "
            "there",
        )
    if tape.under_way:
        numbers = some_of([str(call.number) for call in tape.under_way], _MAX_NAMED)
        yield Symptom(
            kind="under_way",
            level="warning",
            text=f"the process died within a call, or is still in it: {numbers}",
            advice="`calltape show` has its inputs; replay it to find out why",
        )


def _content_symptoms(found: Contents) -> Iterator[Symptom]:
    if not found.calls:
        yield Symptom(
            kind="empty", level="warning", text="there are no calls",
            advice="check that the recorder was attached to what is really called",
        )  # fmt: skip
        return
    if found.raised == found.calls:
        yield Symptom(
            kind="all_raised", level="warning", text="every call raised",
            advice="record calls that succeed; these show only what the model refuses",
        )  # fmt: skip
    if found.outputs_missing:
        calls = sum(found.outputs_missing.values())
        reasons = some_of([printable(reason) for reason in found.outputs_missing], _MAX_NAMED)
        yield Symptom(
            kind="outputs_missing",
            level="note",
            text=f"{counted(calls, 'call')} without outputs, or without a part of them ({reasons})",
            advice=advice_on_outputs(found.outputs_missing),
        )
    if found.withheld:
        yield Symptom(
            kind="values_missing",
            level="note",
            text=f"{counted(found.withheld, 'tensor')} without values, which were not wanted",
            advice="a replay makes values up for them, and compares no value; record with "
            "values='all' to compare values",
        )
    if found.unknown:
        yield Symptom(
            kind="unknown_classes",
            level="note",
            text=f"classes that are unknown here: {listed(sorted(found.unknown))}",
            advice="pass open_tape(path, classes=[...]), or import the library that has them; "
            "until then placeholders stand for their objects",
        )
    yield from storage_symptoms(found)
