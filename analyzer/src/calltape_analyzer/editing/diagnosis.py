"""``diagnose``: everything that is wrong or unwise about a tape, with advice.

One pass over the calls counts what they lack. Symptoms are about corrupted or missing files, lost
calls, values that could not be stored, and sizes that were never recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from calltape_analyzer.editing.omission import shown_path
from calltape_analyzer.errors import RepeatedCallsError, is_damage
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.memory_layout import layouts_in_words
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.plain_data import PlainData, Text
from calltape_analyzer.pytree.classes import is_never_made
from calltape_analyzer.pytree.nodes import is_nested_node, nodes_with_paths
from calltape_analyzer.pytree.placeholder import LEFT_OUT, UNKNOWN_CLASS
from calltape_analyzer.reading.call import advice_on_outputs
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import (
    GOES_ON,
    counted,
    listed,
    merge_alike,
    printable,
    some_of,
    variant_names,
)
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.drop_reasons import UNKNOWN, DropReason, reason_text
from calltape_schema.errors import TapeError
from calltape_schema.recent import Recent
from calltape_schema.records import Tree
from calltape_schema.remedies import Remedy
from calltape_schema.tree import CustomNode, EnumNode, FieldsNode, OpaqueNode, TensorNode

__all__ = ["Contents", "Diagnosis", "Symptom", "contents_of", "diagnose", "symptoms_of"]

_MAX_NAMED = 5
_MAX_REASONS = 100
_MAX_PLACES = 100
_MAX_CLASSES = 1000


class Symptom(PlainData):
    """One thing that is wrong or unwise about a tape. ``str()`` of it is text for people.

    Attributes:
        kind: a stable code: ``damage``, ``duplicates``, ``unsealed``, ``continues``,
            ``missing_files``, ``lost``, ``open_end``, ``under_way``, ``empty``, ``all_raised``,
            ``one_size``, ``one_call``, ``batch_one``, ``layouts``, ``outputs_missing``,
            ``values_missing``, ``unknown_classes``, ``classes_not_made``, ``classes_not_stored``,
            ``values_not_stored``, ``tensors_not_stored``.
        level: ``error`` if calls cannot be trusted or read, ``warning`` if results from the tape
            may be wrong or incomplete, ``note`` for other things that you should know.
        text: the problem.
        advice: what to do.
    """

    kind: str
    level: Literal["error", "warning", "note"]
    text: Text
    advice: Text

    def __str__(self) -> str:
        advice = self.advice[:1].upper() + self.advice[1:]
        return f"{self.level}: {printable(self.text)}. {advice}."


class Diagnosis(PlainData):
    """What was found on a tape. ``str()`` of it is text for people.

    Attributes:
        calls: how many calls were examined.
        symptoms: the most serious first.
    """

    calls: int
    symptoms: tuple[Symptom, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are only notes."""
        return all(symptom.level == "note" for symptom in self.symptoms)

    def __str__(self) -> str:
        if not self.symptoms:
            return f"{counted(self.calls, 'call')}: nothing wrong was found"
        return "\n".join(map(str, self.symptoms))


@dataclass
class Contents:
    """What the calls of a tape have and lack.

    Attributes:
        calls: how many calls are intact.
        raised: how many of them raised.
        outputs_missing: how many calls lack outputs, by reason.
        omitted_tensors: how many tensors have no value because the policy omits it.
        unknown_classes: the classes that this process does not know or does not allow.
        missing_objects: places of objects and values that the recorder could not store, by reason.
        missing_tensors: places of tensors whose values it could not store, by reason.
    """

    calls: int = 0
    raised: int = 0
    outputs_missing: Counter[str] = field(default_factory=Counter)
    omitted_tensors: int = 0
    unknown_classes: set[str] = field(default_factory=set)
    missing_objects: dict[str, dict[str, None]] = field(default_factory=dict)
    missing_tensors: dict[str, dict[str, None]] = field(default_factory=dict)


@bounded()
def diagnose(tape: Tape) -> Diagnosis:
    """Looks for everything that is wrong or unwise about a tape. Reads all of it, and compares
    every tensor with its checksum.

    Raises:
        UsageError: this is not a tape.
    """
    check_tape(tape, "diagnose")
    contents = contents_of(tape)
    return Diagnosis(calls=contents.calls, symptoms=tuple(symptoms_of(tape, contents)))


def symptoms_of(tape: Tape, contents: Contents | None) -> list[Symptom]:
    """What is wrong or unwise, the most serious first.

    Args:
        tape: the tape.
        contents: its contents; None to look only at its files.
    """
    symptoms = [*_of_files(tape), *_of_lost_calls(tape)]
    if contents is not None:
        symptoms += _of_contents(contents)
        if contents.calls:
            symptoms += [*_of_missing_values(contents), *_of_evidence(tape)]
    return sorted(symptoms, key=lambda symptom: ("error", "warning", "note").index(symptom.level))


def contents_of(tape: Tape, *, check: bool = True) -> Contents:
    """Reads the calls of a tape, without corrupted ones.

    Args:
        tape: the tape.
        check: whether to compare each tensor with its checksum.
    """
    contents = Contents()
    visited = Recent()
    for call in tape.calls:
        try:
            if check:
                call.check(entries=True)
            record = call.record
        except TapeError as error:
            if not is_damage(error):
                raise
            continue  # the tape's damage lists it
        contents.calls += 1
        contents.raised += record.error is not None
        if record.outputs_missing is not None or (record.outputs is None and record.error is None):
            reason, reasons = (
                record.outputs_missing or "no reason is given",
                contents.outputs_missing,
            )
            if reason in reasons or len(reasons) < _MAX_REASONS:
                reasons[reason] += 1
        for tree, root in ((record.inputs, ""), (record.outputs, "outputs")):
            if tree is None:
                continue
            contents.omitted_tensors += sum(leaf.missing == "policy" for leaf in tree.facts())
            key = (tree.structure, tree.leaves, root, record.tape)
            size = len(tree.structure) + len(tree.leaves)
            visited.once(key, partial(_add_missing, contents, tree, root, tape), size)
    return contents


def _add_missing(contents: Contents, tree: Tree, root: str, tape: Tape) -> None:
    """Adds unknown classes, and the values that the recorder could not store."""
    facts = tree.facts()
    for path, node in nodes_with_paths(tree.spec().root, root):
        if isinstance(node, FieldsNode | CustomNode | EnumNode):
            is_known = tape.class_index.get(node.type) is not None or is_nested_node(node)
            if not is_known and len(contents.unknown_classes) < _MAX_CLASSES:
                contents.unknown_classes.add(node.type)
            continue
        name = shown_path(path, tape.signature)
        if isinstance(node, OpaqueNode) and node.reason != "policy":
            _add_place(contents.missing_objects, node.reason, f"{name} ({node.type})")
        elif isinstance(node, TensorNode):
            reason = facts[node.leaf].missing
            if reason is not None and reason != "policy":
                _add_place(contents.missing_tensors, reason, name)


def _add_place(places_by_reason: dict[str, dict[str, None]], reason: str, place: str) -> None:
    if reason in places_by_reason or len(places_by_reason) < _MAX_REASONS:
        places = places_by_reason.setdefault(reason, {})
        if len(places) < _MAX_PLACES:
            places[place] = None


def _symptom(
    level: Literal["error", "warning", "note"], kind: str, text: str, advice: str | Remedy
) -> Symptom:
    return Symptom(kind=kind, level=level, text=text, advice=str(advice))


_error, _warning, _note = (partial(_symptom, level) for level in ("error", "warning", "note"))


def _of_files(tape: Tape) -> Iterator[Symptom]:
    repeated = sum(segment.left_out for segment in tape.segments)
    copies = [error for error in tape.damage if isinstance(error, RepeatedCallsError)]
    errors = [error for error in tape.damage if not isinstance(error, RepeatedCallsError)]
    if errors:
        yield _error(
            "damage",
            f"{counted(len(errors), 'place')} corrupted: "
            + some_of([error.reason for error in errors], _MAX_NAMED, "; "),
            "copy the file again from its source, or save the rest with `calltape recover`",
        )
    if repeated or copies:
        numbers = f"{counted(repeated, 'call')} of the other files" if repeated else "some calls"
        yield _error(
            "duplicates",
            f"{numbers} have the number of another call of the same recording; each number counts "
            "once",
            "open only one of the copies",
        )
    unsealed = [s.path for s in tape.segments if s.end is None and not s.is_ahead]
    if unsealed:
        unfinished = f", with {tape.unfinished} bytes of unfinished calls" * bool(tape.unfinished)
        yield _warning(
            "unsealed",
            f"{counted(len(unsealed), 'file')} not sealed{unfinished}: its process still "
            "records or was killed, or the file was truncated",
            "close the recorder, or seal the file with `calltape recover`",
        )
    elif tape.continues:
        yield _warning(
            "continues",
            f"each file is sealed, but {GOES_ON}",
            "close the recorder, or also open the later files",
        )
    for recording, file_numbers in tape.missing_files.items():
        shown = some_of([str(number) for number in file_numbers], _MAX_NAMED)
        yield _warning(
            "missing_files",
            f"the files numbered {shown} of recording {recording.hex()[:8]} are missing",
            "open all files of the recording together",
        )


def _of_lost_calls(tape: Tape) -> Iterator[Symptom]:
    lost = tape.coverage.lost
    unknown = {k: lost.pop(k) for k in list(lost) if k in UNKNOWN}
    damaged = {k: lost.pop(k) for k in list(lost) if k == DropReason.DAMAGED}
    later = {k: lost.pop(k) for k in list(lost) if k == DropReason.LATER}
    were_lost = "of the traffic were lost"
    again = "copy the original tape again from its source"
    for reasons, what, advice in (
        (lost, were_lost, "give the recorder a larger queue or disk; docs/production.md says how"),
        (damaged, were_lost, f"the calls were unreadable when this tape was made; {again}"),
        (later, were_lost, "upgrade calltape-analyzer, then make this tape again"),
        (unknown, "missing for an unknown reason",
         "also open the files that have them, if you have these files"),
    ):  # fmt: skip
        if reasons:
            shown = some_of([f"{n} {reason_text(k)}" for k, n in reasons.items()], 8)
            yield _warning(
                "lost", f"{counted(sum(reasons.values()), 'call')} {what}: {shown}", advice
            )
    if any(segment.end and segment.end.coverage.at_least for segment in tape.segments):
        yield _warning(
            "open_end",
            "it was made of a tape without an end: its last call may have been incomplete, and an "
            "unknown number of calls may have followed",
            f"{again}, if it is complete there",
        )
    if tape.under_way:
        numbers = some_of([str(call.number) for call in tape.under_way], _MAX_NAMED)
        yield _warning(
            "under_way",
            f"the process died during a call, or is still running it: {numbers}",
            "look at its inputs with `calltape show`, and replay it to find out why",
        )


def _of_contents(contents: Contents) -> Iterator[Symptom]:
    """What is missing because it never happened, or was not wanted."""
    if not contents.calls:
        yield _warning(
            "empty",
            "there are no calls",
            "check that the recorder is attached to the object that the application calls",
        )
        return
    if contents.raised == contents.calls:
        yield _warning(
            "all_raised",
            "every call raised",
            "record calls that succeed; these only show what the model rejects",
        )
    if contents.outputs_missing:
        calls = counted(sum(contents.outputs_missing.values()), "call")
        yield _note(
            "outputs_missing",
            f"{calls} without some or all outputs ({_shown_calls(contents.outputs_missing)})",
            advice_on_outputs(contents.outputs_missing),
        )
    if contents.omitted_tensors:
        tensors = counted(contents.omitted_tensors, "tensor")
        yield _note(
            "values_missing",
            f"{tensors} without values, as the recorder was asked to",
            "a replay uses synthetic values for them, and compares no values; record the values "
            "too to compare them",
        )
    never_rebuilt = {name for name in contents.unknown_classes if is_never_made(name)}
    if unknown := contents.unknown_classes - never_rebuilt:
        yield _note(
            "unknown_classes",
            f"classes that are unknown here: {listed(sorted(unknown))}",
            Remedy(
                "pass open_tape(path, classes=[...]), or import transformers for its own",
                "variants, export, replay and minimise take --classes MODULE:CLASS",
            ).then(
                "; a model brings the dataclasses and named tuples of its package; until then "
                "placeholders stand for their objects"
            ),
        )
    if never_rebuilt:
        yield _note(
            "classes_not_made",
            f"classes that are never rebuilt: {listed(sorted(never_rebuilt))}",
            "placeholders stand for their objects; pass the content of the object to the model in "
            "a dict or a class of your own, and record again",
        )


_PLACEHOLDER = (
    "a placeholder stands for each: replay cannot compare it, and fails if the model reads it"
)


def _of_missing_values(contents: Contents) -> Iterator[Symptom]:
    """Values that the recorder could not store, such as objects of unknown classes, long texts and
    sparse tensors."""
    missing = dict(contents.missing_objects)
    classes = missing.pop(UNKNOWN_CLASS, None)
    if classes:
        yield _warning(
            "classes_not_stored",
            "objects of unknown classes were not stored: " + _shown_calls(classes),
            f"{_PLACEHOLDER}; register the class with torch.utils._pytree.register_pytree_node "
            "(docs/classes.md), or pass the tensors of the object to the model, and record again",
        )
    if missing:
        yield _warning(
            "values_not_stored",
            f"values that a tape cannot hold were not stored: {_by_reason(missing)}",
            f"{_PLACEHOLDER}; pass something shorter or simpler and record again; an argument that "
            f"the model does without can be left out with {LEFT_OUT}",
        )
    sparse = {k: v for k, v in contents.missing_tensors.items() if "sparse" in k}
    dense = {k: v for k, v in contents.missing_tensors.items() if k not in sparse}
    for tensors, leaves, to_do in (
        (sparse, "sparse", "(x.to_dense()), or with the indices and the values of the sparse one,"),
        (dense, "some", "of a plain dtype in memory,"),
    ):
        if tensors:
            yield _warning(
                "tensors_not_stored",
                f"the values of {leaves} tensors could not be stored: {_by_reason(tensors)}",
                "the tape has only their shapes, and replay cannot compare their values; call "
                f"the model with a dense tensor {to_do} and record again",
            )


def _by_reason(missing: Mapping[str, Iterable[str]]) -> str:
    """``layout sparse_coo: adjacency; ...``."""
    parts = [f"{printable(reason)}: {_shown_calls(places)}" for reason, places in missing.items()]
    return some_of(parts, _MAX_NAMED, "; ")


def _shown_calls(words: Iterable[str]) -> str:
    return some_of([printable(word) for word in words], _MAX_NAMED)


def _of_evidence(tape: Tape) -> Iterator[Symptom]:
    """What else to record for reliable dynamic shapes. Reads no tensor bytes."""
    variants = [variant.facts for variant in tape.variants()]
    one_call = [facts for facts in variants if facts.calls == 1]
    if one_call:
        yield _warning(
            "one_call",
            f"one call is all the evidence for {_named(one_call)}",
            "record more calls like these, of other sizes",
        )
    one_size = [
        facts
        for facts in variants
        if facts.calls > 1
        and len(facts.all_rows) == 1
        and any(not column.is_int for column in facts.all_rows.columns)
    ]
    if one_size:
        yield _warning(
            "one_size",
            f"all calls have the same sizes in {_named(one_size)}",
            "record calls of other sizes; otherwise, every dimension counts as constant",
        )
    batch_one = _batches_of_one(variants)
    if batch_one:
        yield _warning(
            "batch_one",
            f"the batch was 1 in every call: {listed(batch_one, _MAX_NAMED)}",
            Remedy(", or declare the dimension with set_batch_dimension_for=True", "").after(
                "record a batch of 2 or more"
            ),
        )
    layouts = _tensors_with_layouts(tape)
    if layouts:
        yield _note(
            "layouts",
            f"calls differ in the strides of tensors: {some_of(layouts, _MAX_NAMED, '; ')}",
            "a compiled program may be correct only for the strides that it was traced with: trace "
            "it with those of your callers, or call contiguous() before the model",
        )


def _named(variants: list[VariantFacts]) -> str:
    names = variant_names([printable(facts.name) for facts in variants], _MAX_NAMED)
    return f"{counted(len(variants), 'variant')}: {names}"


def _batches_of_one(variants: list[VariantFacts]) -> list[str]:
    """The first dimensions of all tensors, if all are 1 in every call; otherwise empty, because
    other batches were recorded, or first dimensions are no batches."""
    names: dict[str, None] = {}
    for facts in variants:
        first: list[Column] = [column for column in facts.all_rows.columns if column.axis == 0]
        for column in first:
            if facts.all_rows.distinct(column) == {1}:
                names[printable(facts.group.layout.column_name(column))] = None
            elif facts.group.facts[column.index].rank > 1:
                return []
    return list(names)


def _tensors_with_layouts(tape: Tape) -> list[str]:
    """The tensors that have several layouts in memory within one variant, with their layouts."""
    texts: list[str] = []
    variants = tape.variants()
    for variant in variants:
        several = (tensor for tensor in variant.findings.tensors if len(tensor.layouts) > 1)
        words = ((f"{t.argument}{t.path}", layouts_in_words(t.layouts)) for t in several)
        where = f" in {variant.name}" if len(variants) > 1 else ""
        texts += (printable(f"{name}{where}: {layouts}") for name, layouts in merge_alike(words))
    return texts
