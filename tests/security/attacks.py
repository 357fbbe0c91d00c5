"""Secrets at each place of a tape, put there by hand: most of these places no recorder uses."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from typing import Any

from calltape_schema.packing import pack
from calltape_schema.tar import member_header
from tests.forging.documents import ForgedTape
from tests.forging.structures import raw_structure

__all__ = ["ATTACKS", "REJECTED", "TEXT", "TRACES"]

TEXT = "4111-1111-1111-1111 alice@example.com"
NUMBER = 4_111_111_111_111_111
RAW = b"\x93secret\xff bytes of alice\x01"
FLOAT = struct.unpack(">d", struct.pack(">Q", 0x7FF8 << 48 | NUMBER))[0]  # in the bits of a NaN
ID = b"4111111111111111"

TRACES = (
    TEXT.encode(), b"4111-1111", b"alice", pack(NUMBER), str(NUMBER).encode(), ID, RAW,
    NUMBER.to_bytes(8, "little"), NUMBER.to_bytes(8, "big"), NUMBER.to_bytes(7, "big"),
    struct.pack(">d", NUMBER), struct.pack("<d", NUMBER), struct.pack(">d", FLOAT),
)  # fmt: skip

Attack = Callable[[ForgedTape], None]

ATTACKS: dict[str, Attack] = {}
REJECTED: set[str] = set()
"""Where a name from code has not the form of one, ``redact`` writes nothing. ``bundle`` of a tape
that says that it was redacted may."""


def attack(name: str, *, is_rejected: bool = False) -> Callable[[Attack], Attack]:
    def note(function: Attack) -> Attack:
        assert name not in ATTACKS
        ATTACKS[name] = function
        if is_rejected:
            REJECTED.add(name)
        return function

    return note


def _field(*names: str, value: Any = TEXT, is_rejected: bool = False) -> None:
    """Puts a value at a place of the documents, by the path there."""

    def put(tape: ForgedTape) -> None:
        at: Any = getattr(tape, names[0])
        for name in names[1:-1]:
            at = at[int(name)] if isinstance(at, list) else at.setdefault(name, {})
        at[int(names[-1]) if isinstance(at, list) else names[-1]] = value

    attack(f"{'.'.join(names)}: {type(value).__name__}", is_rejected=is_rejected)(put)


# --- the manifest ----------------------------------------------------------------------------

for where in (
    "unknown", "producer.unknown", "producer.torch", "producer.python", "producer.platform",
    "producer.transformers", "producer.calltape", "producer.host", "target.unknown",
    "policy.unknown", "policy.keep",
):  # fmt: skip
    _field("manifest", *where.split("."))
for where in ("method", "module"):
    _field("manifest", "target", where, is_rejected=True)
_field("manifest", "target", "type", value="alice@example.com:M", is_rejected=True)
_field("manifest", "target", "outside", value=[TEXT])
_field("manifest", "target", "signature", "0", "unknown")
_field("manifest", "target", "signature", "0", "name", is_rejected=True)
_field("manifest", "unknown deep", value={"a": [{"b": TEXT, "c": NUMBER}]})
_field("manifest", "minor", value=NUMBER)
_field("manifest", "policy", "leaf_values", value=[[TEXT, "none"]])
_field("manifest", "segment", value={"unknown": TEXT})
_field("manifest", "rank", value={"number": 0, "of": 2, "unknown": TEXT})
_field("manifest", "observed", value={"since_ns": 5, "reason": TEXT, "unknown": NUMBER})


@attack("manifest: the default of a parameter")
def _(tape: ForgedTape) -> None:
    default = {"has_default": True, "default": TEXT}
    tape.manifest["target"]["signature"][2] |= default


@attack("manifest: bytes as the default of a parameter")
def _(tape: ForgedTape) -> None:
    tape.manifest["target"]["signature"][2] |= {"has_default": True, "default": RAW}


@attack("manifest: a text as the default of a parameter, and as the argument")
def _(tape: ForgedTape) -> None:
    tape.manifest["target"]["signature"][2] |= {"has_default": True, "default": TEXT}
    tape.inputs["scalars"][1] = TEXT


def _step(**changes: Any) -> dict[str, Any]:
    tape = bytes(range(16))
    return {"verb": "filter", "tool": "calltape", "version": "0.1.0", "tape": tape} | changes


for what, step in {
    "verb": _step(verb=TEXT),
    "tool": _step(tool=TEXT),
    "version": _step(version=TEXT),
    "the id": _step(tape=ID),
    "an option": _step(options=[["calls", TEXT]]),
    "the name of an option": _step(options=[[TEXT, "x"]]),
    "words of a forged redaction": _step(verb="redact", options=[["keep", f'["{TEXT}"]']]),
    "an unknown field": _step(unknown=TEXT),
    "a file of a source": _step(sources=[{"tape": bytes(range(16)), "files": [TEXT]}]),
    "the host of a source": _step(sources=[{"tape": bytes(range(16)), "host": TEXT}]),
    "the id of a source": _step(sources=[{"tape": ID}]),
    "an unknown field of a source": _step(sources=[{"tape": bytes(range(16)), "unknown": TEXT}]),
}.items():
    _field("manifest", "history", value=[step])
    ATTACKS[f"history: {what}"] = ATTACKS.pop("manifest.history: list")


@attack("further elements of envelopes and groups")
def _(tape: ForgedTape) -> None:
    tape.more = [TEXT, NUMBER, RAW]


# --- the file --------------------------------------------------------------------------------


@attack("the padding of members")
def _(tape: ForgedTape) -> None:
    tape.fill = b"4111-1111-1111-1111 "


for what, change in {
    "the name of the owner": {265: b"alice"},
    "the name of a link": {157: b"alice"},
    "the time": {136: b"04111111111\0"},
    "the prefix": {345: b"4111-1111-1111-1111"},
    "the end of a header": {500: b"4111-1111"},
}.items():
    ATTACKS[f"tar: {what}"] = lambda tape, change=change: tape.tar.update(change)  # type: ignore[misc]


@attack("an unknown member")
def _(tape: ForgedTape) -> None:
    tape.members.append(("notes/alice.txt", TEXT.encode()))


@attack("a blob of no call")
def _(tape: ForgedTape) -> None:
    tape.members.append(("blobs/00000009.safetensors", TEXT.encode()))


@attack("a pax header")
def _(tape: ForgedTape) -> None:
    header = bytearray(member_header("pax", 512))
    header[156:157] = b"x"
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 0x20)
    pax = bytes(header) + TEXT.encode().ljust(512, b"\0")
    tape.members.append(("notes.bin", pax))


# --- records ---------------------------------------------------------------------------------

_field("record", "unknown")
_field("record", "unknown deep", value={"a": [{"b": TEXT}] * 3, "c": NUMBER})
_field("record", "thread", value=NUMBER)
_field("record", "outputs_missing")
_field("record", "error", value={"type": "builtins:ValueError", "message": TEXT})
_field("record", "error unknown", value={"type": "builtins:ValueError", "message": "", "x": TEXT})


@attack("the class of an exception", is_rejected=True)
def _(tape: ForgedTape) -> None:
    tape.record["error"] = {"type": "alice@example.com:E", "message": "x"}
    tape.has_outputs = False


@attack("a shared part of a group that no record uses")
def _(tape: ForgedTape) -> None:
    tape.shared.append(TEXT.encode())


# --- trees -----------------------------------------------------------------------------------

SIDES = ("inputs", "outputs")
_UNUSED: dict[str, Any] = {
    "text": TEXT, "int": NUMBER, "bytes": RAW, "float": float(NUMBER), "NaN": FLOAT,
    "complex": [float(NUMBER), FLOAT],
}  # fmt: skip


def _unused_scalar(side: str, value: Any, *, is_first: bool) -> Attack:
    def put(tape: ForgedTape) -> None:
        tree = getattr(tape, side)
        tree["structure"]["scalars"] += 1
        if is_first:
            tree["scalars"].insert(0, value)
            for node in tree["structure"]["root"]["children"][1]["children"]:
                node["scalar"] += 1
        else:
            tree["scalars"].append(value)

    return put


for side in SIDES:
    for kind, value in _UNUSED.items():
        for is_first in (False, True):
            where = "before" if is_first else "behind"
            made = _unused_scalar(side, value, is_first=is_first)
            attack(f"{side}: a scalar that no node uses, {where} others: {kind}")(made)


def _nodes(tape: ForgedTape, side: str) -> list[Any]:
    """The nodes that are arguments by name."""
    found: list[Any] = getattr(tape, side)["structure"]["root"]["children"][1]["children"]
    return found


def _add(tape: ForgedTape, side: str, node: dict[str, Any]) -> None:
    _nodes(tape, side).append(node)
    getattr(tape, side)["structure"]["root"]["children"][1]["keys"].append("more")


def _each_side(name: str, *, is_rejected: bool = False) -> Callable[[Callable[..., None]], None]:
    def note(function: Callable[[ForgedTape, str], None]) -> None:
        for side in SIDES:
            attack(f"{side}: {name}", is_rejected=is_rejected)(
                lambda tape, side=side: function(tape, side)  # type: ignore[misc]
            )

    return note


_NODE = ("structure", "root", "children", 1, "children", 0)
for name, path, value in (
    ("an unknown field of a tree", ("unknown",), [TEXT, NUMBER]),
    ("an unknown field of a structure", ("structure", "unknown"), TEXT),
    ("an unknown field of a node", (*_NODE, "unknown"), {"a": [TEXT, {"b": NUMBER}]}),
    ("attributes beside a value", (*_NODE, "beside"), [TEXT, f"a{NUMBER}"]),
    ("the context of a structure", ("structure", "context"), {"grad": False, "unknown": TEXT}),
    ("the text of an argument", ("scalars", 1), TEXT),
    ("the number of an argument", ("scalars", 0), NUMBER),
    ("an unknown field of a leaf", ("leaves", 0, "unknown"), {"a": TEXT, "b": [NUMBER]}),
    ("the name of a device", ("leaves", 0, "device"), TEXT),
    ("an unknown field of a range", ("ranges",),
     [{"leaf": 0, "min": 1, "max": 3, "unknown": [TEXT, NUMBER]}]),
):  # fmt: skip

    def _put_at(tape: ForgedTape, side: str, path: Any = path, value: Any = value) -> None:
        at = getattr(tape, side)
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = copy.deepcopy(value)

    _each_side(name, is_rejected=name == "the name of a device")(_put_at)

_KEYS = [TEXT, NUMBER, RAW, FLOAT, [TEXT, NUMBER]]
for name, node in {
    "why a value is missing": {"kind": "opaque", "type": "app:X", "reason": TEXT},
    "the value of an enum": {"kind": "enum", "type": "app:E", "name": "A", "value": TEXT},
    "the name of a member of an enum": {"kind": "enum", "type": "app:E", "name": TEXT},
    "the name of a constant": {"kind": "device", "name": TEXT},
    "the name of a class": {"kind": "class", "type": f"app:C{NUMBER}"},
    "a key": {"kind": "dict", "keys": _KEYS, "children": [{"kind": "none"}] * len(_KEYS)},
    "a field": {"kind": "object", "type": "app:X", "fields": [TEXT, f"a{NUMBER}"],
                "children": [{"kind": "none"}] * 2},
}.items():  # fmt: skip
    _each_side(name, is_rejected=name.startswith("the name of"))(
        lambda tape, side, node=node: _add(tape, side, copy.deepcopy(node))  # type: ignore[misc]
    )


@_each_side("the bits of a NaN")
def _(tape: ForgedTape, side: str) -> None:
    tree = getattr(tape, side)
    _nodes(tape, side)[0]["kind"] = "float"
    tree["scalars"][0] = FLOAT


@_each_side("the length of a text")
def _(tape: ForgedTape, side: str) -> None:
    tree = getattr(tape, side)
    node = {"kind": "opaque", "type": "builtins:str", "reason": "policy", "of": "str"}
    _add(tape, side, {**node, "length": tree["structure"]["scalars"]})
    tree["structure"]["scalars"] += 1
    tree["scalars"].append(NUMBER)


@attack("outputs: the default dtype, which a reader skips")
def _(tape: ForgedTape) -> None:
    tape.outputs["structure"]["context"] = {"default_dtype": f"a{NUMBER}"}


# --- tensors ---------------------------------------------------------------------------------


@_each_side("the elements of a tensor")
def _(tape: ForgedTape, side: str) -> None:
    tape.blob["t0" if side == "inputs" else "t1"] = ("I64", [3], struct.pack("<3q", NUMBER, 1, 2))


def _unused_leaf(**facts: Any) -> Callable[[ForgedTape, str], None]:
    def put(tape: ForgedTape, side: str) -> None:
        tree = getattr(tape, side)
        tree["structure"]["leaves"] += 1
        tree["leaves"].append({"dtype": "int64", "shape": [3], **facts})

    return put


_each_side("the shape of a leaf that no node uses")(_unused_leaf(shape=[NUMBER], missing="policy"))
_each_side("the dtype of a leaf that no node uses")(_unused_leaf(dtype=TEXT, missing="policy"))
_each_side("why a leaf that no node uses is missing")(_unused_leaf(missing=TEXT))


@_each_side("the elements of a leaf that no node uses")
def _(tape: ForgedTape, side: str) -> None:
    _unused_leaf(key="alice")(tape, side)
    tape.blob["alice"] = ("I64", [3], struct.pack("<3q", NUMBER, 1, 2))


@_each_side("the range of a leaf that no node uses")
def _(tape: ForgedTape, side: str) -> None:
    _unused_leaf(missing="policy")(tape, side)
    getattr(tape, side)["ranges"] = [{"leaf": 1, "min": 0, "max": NUMBER}]


@_each_side("where a leaf is in a memory that it shares with none")
def _(tape: ForgedTape, side: str) -> None:
    getattr(tape, side)["leaves"][0] |= {"storage": 3, "offset": NUMBER}


@_each_side("why a tensor is missing")
def _(tape: ForgedTape, side: str) -> None:
    leaf = getattr(tape, side)["leaves"][0]
    tape.blob.pop(leaf.pop("key"))
    leaf["missing"] = TEXT


@attack("a tensor of a blob that no leaf refers to")
def _(tape: ForgedTape) -> None:
    tape.blob["alice@example.com"] = ("U8", [len(RAW)], RAW)


@attack("the metadata of a blob")
def _(tape: ForgedTape) -> None:
    tape.header["__metadata__"] = {"note": TEXT, "number": str(NUMBER)}


@attack("an unknown field of an entry of a blob")
def _(tape: ForgedTape) -> None:
    tape.header["t0"] = {"unknown": [TEXT, NUMBER]}


@attack("the key of a leaf")
def _(tape: ForgedTape) -> None:
    tape.inputs["leaves"][0]["key"] = TEXT
    tape.blob[TEXT] = tape.blob.pop("t0")


# --- the end ---------------------------------------------------------------------------------

_field("end", "unknown")
_field("end", "dumps", value=[{"time_ns": 5, "reason": TEXT, "calls": 1, "unknown": NUMBER}])
_field("coverage", "unknown")


@attack("a section: another element")
def _(tape: ForgedTape) -> None:
    tape.deflated = [TEXT]


@attack("end: a reason of dropped calls")
def _(tape: ForgedTape) -> None:
    tape.coverage = {"seen": 3, "kept": 1, "dropped": {TEXT: 1, "policy": 1}}


def _in_table(change: Callable[[dict[str, Any], ForgedTape], None]) -> Attack:
    """Another table of inputs, in which one more call was seen."""

    def put(tape: ForgedTape) -> None:
        tape.coverage = {"seen": 2, "kept": 1, "dropped": {"policy": 1}}

        def changed(table: dict[str, Any]) -> dict[str, Any]:
            made = copy.deepcopy(table)
            change(made, tape)
            return made

        tape.table = changed

    return put


def _kind(tape: ForgedTape, **changes: Any) -> dict[str, Any]:
    plain = {
        "structure": raw_structure(tape.inputs["structure"]), "dtypes": ["int64"], "ranks": [1],
        "axes": [[[[5, 1]], 0, 5], None, None], "calls": [1, 0, 0],
    }  # fmt: skip
    return plain | changes


def _unused(tape: ForgedTape) -> bytes:
    return raw_structure({**tape.inputs["structure"], "scalars": 3})


for what, kind in {
    "an unknown field of a kind": lambda tape: _kind(tape, unknown=TEXT),
    "the dtype of a kind": lambda tape: _kind(tape, dtypes=[TEXT]),
    "values of a scalar that no node uses": lambda tape: _kind(
        tape, structure=_unused(tape),
        axes=[[[[5, 1]], 0, 5], None, None, [[[NUMBER, 1]], 0, NUMBER]],
    ),
    "values of a text": lambda tape: _kind(
        tape, axes=[[[[5, 1]], 0, 5], None, [[[NUMBER, 1]], 0, NUMBER]]
    ),
    "values of more scalars than there are": lambda tape: _kind(
        tape, axes=[[[[5, 1]], 0, 5], None, None, [[[NUMBER, 1]], 0, NUMBER]]
    ),
    "sizes of more tensors than there are": lambda tape: _kind(
        tape, dtypes=["int64"] * 2, ranks=[1, 1],
        axes=[[[[5, 1]], 0, 5], [[[NUMBER, 1]], 0, NUMBER], None, None],
    ),
    "an unknown field of a structure": lambda tape: _kind(
        tape, structure=raw_structure({**tape.inputs["structure"], "unknown": TEXT})
    ),
    "no structure": lambda tape: _kind(tape, structure=TEXT.encode()),
}.items():  # fmt: skip

    def _put(table: dict[str, Any], tape: ForgedTape, kind: Any = kind) -> None:
        table["kinds"] = [kind(tape)]

    attack(f"table: {what}")(_in_table(_put))


@attack("table: an unknown field")
def _(tape: ForgedTape) -> None:
    _in_table(lambda table, _: table.update(unknown=[TEXT, NUMBER]))(tape)


@attack("table: a part that no row uses")
def _(tape: ForgedTape) -> None:
    _in_table(lambda table, _: table.update(parts=[*table["parts"], TEXT.encode()]))(tape)


@attack("table: hashes from which on there was no room")
def _(tape: ForgedTape) -> None:
    _in_table(lambda table, _: table.update(kinds_below=NUMBER))(tape)


@attack("table: the scalars of a row")
def _(tape: ForgedTape) -> None:
    def change(table: dict[str, Any], _: ForgedTape) -> None:
        structure, leaves, _scalars, ranges = table["rows"][0]
        table["rows"] = [[structure, leaves, pack([3, TEXT]), ranges]]

    _in_table(change)(tape)
