"""Skimming says of every record what decoding it says, whatever stood before it."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema import skimming
from calltape_schema.errors import TapeError
from calltape_schema.packing import pack, seal_envelope, unpack_plain
from calltape_schema.records import decode_call
from calltape_schema.skimming import Skimmer, TreeBytes, ranges_of
from tests.schema.raising import raises

Facts = tuple[TreeBytes, bool]
TREE = {"structure": b"s" * 40, "leaves": b"l" * 30}
RANGES = [{"leaf": 0, "min": -5, "max": 2**64 - 1}]
CALL = {
    "tape": bytes(range(16)), "call": 3, "time_ns": 2**60, "thread": 2**63, "duration_ns": 70,
    "inputs": TREE, "outputs": TREE, "blob": {"size": 300, "crc32": 2**31},
}  # fmt: skip


def skimmer() -> Skimmer[Facts]:
    return Skimmer(lambda tree, raised: (tree, raised))


def decoded(data: bytes) -> Any:
    record = decode_call(data)
    tree = (record.inputs.structure, record.inputs.leaves, record.inputs.scalars)
    size = None if record.blob is None else record.blob.size
    ranges = [(one.leaf, one.min, one.max) for one in record.inputs.ranges]
    return record.tape, record.call, size, (tree, record.error is not None), ranges


def skimmed(skim: Skimmer[Facts]) -> Callable[[bytes], Any]:
    """The same from a skimmer."""

    def read(data: bytes) -> Any:
        *facts, ranges = skim(data)
        return *facts, ranges_of(ranges)

    return read


def outcome(read: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return repr(read(data))  # tells 1 from 1.0
    except TapeError as error:
        return error.kind, error.reason, error.problems


def check(payloads: Iterable[bytes], skim: Skimmer[Facts] | None = None) -> int:
    """Skims records one after the other; how many of them are valid."""
    skim = skim or skimmer()
    valid = 0
    for payload in payloads:
        data = seal_envelope(payload)
        expected = outcome(decoded, data)
        assert outcome(skimmed(skim), data) == expected, payload
        valid += isinstance(expected, str)
    return valid


def raw(pairs: list[tuple[str, bytes]]) -> bytes:
    """A map of encoded values, in which a key may stand twice."""
    return bytes([0x80 + len(pairs)]) + b"".join(pack(key) + value for key, value in pairs)


EDGES = [
    -1, 0, 1, 15, 16, 127, 128, 255, 256, 49_919, 49_920, 49_999, 50_000, 65_535, 65_536,
     2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -129, -32, -33,
]  # fmt: skip
ODDITIES = [None, True, 1.0, "3", b"", [], {}, [0.5, 1.5], [1.5], "x" * 1025, "\ud800", b"x" * 17]
INTS = st.sampled_from(EDGES)
ODD = st.sampled_from(ODDITIES)
TEXTS = st.sampled_from(["", "policy", "é" * 1024, "\ud800", "x" * 1025])
BYTES = st.sampled_from(
    [b"", b"s", b"\xa6ranges", b"\xa6ranges\x90", pack({"ranges": RANGES})[1:],
     pack({"blob": {"size": 1, "crc32": 2}})[1:], b"x" * 300]
)  # fmt: skip
SCALARS = st.lists(INTS | st.floats(allow_nan=False) | TEXTS | BYTES | ODD, max_size=3)
RANGE = st.fixed_dictionaries({"leaf": INTS | ODD, "min": INTS, "max": INTS | ODD}) | st.just(
    RANGES[0]
)
MOSTLY = st.integers(0, 9).map(bool)


@st.composite
def trees(draw: st.DrawFn) -> Any:
    tree: dict[str, Any] = {"structure": draw(BYTES), "leaves": draw(BYTES)}
    if draw(st.booleans()):
        tree["scalars"] = draw(SCALARS)
    if draw(st.booleans()):
        tree["ranges"] = draw(st.lists(RANGE, max_size=6))
    if not draw(MOSTLY):
        tree[draw(st.sampled_from([*tree, "later"]))] = draw(ODD)
    return tree


@st.composite
def records(draw: st.DrawFn) -> bytes:
    document: dict[str, Any] = {
        "tape": draw(st.just(bytes(16)) | BYTES) if not draw(MOSTLY) else bytes(16),
        "call": draw(INTS), "time_ns": draw(INTS), "thread": draw(INTS), "duration_ns": draw(INTS),
    }  # fmt: skip
    if not draw(MOSTLY):
        document["error"] = {"type": "builtins:ValueError", "message": draw(TEXTS)}
    if not draw(MOSTLY):
        document["outputs_missing"] = draw(TEXTS)
    document["inputs"] = draw(trees())
    if draw(st.booleans()):
        document["outputs"] = draw(trees())
    if draw(st.booleans()):
        document["blob"] = {"size": draw(INTS), "crc32": draw(INTS)}
    pairs = [(key, pack(value)) for key, value in document.items()]
    if not draw(MOSTLY):
        pairs = draw(st.permutations(pairs))
    if not draw(MOSTLY):
        pairs.insert(draw(st.integers(0, len(pairs))), draw(st.sampled_from(pairs)))
    if not draw(MOSTLY):
        del pairs[draw(st.integers(0, len(pairs) - 1))]
    if not draw(MOSTLY):
        key, _ = pairs[at := draw(st.integers(0, len(pairs) - 1))]
        pairs[at] = key, pack(draw(ODD))
    return raw(pairs)


@given(st.lists(records(), min_size=1, max_size=6))
def test_any_records(payloads: list[bytes]) -> None:
    check([*payloads, *payloads])


FULL = {
    **{key: CALL[key] for key in ("tape", "call", "time_ns", "thread", "duration_ns")},
    "outputs_missing": "too large",
    "inputs": {**TREE, "scalars": [1, 0.5], "ranges": RANGES},
    "outputs": {**TREE, "ranges": RANGES},
    "blob": CALL["blob"],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Iterable[Any] = ()
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(place for key, below in items for place in places(below, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("path", places(FULL), ids=lambda path: ".".join(map(str, path)) or "all")
def test_any_value_of_any_field(path: tuple[Any, ...]) -> None:
    others = [pack(changed(FULL, path, new)) for new in [*EDGES, *ODDITIES]]
    check(other for other in others)
    check(record for other in others for record in (pack(FULL), other, other))


@given(st.randoms(use_true_random=False), st.sampled_from([{}, {"ranges": RANGES}]))
def test_changed_bytes(rng: random.Random, ranges: dict[str, Any]) -> None:
    tree = {**TREE, "scalars": [1, 2.5, "text", b"bytes"], **ranges}
    whole = bytearray(pack(CALL | {"inputs": tree, "outputs": {**TREE, **ranges}}))
    payloads = []
    for _ in range(10):
        changed = bytearray(whole)
        at = rng.randrange(len(changed))
        match rng.randrange(3):
            case 0:
                changed[at] = rng.choice([0, 0x7F, 0x80, 0x90, 0x91, 0xC0, 0xC4, 0xD9, 0xFF])
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case _:
                source = rng.randrange(len(changed))
                changed[at : at + rng.randrange(9)] = whole[source : source + rng.randrange(9)]
        payloads.append(bytes(changed))
    check([bytes(whole), *payloads, bytes(whole)])


def test_numbers_differ_and_the_rest_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ({}, {"ranges": RANGES}):
        tree = {**TREE, "scalars": [0.5], **extra}
        first = CALL | {"inputs": tree, "outputs": {**TREE, **extra}}
        later = first | {
            "call": 70_000, "time_ns": 1, "thread": 0, "duration_ns": 2**40,
            "blob": {"size": 0, "crc32": 0},
        }  # fmt: skip
        if extra:
            later["inputs"] = {**tree, "ranges": [{"leaf": 49_919, "min": 0, "max": 0}]}
            later["outputs"] = {**TREE, "ranges": RANGES * 4}
        skim = skimmer()
        # The second of a tape with ranges is remembered, the first has told that it has some.
        assert check([pack(first), pack(first), pack(later)], skim) == 3
        with monkeypatch.context() as context:
            context.setattr(skimming, "_by_hand", None)
            context.setattr(skimming, "_thoroughly", None)
            assert check([pack(later), pack(first)], skim) == 2


def test_records_as_a_recorder_writes_them_are_not_decoded(monkeypatch: Any) -> None:
    full = {**TREE, "scalars": [1, 0.5, "é", b"x"], "ranges": RANGES}
    forms: list[dict[str, Any]] = [
        CALL, CALL | {"inputs": full, "outputs": full}, CALL | {"inputs": {**TREE, "ranges": []}},
        {key: value for key, value in CALL.items() if key not in ("outputs", "blob")},
    ]  # fmt: skip
    items = list(CALL.items())
    forms.append(dict([*items[:5], ("outputs_missing", "too large"), items[5], items[7]]))
    assert check(map(pack, forms)) == len(forms)
    monkeypatch.setattr(skimming, "_thoroughly", None)
    for form in forms:
        assert skimmer()(seal_envelope(pack(form)))[1] == 3


def head(count: int) -> bytes:
    fields = ("tape", "call", "time_ns", "thread", "duration_ns")
    return bytes([0x80 + count]) + raw([(name, pack(CALL[name])) for name in fields])[1:]


def test_what_looks_like_a_blob_may_be_text_of_another_field() -> None:
    blob = pack({"blob": {"size": 300, "crc32": 7}})[1:]
    other = pack({"blob": {"size": 5, "crc32": 9}})[1:]
    inputs = raw([("inputs", pack(TREE))])[1:]
    true = raw([("blob", pack({"size": 300, "crc32": 7}))])[1:]
    for end in (blob, other):
        tree = {**TREE, "scalars": [b"y" * 3 + end]}
        hidden = raw([("inputs", pack(tree))])[1:]
        check([head(6) + hidden, head(7) + inputs + true, head(7) + true + hidden])
        for last in (blob, other):  # the same body, whose last bytes differ
            changed = hidden[: -len(end)] + last
            assert check([head(6) + hidden, head(6) + changed] * 2) >= 2


def test_what_looks_like_ranges_may_be_text_of_another_field() -> None:
    small, large = (pack({"ranges": [{"leaf": 0, "min": n, "max": 9}]})[1:] for n in (5, 500))
    real = pack({"ranges": RANGES})[1:]
    for inside in (small, large):
        # In a bin, in which other numbers of the same size may stand as well.
        tree = raw(
            [("structure", pack(b"a" + inside)), ("leaves", pack(b"l")), ("ranges", real[7:])]
        )
        body = raw([("inputs", tree)])[1:]
        same = body.replace(inside, inside.replace(b"\x09", b"\x08"))
        other = body.replace(inside, large if inside is small else small)
        assert check([head(6) + part for part in (body, body, same, other, body)]) >= 4


def test_a_record_that_reads_well_without_what_looks_like_ranges() -> None:
    def body(high: int) -> bytes:
        inside = pack({"ranges": [{"leaf": 0, "min": 0, "max": high}]})[1:]
        # Without the range, the structure would go on into the leaves, and end where these seem
        # to begin once more.
        start = len(inside) - len(b"\xa6ranges\x90") - len(b"\xa6leaves\xc4\x00")
        leaves = b"x" * start + b"\xa6leaves" + pack(b"l")
        tree = [("structure", pack(b"a" + inside)), ("leaves", pack(leaves))]
        return raw([("inputs", raw(tree))])[1:]

    shortened = body(1).replace(pack({"": [{"leaf": 0, "min": 0, "max": 1}]})[2:], b"\x90")
    pairs: Any = unpack_plain(b"\x81" + shortened)
    assert [name for name, _ in pairs[0][1]] == ["structure", "leaves"]
    assert check([head(6) + body(high) for high in (1, 1, 2, 3)]) == 4


def test_a_blob_that_does_not_look_like_one() -> None:
    wide = b"\xa4blob\x82\xa4size\xd3" + (5).to_bytes(8, "big") + b"\xa5crc32\x09"
    inputs = raw([("inputs", pack(TREE))])[1:]
    common = raw([("blob", pack({"size": 5, "crc32": 9}))])[1:]
    assert check([head(7) + inputs + wide] * 2 + [head(8) + inputs + wide + common]) == 2


@pytest.mark.parametrize(
    "tree",
    [
        [("structure", b"a"), ("leaves", b"l"), ("ranges", [True]), ("ranges", [])],
        [("structure", b"a"), ("leaves", b"l"), ("scalars", [1]), ("scalars", [1])],
        [("structure", b"a"), ("leaves", b"l"), ("ranges", []), ("scalars", [True])],
        [("structure", b"a"), ("structure", b"l"), ("leaves", b"l")],
        [("structure", b"a"), ("leaves", b"l"), ("scalars", [0] * 50_001)],
        [("structure", b"a"), ("leaves", b"l"), ("ranges", RANGES * 50_001)],
    ],
    ids=range(6),
)
def test_trees_that_are_refused(tree: list[tuple[str, Any]]) -> None:
    encoded = raw([(name, pack(value)) for name, value in tree])
    assert check([head(6) + raw([("inputs", encoded)])[1:]] * 2) == 0


def test_pairs_in_an_array_are_no_map() -> None:
    pairs = [[name, value] for name, value in CALL.items()]
    trees = CALL | {"inputs": [[name, value] for name, value in TREE.items()]}
    assert check([pack(pairs), pack(trees)]) == 0


def test_an_envelope_that_is_damaged_or_long() -> None:
    data = seal_envelope(pack(CALL))
    skim = skimmer()
    for at in range(len(data)):
        for value in (0, data[at] ^ 1, 0xC1):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            assert outcome(skimmed(skim), changed) == outcome(decoded, changed)
        assert outcome(skimmed(skim), data[:at]) == outcome(decoded, data[:at])
    longer = pack([*msgpack.unpackb(data), "a later field"])
    assert outcome(skimmed(skim), longer) == outcome(decoded, data)


def test_ever_new_records_take_no_memory() -> None:
    skim = Skimmer(lambda tree, raised: None)
    datas = [
        seal_envelope(pack(CALL | {"inputs": {**TREE, "leaves": n.to_bytes(4, "big") * 4096}}))
        for n in range(1000)
    ]
    tracemalloc.start()
    for data in datas:
        skim(data)
    assert tracemalloc.get_traced_memory()[0] < 6 * 1024 * 1024
    tracemalloc.stop()


def test_a_document_of_plain_data() -> None:
    assert unpack_plain(pack({"a": [1, {"b": b"c"}]})) == [("a", (1, [("b", b"c")]))]
    assert unpack_plain(b"\x82\xa1a\x01\xa1a\x02") == [("a", 1), ("a", 2)]
    for bad in (b"", b"\xc1", b"\x92\x01", b"\xdd\xff\xff\xff\xff" + bytes(5000), b"\x81\x01\x02"):
        assert unpack_plain(bad) is None
    with raises("damaged"):
        skimmer()(b"")
