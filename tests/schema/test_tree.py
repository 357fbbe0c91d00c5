"""Structures and leaf facts: validation, interning, references."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema import recent
from calltape_schema.bounds import MAX_DEPTH, MAX_NESTING, allow
from calltape_schema.neutral_nodes import neutral
from calltape_schema.packing import pack
from calltape_schema.records import Tree
from calltape_schema.tree import (
    CustomNode,
    DictNode,
    children_of,
    decode_leaves,
    decode_structure,
    document_like,
    encode_leaves,
    encode_structure,
    fits_as_key,
)
from tests.schema.raising import raises

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


def test_problems_of_all_fields_are_told_at_once() -> None:
    """Of many items only the first that is wrong: there may be a million."""
    root = {
        "kind": "map",
        "keys": ["a", "b"],
        "children": [{"kind": "tensor", "leaf": -1}, {"kind": ""}],
        "type": "no colon",
        "modules": [-1, -1],
    }
    with raises("invalid") as caught:
        decode_structure(pack({"root": root, "leaves": "many"}))
    places = [problem.loc for problem in caught.value.problems]
    assert places == [
        ("root", "dict", "children", 0, "tensor", "leaf"),
        ("root", "dict", "type"),
        ("root", "dict", "modules", 0),
        ("leaves",),
        ("scalars",),
    ]
    assert "; and 2 more)" in str(caught.value)


@pytest.mark.parametrize(
    ("root", "match"),
    [
        ({"kind": "tensor", "leaf": 2}, "leaf 2 of 2"),
        ({"kind": "int", "scalar": 1}, "scalar 1 of 1"),
        ({"kind": "slice", "children": [NONE]}, "a slice of 1 parts"),
        ({"kind": "range", "children": [NONE] * 4}, "a range of 4 parts"),
        ({"kind": "dict", "keys": ["a", "a"], "children": [NONE, NONE]}, "same name twice"),
        ({"kind": "dict", "keys": ["a"], "children": []}, "1 names for 0 children"),
        ({"kind": "dict", "keys": [[["a"]]], "children": [NONE]}, "not tuple"),
        ({"kind": "dict", "keys": [{}], "children": [NONE]}, "not dict"),
        ({"kind": "object", "type": "a:B", "fields": ["x"] * 2, "children": [NONE] * 2}, "twice"),
        ({"kind": "object", "type": "a:B", "fields": [b"x"], "children": [NONE]}, "not bytes"),
        ({"kind": "opaque", "type": "a:B", "reason": "x" * 1025}, "at most 1024"),
        ({"kind": "class", "type": "a:b:c"}, "pattern"),
        ({"kind": "class", "type": "a:" + "b" * 511}, "at most 512"),
    ],
)
def test_what_the_format_forbids(root: dict[str, Any], match: str) -> None:
    with raises("invalid", match):
        encode_structure(structure(root, 2, 1))


def test_every_wrong_reference_is_told() -> None:
    wrong = [{"kind": "tensor", "leaf": 7}, {"kind": "int", "scalar": 3}]
    with raises("invalid", "leaf 7 of 0; scalar 3 of 0"):
        encode_structure(structure({"kind": "list", "children": wrong}))


def test_two_nodes_share_a_scalar_only_with_one_type() -> None:
    same = [{"kind": "int", "scalar": 0}, {"kind": "int", "scalar": 0}]
    encode_structure(structure({"kind": "list", "children": same}, scalars=1))
    with raises("invalid", "scalar 0 with two types"):
        other = [*same, {"kind": "str", "scalar": 0}]
        encode_structure(structure({"kind": "list", "children": other}, scalars=1))


def test_a_context_holds_no_tensor_however_deep() -> None:
    hidden = {"kind": "list", "children": [{"kind": "tensor", "leaf": 0}]}
    custom = {"kind": "custom", "type": "a:B", "context": hidden, "children": []}
    with raises("invalid", "a tensor in the context"):
        encode_structure(structure({"kind": "list", "children": [custom]}, leaves=1))


def nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = NONE
    for _ in range(depth - 1):
        node = {"kind": "list", "children": [node]}
    return structure(node)


def test_depth() -> None:
    root = decode_structure(encode_structure(nested(MAX_DEPTH))).root
    depth = 1
    while children_of(root):
        (root,) = children_of(root)
        depth += 1
    assert depth == MAX_DEPTH == 64
    with raises("limit"):
        encode_structure(nested(MAX_DEPTH + 2))
    with raises("limit"):
        decode_structure(b"\x81\xa1x" * 300 + b"\xc0")


def test_the_deepest_context_is_validated_without_recursion_errors() -> None:
    node: dict[str, Any] = NONE
    for _ in range(MAX_NESTING - 2):
        node = {"kind": "custom", "type": "a:B", "context": node, "children": []}
    root = decode_structure(encode_structure(structure(node))).root
    assert isinstance(root, CustomNode)


def test_nodes_are_counted_before_models_are_built() -> None:
    # Not even nodes: the count is what is refused.
    with raises("limit"):
        decode_structure(pack(structure({"kind": "list", "children": [{}] * 50_001})))
    with raises("limit"):
        decode_structure(pack(structure(NONE) | {"future": [{}] * 50_001}))
    with raises("limit"):
        decode_leaves(pack([{}] * 50_001))


def test_unknown_fields_are_skipped() -> None:
    root = {"kind": "list", "children": [NONE | {"later": {"kind": 1}}], "later": 2}
    decoded = decode_structure(encode_structure(structure(root) | {"later": None}))
    assert decoded.model_dump(exclude_none=True) == {
        "root": {"kind": "list", "children": ({"kind": "none"},)}, "leaves": 0, "scalars": 0
    }  # fmt: skip


@pytest.mark.parametrize("document", [5, None, "x", b"", [], {}])
def test_documents_that_are_no_structure(document: Any) -> None:
    with raises("invalid"):
        decode_structure(pack(document))


def test_same_bytes_give_the_same_object() -> None:
    data = encode_structure(nested(5))
    assert decode_structure(data) is decode_structure(bytes(bytearray(data)))
    leaves = encode_leaves([LEAF])
    assert decode_leaves(leaves) is decode_leaves(bytes(bytearray(leaves)))


def test_memory_of_interned_structures_is_bounded() -> None:
    decoded = 0

    def decode(data: bytes) -> int:
        nonlocal decoded
        decoded += 1
        return len(data)

    intern = recent.Interner(decode)
    size = recent._INTERNED_BYTES // 4
    documents = [bytes([letter]) * size for letter in b"abcdefgh"]
    for document in documents:
        assert intern(document) == size
    assert decoded == 8
    assert len(intern._recent._known) == 4
    assert intern._recent._used == sum(map(len, intern._recent._known)) <= recent._INTERNED_BYTES
    intern(documents[-1])
    assert decoded == 8
    dropped = next(document for document in documents if document not in intern._recent._known)
    intern(dropped)
    assert decoded == 9
    # One that exceeds the budget alone is remembered until the next one comes.
    intern(b"x" * (5 * size))
    assert len(intern._recent._known) == 1
    intern(dropped)
    assert len(intern._recent._known) == 1


def test_one_document_too_many_does_not_cost_all_of_them() -> None:
    decoded = 0

    def decode(data: bytes) -> int:
        nonlocal decoded
        decoded += 1
        return len(data)

    intern = recent.Interner(decode)
    size = recent._INTERNED_BYTES // 20
    documents = [bytes([letter]) * size for letter in range(22)]
    for _ in range(20):
        for document in documents:
            intern(document)
    # 22 at least, and 440 if the oldest were dropped
    assert 22 <= decoded < 200


def test_a_failed_decoding_is_not_remembered() -> None:
    for _ in range(2):
        with raises("invalid"):
            decode_structure(pack(structure({"kind": ""})))


@pytest.mark.parametrize("within", ["children", "context"])
def test_a_kind_of_a_later_version_is_a_placeholder(within: str) -> None:
    later = {"kind": "unheard of", "type": "a:B", "scalar": -5, "children": 7}
    node: dict[str, Any] = {
        "kind": "seq", "py": "custom", "type": "c:D", "context": {"kind": "const"},
        "children": [],
    }  # fmt: skip
    node[within] = [later] if within == "children" else later
    found: Any = decode_structure(pack(structure(node))).root
    (got,) = found.children if within == "children" else (found.context,)
    assert (got.kind, got.type, got.reason) == ("opaque", "a:B", "unsupported")


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


def test_a_hint_of_a_later_version() -> None:
    """What a value was in Python does not matter to what it holds; of a constant it is all."""
    found: Any = decode_structure(pack(structure({
        "kind": "seq", "py": "deque", "type": "collections:deque", "children": [
            {"kind": "const", "py": "generator", "type": "torch:Generator"},
            {"kind": "const", "value": True},
        ],
    }))).root  # fmt: skip
    assert (found.kind, found.type) == ("tuple", "collections:deque")
    later, known = found.children
    assert (later.kind, later.type, later.reason) == ("opaque", "torch:Generator", "unsupported")
    assert (known.kind, known.value) == ("bool", True)
    for hint in ("", "x" * 65, 5, None):
        with raises("invalid"):
            decode_structure(pack(structure({"kind": "seq", "py": hint, "children": []})))


@pytest.mark.parametrize("node", [
    {"kind": "seq", "py": "slice", "children": []},
    {"kind": "seq", "py": "custom", "type": "c:D", "children": []},
    {"kind": "seq", "py": "custom", "context": {"kind": "const"}, "children": []},
    {"kind": "record", "py": "namedtuple", "fields": [], "children": []},
    {"kind": "const", "py": "dtype"},
    {"kind": "const", "py": "class"},
    {"kind": "const", "value": 1},
    {"kind": "scalar", "scalar": 0},
    {"kind": "scalar", "of": "text", "scalar": 0},
    {"kind": "list", "children": {}},
], ids=str)  # fmt: skip
def test_a_node_without_what_its_kind_or_hint_has(node: dict[str, Any]) -> None:
    if node["kind"] == "list":  # a word of Python is a kind that nobody knows
        root: Any = decode_structure(pack(structure(node))).root
        assert root.reason == "unsupported"
        return
    with raises("invalid"):
        decode_structure(pack({**structure(node), "scalars": 1}))


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


def test_a_kind_of_a_later_version_excuses_nothing_beside_it() -> None:
    beside = {"kind": "scalar", "of": "int", "scalar": 99}
    root = {"kind": "seq", "children": [{"kind": "x"}, beside]}
    with raises("invalid"):
        decode_structure(pack(structure(root)))


LEAF = {"dtype": "float32", "shape": [2, 3], "key": "args.0"}


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"shape": [-1]}, "shape.0"),
        ({"shape": [2**63]}, "shape.0"),
        ({"shape": [2**32, 2**31]}, "63 bits"),
        ({"shape": [0, 2**40, 2**40]}, "63 bits"),
        ({"shape": [1] * 65}, "at most 64"),
        ({"shape": "23"}, "shape"),
        ({"strides": [1]}, "1 strides for 2 sizes"),
        ({"strides": [1, -1]}, "strides.1"),
        ({"expanded": [2]}, "of rank 2"),
        ({"expanded": [1, 0]}, "do not ascend"),
        ({"expanded": [0, 0]}, "do not ascend"),
        ({"key": ""}, "key"),
        ({"key": None}, "either a key or a reason"),
        ({"missing": "policy"}, "either a key or a reason"),
        (
            {
                "key": None,
                "missing": "policy",
                "quantizer": {"scheme": "per_tensor_affine", "scale": 1.0, "zero_point": 0},
            },
            "a quantizer without",
        ),
        ({"dtype": 5}, "dtype"),
        ({"dtype": "x" * 65}, "at most 64"),
        ({"storage": 50_000}, "storage"),
        ({"storage": 0, "offset": -1}, "offset"),
        ({"offset": 4}, "shared with no leaf"),
        ({"requires_grad": 1}, "requires_grad"),
        ({"subclass": "Parameter"}, "subclass"),
        ({"quantizer": {"scheme": "per_channel", "scale": 1.0, "zero_point": 0}}, "scheme"),
    ],
)
def test_leaf_facts_that_no_tensor_has(changed: dict[str, Any], match: str) -> None:
    with raises("invalid", match):
        leaf = {name: one for name, one in (LEAF | changed).items() if one is not None}
        encode_leaves([LEAF, leaf])


def test_the_largest_tensor() -> None:
    (leaf,) = decode_leaves(encode_leaves([LEAF | {"shape": [2**63 - 1], "expanded": [0]}]))
    assert leaf.shape == (2**63 - 1,)


def tree_of(root: Any, scalars: tuple[Any, ...], leaves: int = 0) -> Tree:
    return Tree(
        structure=encode_structure(structure(root, leaves, len(scalars))),
        leaves=encode_leaves([LEAF] * leaves),
        scalars=scalars,
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", 1), ("float", 1.0), ("str", "\ud800"), ("bytes", b""), ("complex", (1.0, 2.0))],
)
def test_scalars_have_the_type_of_their_node(kind: str, value: Any) -> None:
    node = {"kind": kind, "scalar": 0}
    assert tree_of(node, (value,)).spec().scalars == 1
    for other in {1, "\ud800", b"", (1.0, 2.0)} - {value}:
        if type(other) is not type(value):
            with raises("invalid", "scalar 0 is a"):
                tree_of(node, (other,)).spec()


@pytest.mark.parametrize("value", [True, None, (), (1, 2), (1.0,), (1.0, 2.0, 3.0), {}, [1.0, 2.0]])
def test_scalars_are_plain(value: Any) -> None:
    with pytest.raises(ValueError, match="among the scalars"):
        tree_of({"kind": "int", "scalar": 0}, (value,))


def test_a_structure_of_other_leaves() -> None:
    fitting = tree_of({"kind": "tensor", "leaf": 0}, (), leaves=1)
    assert len(fitting.facts()) == fitting.spec().leaves == 1
    other = fitting.model_copy(update={"leaves": encode_leaves([LEAF, LEAF])})
    with raises("invalid", "does not fit"):
        other.spec()


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


@pytest.mark.parametrize(
    "key", ["x" * 1025, b"x" * 1025, 2**64, -(2**63) - 1, [1] * 17, ["x" * 1025], [2**64]],
    ids=lambda key: f"{type(key).__name__}-{len(str(key))}",
)  # fmt: skip
def test_a_key_that_is_too_long(key: Any) -> None:
    with raises("invalid", "key"):
        keyed([key])


@pytest.mark.parametrize("key", ["x" * 1024, b"x" * 1024, -(2**63), [1] * 16], ids=repr)
def test_a_key_that_is_long(key: Any) -> None:
    assert keyed([key])


COLLIDING: dict[str, Callable[[int], Any]] = {
    "tuples": lambda i: [-1 - (i >> bit & 1) for bit in range(16)],
    "ints in tuples": lambda i: [(2**61 - 1) * (i >> 2 * part & 3) for part in range(8)],
}


@pytest.mark.parametrize("name", ["tuples", "ints in tuples"])
def test_keys_of_one_hash(name: str) -> None:
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
def test_keys_that_are_equal(one: Any, two: Any, *, is_same: bool) -> None:
    if is_same:
        with raises("invalid", "same name twice"):
            keyed([one, two])
    else:
        assert keyed([one, two])


def test_a_long_key_over_many_leaves() -> None:
    """One key of a kilobyte would be part of every path below it."""
    many = {"kind": "list", "children": [NONE] * 5000}
    inside = {"kind": "dict", "keys": ["x" * 1024], "children": [many]}
    with raises("invalid", "paths of more than"):
        encode_structure(structure(inside))
    few = {**inside, "children": [{**many, "children": [NONE] * 4000}]}
    assert encode_structure(structure(few))
