"""What a tape holds, by kind of fact: in each mode of recording, and after ``calltape redact``.

The tests of privacy record a secret of each kind, and search all bytes for it. docs/privacy.md has
the same as tables. ``python -m tests.recorder.privacy_table`` prints them, ``--update`` writes them
into the page.
"""

from __future__ import annotations

import argparse
import re
from enum import Enum
from pathlib import Path
from typing import NamedTuple

__all__ = ["Group", "InPrograms", "Kind", "Left", "Told", "main", "updated"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "privacy.md"
_COMMAND = "python -m tests.recorder.privacy_table --update"


class Told(Enum):
    """What a recorder writes of a kind of fact."""

    YES = "yes"
    NO = "no"
    LENGTH = "length"
    SIZES = "sizes and dtypes"


class Left(Enum):
    """What ``calltape redact`` leaves of a kind of fact, unless it is asked for something else."""

    YES = "yes"
    NO = "no"
    LENGTH = "length"
    ORDINAL = "ordinal"
    PART = ""


class Group(Enum):
    """What a kind of fact is told of."""

    CALL = "of each call"
    RECORDING = "of the recording, whatever `keep` selects"


class Columns(NamedTuple):
    """By mode.

    Attributes:
        all: with ``values="all"``.
        none: with ``values="none"``, or a pattern with wildcards.
        path: at and below a path without wildcards.
        unkept: of a call that ``keep`` did not select, with ``values="all"``.
        unkept_none: of such a call, with ``values="none"``.
    """

    all: Told
    none: Told
    path: Told
    unkept: Told
    unkept_none: Told


_YES, _NO, _LENGTH = Told.YES, Told.NO, Told.LENGTH
_VALUE = Columns(_YES, _NO, _NO, _NO, _NO)
_TEXT = Columns(_YES, _LENGTH, _LENGTH, _NO, _NO)
_CALL = Columns(_YES, _YES, _YES, _NO, _NO)
_STRUCTURE = Columns(_YES, _YES, _YES, _YES, _NO)
_STRUCTURE_VALUE = Columns(_YES, _NO, _NO, _YES, _NO)
_ALWAYS = Columns(_YES, _YES, _YES, _YES, _YES)
_NEVER = Columns(_NO, _NO, _NO, _NO, _NO)

_RANGE = "range over all calls, but not of outputs"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        what: the kind of fact, as the page names it.
        columns: what a recorder writes.
        left: what a redacted tape has.
        remark: the same in more words.
        facts: the fields of the format that hold it, by their class.
        group: what it is told of.
    """

    what: str
    columns: Columns
    left: Left
    remark: str = ""
    facts: str = ""
    group: Group = Group.CALL


class Kind(Enum):
    """The kinds of facts, in the order of the page."""

    ELEMENTS = Row(
        "elements of tensors and arrays; scale and zero point of quantized tensors",
        _VALUE, Left.NO, "",
        "BlobFacts.checksum BlobFacts.steps Quantizer.scale Quantizer.zero_point",
    )  # fmt: skip
    FEW_RANGE = Row(
        "smallest and largest element of an integer tensor, padding included",
        _VALUE, Left.PART, _RANGE, "Range.min Range.max _TableForm.rows",
    )  # fmt: skip
    MANY_RANGE = Row(
        "the same with 1,024 distinct elements or more; whether 1,024 elements or more are all 0 or"
        " 1",
        _CALL, Left.PART, _RANGE, "Range.min Range.max _TableForm.rows",
    )  # fmt: skip
    TEXT = Row(
        "text and bytes in arguments, containers included", _TEXT, Left.ORDINAL,
        "equal ones stay equal", "Tree.scalars _TableForm.rows OpaqueNode.length",
    )  # fmt: skip
    INTS = Row(
        "ints in arguments", Columns(_YES, _YES, _NO, _YES, _NO), Left.NO,
        "if beyond ±1,024 and no size of a tensor of the same call",
        "Tree.scalars _TableForm.rows _KindForm.axes",
    )  # fmt: skip
    FLOATS = Row(
        "floats and complex numbers in arguments", Columns(_YES, _YES, _NO, _NO, _NO),
        Left.NO, "if it has more than four digits", "Tree.scalars _TableForm.rows",
    )  # fmt: skip
    LISTS_AND_KEYS = Row(
        "numbers in lists, tuples and sets that hold more than four; dict keys and keywords"
        " that are not names",
        _STRUCTURE_VALUE, Left.NO, "but ordinals of keys",
        "Tree.scalars _TableForm.rows _KindForm.axes DictNode.keys Leaf.key",
    )  # fmt: skip
    NAMES = Row(
        "names of classes, fields and enum members; dict keys and keywords that are names",
        _STRUCTURE, Left.YES, "",
        "ClassNode.type EnumNode.type EnumNode.name ScalarNode.type SequenceNode.type DictNode.type"
        " DictNode.keys FieldsNode.type FieldsNode.fields CustomNode.type OpaqueNode.type"
        " Leaf.subclass Leaf.key",
    )  # fmt: skip
    ENUM_VALUES = Row(
        "values of enum members", _STRUCTURE_VALUE, Left.NO, facts="EnumNode.value"
    )  # fmt: skip
    STRUCTURE = Row(
        "None, bools, torch constants; types and lengths of containers; ints in a cache",
        _STRUCTURE, Left.YES, "",
        "NoneNode.kind BoolNode.kind BoolNode.value ConstantNode.kind ConstantNode.name"
        " Structure.root Structure.leaves Structure.scalars TensorNode.kind TensorNode.leaf"
        " ScalarNode.kind ScalarNode.scalar EnumNode.kind ClassNode.kind OpaqueNode.kind"
        " OpaqueNode.of SequenceNode.kind SequenceNode.children DictNode.kind DictNode.children"
        " DictNode.modules FieldsNode.kind FieldsNode.children CustomNode.kind CustomNode.context"
        " CustomNode.children Tree.structure Tree.leaves Tree.ranges Range.leaf _TableForm.parts"
        " _KindForm.structure _Lengths.leaves _Lengths.scalars",
    )  # fmt: skip
    SHAPES = Row(
        "shapes, strides, dtypes, devices, flags, autocast, shared memory",
        Columns(_YES, _YES, _YES, Told.SIZES, Told.SIZES), Left.YES, "",
        "Leaf.dtype Leaf.shape Leaf.strides Leaf.expanded Leaf.device Leaf.layout"
        " Leaf.requires_grad Leaf.inference Leaf.conj Leaf.neg Leaf.storage Leaf.offset"
        " Leaf.quantizer Quantizer.scheme Structure.context CallContext.autocast CallContext.grad"
        " CallContext.inference CallContext.default_dtype CallContext.training Autocast.device"
        " Autocast.dtype BlobFacts.size BlobFacts.algorithm BlobFacts.codec BlobFacts.length"
        " CallRecord.at End.tensor_bytes _KindForm.dtypes _KindForm.ranks _KindForm.axes"
        " _SizedLeaf.dtype _SizedLeaf.shape",
    )  # fmt: skip
    RETURNED_TEXT = Row(
        "text and bytes returned or yielded; message of a raised exception",
        _TEXT, Left.LENGTH, "", "Tree.scalars ModelError.message",
    )  # fmt: skip
    RETURNED = Row("numbers returned or yielded", _VALUE, Left.NO, facts="Tree.scalars")
    OUTCOME = Row(
        "class of a raised exception; attribute names of a returned object; why a value is missing",
        _CALL, Left.YES, "",
        "ModelError.type FieldsNode.fields Described.beside Leaf.missing OpaqueNode.reason"
        " CallRecord.outputs_missing",
    )  # fmt: skip
    TIMES = Row(
        "time, duration and thread", _CALL, Left.PART, "durations and intervals",
        "CallRecord.time_ns CallRecord.duration_ns CallRecord.thread End.first_ns End.last_ns"
        " Dump.time_ns Coverage.counted_ns",
    )  # fmt: skip
    TARGET = Row(
        "recorded class, method and module; module variables that their code reads; parameters,"
        " and defaults that are None, bools or within ±1,024",
        _ALWAYS, Left.YES, "",
        "Manifest.target Target.type Target.method Target.via Target.module Target.outside"
        " Target.signature Parameter.name Parameter.kind Parameter.has_default"
        " Parameter.default_missing",
        Group.RECORDING,
    )  # fmt: skip
    DEFAULTS = Row(
        "other defaults that are numbers or single words", _STRUCTURE_VALUE, Left.YES, "",
        "Parameter.default", Group.RECORDING,
    )  # fmt: skip
    YOUR_WORDS = Row(
        "name of a predicate (`When`), patterns of `values`, reason of a dump",
        _ALWAYS, Left.NO, "except the length of a reason",
        "Policy.keep Policy.leaf_values Dump.reason", Group.RECORDING,
    )  # fmt: skip
    LOG = Row(
        "in the log: messages of exceptions in a predicate or the recorder",
        _STRUCTURE_VALUE, Left.NO, group=Group.RECORDING,
    )  # fmt: skip
    BOOKKEEPING = Row(
        "ids, numbers and times of files; options, rank; counts of calls, and why some are missing",
        _ALWAYS, Left.PART, "yes, without dates",
        "Manifest.tape Manifest.created_ns Manifest.segment Segment.number Segment.first_call"
        " CallRecord.tape CallRecord.call CallRecord.inputs CallRecord.outputs CallRecord.error"
        " CallRecord.blob BlobFacts.back End.tape End.closed_ns End.continues End.next_call"
        " End.deleted InterimCounts.tape InterimCounts.number InterimCounts.next_call"
        " InterimCounts.deleted End.elsewhere End.index End.index_width End.manifest End.first_call"
        " End.last_call Manifest.policy Manifest.rank Rank.number Rank.of Manifest.observed"
        " Observed.since_ns Observed.reason Policy.outputs Policy.values Policy.flight_recorder"
        " FlightPolicy.calls FlightPolicy.bytes Policy.write_ahead Policy.max_calls"
        " Policy.max_seconds Policy.max_share Policy.max_queue_bytes Policy.max_disk_bytes"
        " Policy.min_free_bytes Policy.segment_bytes Policy.segment_seconds Policy.when_full"
        " End.coverage Coverage.seen Coverage.kept Coverage.dropped Coverage.at_least"
        " InterimCounts.coverage End.inputs End.raised End.dumps Dump.calls _TableForm.kinds"
        " _TableForm.numbers _TableForm.other _TableForm.rows_below _TableForm.kinds_below"
        " _KindForm.calls",
        Group.RECORDING,
    )  # fmt: skip
    VERSIONS = Row(
        "versions of Python, torch, transformers and calltape; platform", _ALWAYS, Left.PART,
        "yes, without private builds",
        "Manifest.format Manifest.version Manifest.minor Manifest.requires CallRecord.requires"
        " End.requires Manifest.producer Producer.calltape Producer.torch Producer.python"
        " Producer.platform Producer.transformers",
        Group.RECORDING,
    )  # fmt: skip
    HISTORY = Row(
        "commands that changed the tape later, and names of files", _NEVER, Left.PART,
        "commands, ids and counts",
        "Manifest.history Step.verb Step.tool Step.version Step.tape Step.options Step.sources"
        " Source.tape Source.files Source.other_files Source.calls Source.left_out Source.first"
        " Source.redacted Source.parts",
        Group.RECORDING,
    )  # fmt: skip
    PRIVATE = Row(
        "weights; source code; environment, command line, host and user names, paths; `str` and"
        " `repr` of objects; attributes of an argument of an unknown class; defaults that are"
        " bytes or text of more than a word, or that belong to a parameter named like a secret",
        _NEVER, Left.NO, "", "Producer.host Source.host", Group.RECORDING,
    )  # fmt: skip

    def __repr__(self) -> str:
        return self.name

    @property
    def row(self) -> Row:
        """What the table says of it."""
        return self.value


class InPrograms(Enum):
    """What saved programs hold of the calls, as the page names it, in each of three modes."""

    ELEMENTS = "elements of recorded tensors", (_NO, _NO, _NO)
    SAME_TEXT = "text that is the same in all calls of a program", (_YES, _NO, _NO)
    OTHER_TEXT = "other text, except in the call that was traced", (_NO, _NO, _NO)
    KEYS = "keys of dicts", (_YES, _NO, _YES)
    RETURNED_TEXT = "text that the model returned when traced", (_YES, _YES, _YES)
    MESSAGES = "messages of exceptions", (_NO, _NO, _NO)

    def told(self, mode: str) -> Told:
        """In a mode: ``all``, ``none`` or ``path``."""
        return self.value[1][("all", "none", "path").index(mode)]


# The page.

_HEAD = ("kind of fact", "by default", '`values="none"`', "after `calltape redact`")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("  ", " ") for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    columns, is_call = row.columns, row.group is Group.CALL
    marks = {Told.YES: "†", Told.SIZES: "‡"} if is_call else {}
    none = columns.none.value + ("*" if columns.path is not columns.none else "")
    left = ", ".join(filter(None, (row.left.value, row.remark)))
    return row.what, columns.all.value + marks.get(columns.unkept, ""), none, left


def facts_table() -> str:
    """The kinds of facts, by what they are told of."""
    rows: list[tuple[str, ...]] = []
    for group in Group:
        rows.append((f"**{group.value}**", "", "", ""))
        rows += [_cells(kind.row) for kind in Kind if kind.row.group is group]
    return _table(_HEAD, rows)


def programs_table() -> str:
    """What saved programs hold."""
    rows = [
        (InProgram.value[0], InProgram.told("all").value, InProgram.told("none").value)
        for InProgram in InPrograms
    ]
    return _table(("in saved programs", "by default", '`values="none"`'), rows)


def updated(page: str) -> str:
    """The page with these tables between their markers."""
    for name, table in (("facts", facts_table()), ("programs", programs_table())):
        begin, end = f"<!-- {name}: {_COMMAND} -->", f"<!-- end of {name} -->"
        pattern = f"{re.escape(begin)}\n.*?{re.escape(end)}"
        block = f"{begin}\n\n{table}\n\n{end}"
        page, found = re.subn(pattern, lambda _, text=block: text, page, flags=re.DOTALL)
        if found != 1:
            raise ValueError(f"the page has {found} places for {name}")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints the tables of docs/privacy.md.")
    parser.add_argument("--update", action="store_true", help="write them into the page")
    if parser.parse_args().update:
        PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(facts_table(), programs_table(), sep="\n\n")


if __name__ == "__main__":
    main()
