"""Structures and leaf facts: validation, interning, references."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema.bounds import allow
from calltape_schema.errors import TapeError
from calltape_schema.neutral_nodes import neutral
from calltape_schema.packing import pack
from calltape_schema.recent import Interner
from calltape_schema.tree import (
    DictNode,
    decode_leaves,
    decode_structure,
    document_like,
    encode_leaves,
    encode_structure,
    fits_as_key,
)
from tests.raising import raises

NONE = {"kind": "none"}
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
NAMES = st.from_regex(
    r"[a-z_]{1,8}(\.[a-z]{1,4})?:[A-Za-z]{1,8}(\.<locals>\.[A-Z])?", fullmatch=True
)
SCALARS = TEXT | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.binary(max_size=4)
KEY_PARTS = st.none() | SCALARS.filter(lambda part: fits_as_key(part))
KEYS = KEY_PARTS | st.lists(KEY_PARTS, max_size=3).map(tuple)
LEAF_NODES = st.one_of(
    st.builds(dict, kind=st.sampled_from(["none", "ellipsis"])),
    st.builds(dict, kind=st.just("bool"), value=st.booleans()),
    st.builds(dict, kind=st.sampled_from(["tensor", "ndarray"]), leaf=st.integers(0, 4)),
    st.builds(
        lambda kind, scalar: {"kind": kind, "scalar": scalar * 5 + KINDS.index(kind)},
        st.sampled_from(["int", "float", "complex", "str", "bytes"]),
        st.integers(0, 2),
    ),
    st.builds(dict, kind=st.sampled_from(["dtype", "device", "layout"]), name=TEXT),
    st.builds(dict, kind=st.just("enum"), type=NAMES, name=TEXT, value=SCALARS),
    st.builds(dict, kind=st.just("class"), type=NAMES),
    st.builds(dict, kind=st.just("opaque"), type=NAMES, reason=TEXT),
)
KINDS = ["int", "float", "complex", "str", "bytes"]


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    many = st.lists(inner, max_size=3)
    named = st.dictionaries(TEXT, inner, max_size=3)
    return st.one_of(
        st.builds(dict, kind=st.sampled_from(["list", "tuple", "set", "size"]), children=many),
        st.builds(dict, kind=st.just("slice"), children=st.lists(inner, min_size=3, max_size=3)),
        st.dictionaries(KEYS, inner, max_size=3).map(
            lambda d: {"kind": "dict", "keys": [*d], "children": [*d.values()]}
        ),
        st.builds(
            lambda kind, name, d: {
                "kind": kind, "type": name, "fields": [*d], "children": [*d.values()],
            },
            st.sampled_from(["namedtuple", "dataclass", "object"]), NAMES, named,
        ),
        st.builds(
            lambda name, children: {
                "kind": "custom", "type": name, "context": NONE, "children": children,
            },
            NAMES, many,
        ),
    )  # fmt: skip


def structure(root: Any, leaves: int = 0, scalars: int = 0) -> dict[str, Any]:
    return {"root": root, "leaves": leaves, "scalars": scalars}


def as_plain(value: Any) -> Any:
    """Tuples and lists alike, as they are in msgpack."""
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items() if item is not None}
    return tuple(map(as_plain, value)) if isinstance(value, (list, tuple)) else value


@given(st.recursive(LEAF_NODES, containers, max_leaves=12))
def test_any_tree_comes_back(root: dict[str, Any]) -> None:
    decoded = decode_structure(encode_structure(structure(root, 5, 15)))
    assert as_plain(decoded.root.model_dump()) == as_plain(root)


@pytest.mark.parametrize("document", [5, None, "x", b"", [], {}])
def test_documents_that_are_no_structure_are_invalid(document: Any) -> None:
    with raises("invalid"):
        decode_structure(pack(document))


def test_same_bytes_give_the_same_object() -> None:
    data = encode_structure(structure({"kind": "list", "children": [NONE]}))
    assert decode_structure(data) is decode_structure(bytes(bytearray(data)))
    leaves = encode_leaves([LEAF])
    assert decode_leaves(leaves) is decode_leaves(bytes(bytearray(leaves)))


class Counting(Interner[int]):
    """Counts what is decoded."""

    def __init__(self) -> None:
        self.decoded = 0
        super().__init__(self.decode)

    def decode(self, data: bytes) -> int:
        self.decoded += 1
        return len(data)

    def ask(self, *documents: bytes) -> int:
        """How many of them are decoded for it."""
        before = self.decoded
        for data in documents:
            assert self(bytes(bytearray(data))) == len(data)
        return self.decoded - before


def test_memory_of_interned_structures_is_bounded() -> None:
    intern = Counting()
    documents = [bytes([letter]) * 2**20 for letter in b"abcdefgh"]
    assert intern.ask(*documents) == 8
    assert intern.ask(documents[-1]) == 0
    assert intern.ask(*documents) >= 4  # four had room
    # One that exceeds the room alone is remembered until the next one comes.
    assert intern.ask(bytes(5 * 2**20), bytes(5 * 2**20)) == 1
    assert intern.ask(documents[0], bytes(5 * 2**20), documents[0]) == 3


def test_one_document_too_many_does_not_cost_all_of_them() -> None:
    documents = [bytes([letter]) * (2**22 // 20) for letter in range(22)]
    # 22 at least, and 440 if the oldest were dropped
    assert 22 <= Counting().ask(*documents * 20) < 200


def test_a_document_of_many_calls_is_refused_once() -> None:
    decoded: list[bytes] = []

    def refuse(data: bytes) -> None:
        decoded.append(data)
        raise TapeError("invalid", "it is none")

    decode, places = Interner(refuse), []
    for number in range(3):
        with raises("invalid", "it is none") as caught:
            decode(b"x")
        places.append(caught.value.at(offset=number).offset)
    assert (decoded, places) == ([b"x"], [0, 1, 2])  # each has its own


def test_what_is_refused_under_some_limits_is_not_under_others() -> None:
    many = structure({"kind": "list", "children": [NONE] * 60_000})
    data = pack(neutral(many))
    for _ in range(2):
        with raises("limit"):
            decode_structure(data)
        allow(2)
        try:
            assert len(decode_structure(data).root.children) == 60_000  # type: ignore[union-attr]
        finally:
            allow(1)


def test_nobody_writes_a_kind_of_a_later_version() -> None:
    with raises("invalid"):
        encode_structure(structure({"kind": "unheard of"}))


def test_a_structure_is_written_in_canonical_form() -> None:
    """Equal structures are equal bytes, whoever wrote them: their signatures are compared."""
    node = {"modules": None, "children": [NONE], "keys": ["a"], "kind": "dict"}
    off = {"training": False, "grad": True, "autocast": [], "inference": False}
    one = encode_structure({"scalars": 0, "context": off, "leaves": 0, "root": node})
    assert one == pack({
        "root": {"kind": "map", "keys": ["a"], "children": [{"kind": "const"}]},
        "leaves": 0, "scalars": 0,
    })  # fmt: skip
    assert encode_structure(document_like(decode_structure(one), node, 0, 0)) == one


LEAF = {"dtype": "float32", "shape": [2, 3], "key": "args.0"}


def test_dict_keys_keep_order_and_type() -> None:
    keys = [True, 2, 1.5, b"k", None, ("a", 1), "", "\ud800", 2**64 - 1]
    node = {"kind": "dict", "keys": keys, "children": [NONE] * len(keys)}
    root = decode_structure(encode_structure(structure(node))).root
    assert isinstance(root, DictNode)
    assert [*map(repr, root.keys)] == [*map(repr, keys)]


def keyed(keys: list[Any]) -> bytes:
    return encode_structure(
        structure({"kind": "dict", "keys": keys, "children": [NONE] * len(keys)})
    )


COLLIDING: dict[str, Callable[[int], Any]] = {
    "tuples": lambda i: [-1 - (i >> bit & 1) for bit in range(16)],
    "ints in tuples": lambda i: [(2**61 - 1) * (i >> 2 * part & 3) for part in range(8)],
}


@pytest.mark.parametrize("name", ["tuples", "ints in tuples"])
def test_many_keys_of_one_hash_make_an_opaque_node(name: str) -> None:
    """They are valid, but no dict of Python is made of many of them."""
    few: Any = decode_structure(keyed([COLLIDING[name](i) for i in range(64)])).root
    assert len(few.keys) == 64
    many: Any = decode_structure(keyed([COLLIDING[name](i) for i in range(65)])).root
    assert (many.kind, many.reason) == ("opaque", "unsupported")
    with raises("invalid", "same name twice"):
        keyed([COLLIDING[name](i % 64) for i in range(65)])


@pytest.mark.parametrize(
    ("one", "two", "is_same"),
    [
        (1, 1.0, True), (1, True, True), ([1, "a"], [1.0, "a"], True), (0.0, -0.0, True),
        (2**63, float(2**63), True), (1e300, 1e300, True), (None, None, True), (b"a", b"a", True),
        (math.nan, math.nan, False), ("a", b"a", False), ([1], 1, False), (None, 0, False),
        (1.5, 1, False), ("1", 1, False), ([None], None, False), (["a", "b"], ["ab"], False),
        ([1], b"\x91\x01", False), (b"\x91\x01", [b"\x91\x01"], False),
    ],
)  # fmt: skip
def test_equal_keys_are_invalid(one: Any, two: Any, *, is_same: bool) -> None:
    if is_same:
        with raises("invalid", "same name twice"):
            keyed([one, two])
    else:
        assert keyed([one, two])


CPU = {"device": "cpu", "dtype": "bfloat16"}


def test_a_context_is_read_with_its_defaults() -> None:
    document = structure(NONE) | {"context": {"autocast": [CPU], "new": 1}}
    context = decode_structure(encode_structure(document)).context
    assert context is not None
    assert (context.grad, context.inference, context.default_dtype) == (True, False, "float32")
    assert not context.training
    assert [one.dtype for one in context.autocast] == ["bfloat16"]
    assert decode_structure(encode_structure(structure(NONE))).context is None


def test_a_structure_with_another_root_keeps_its_context() -> None:
    spec = decode_structure(encode_structure(structure(NONE) | {"context": {"grad": False}}))
    again = decode_structure(encode_structure(document_like(spec, NONE, 0, 0)))
    assert again.context == spec.context is not None
