"""What does not go onto a tape, by path, and what stands for it."""

from __future__ import annotations

import dataclasses
import enum
import tracemalloc
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from calltape_recorder import First, Novelty, record
from calltape_recorder.bounds import MAX_KNOWN_PATHS
from calltape_recorder.capture import omissions
from calltape_recorder.capture.omissions import Omissions, is_name, is_public_default
from calltape_schema.inputs_document import pack_inputs
from calltape_schema.packing import unpack
from calltape_schema.privacy import matches_whole
from calltape_schema.records import Parameter
from tests.recorder.calls import taped
from tests.recorder.models import Echo
from tests.recorder.reading import ReadCall, read

ROW = torch.arange(4)


def signature(*kinds: str) -> list[Parameter]:
    made = (kind.partition(" ") for kind in kinds)
    return [Parameter(name=name, kind=kind or "POSITIONAL_OR_KEYWORD") for name, _, kind in made]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "path", "degree"),
    [
        ({"*": "all"}, "args.0", "nothing"),
        ({"*": "none"}, "args.0", "values"),
        ({"*": "none", "prompt": "none"}, "args.0", "numbers"),
        ({"*": "none", "prompt": "none"}, "args.0.deep.er", "numbers"),
        ({"*": "none", "prompt": "none"}, "kwargs.prompt", "numbers"),
        ({"*": "none", "prompt": "none"}, "kwargs.prompts", "values"),
        ({"prompt": "none", "*": "none"}, "args.0", "numbers"),  # whatever the order
        ({"prompt": "none", "*": "all"}, "args.0", "nothing"),
        ({"prompt": "none"}, "args.1", "nothing"),
        ({"*": "all", "prompt.*": "none"}, "args.0.x", "values"),
        ({"*": "all", "prompt.*": "none"}, "args.0", "values"),  # a bare one
        ({"*": "all", "outputs.*": "none"}, "outputs", "values"),
        ({"*": "none", "prompt.*": "all"}, "args.0", "values"),
        ({"*": "all", "outputs": "none"}, "outputs", "numbers"),
        ({"*": "all", "outputs": "none"}, "kwargs.outputs", "numbers"),
        # Whatever a path may be called.
        ({"*": "all", "args.0": "none"}, "args.0", "numbers"),
        ({"*": "all", "kwargs.prompt": "none"}, "kwargs.prompt", "numbers"),
        ({"*": "all", "rest": "none"}, "args.2", "numbers"),
        ({"*": "all", "rest.1": "none"}, "args.3", "numbers"),
        ({"*": "all", "rest.1": "none"}, "args.2", "nothing"),
        ({"*": "all", "late": "none"}, "args.2", "nothing"),  # it never comes by position
        ({"*": "all", "more": "none"}, "kwargs.unheard_of", "numbers"),
        ({"*": "all", "more": "none"}, "kwargs.late", "nothing"),
    ],
)
def test_the_most_specific_path_decides_what_is_omitted(
    values: dict[str, str], path: str, degree: str
) -> None:
    known = signature("prompt", "n", "rest VAR_POSITIONAL", "late KEYWORD_ONLY", "more VAR_KEYWORD")
    assert Omissions(tuple(values.items()), known).degree(path) == degree


def test_few_patterns_are_matched_with_each_path_and_each_path_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host whose structures are new in each call pays for it in each call."""
    asked: list[str] = []
    monkeypatch.setattr(
        omissions, "matches_whole",
        lambda pattern, names: asked.append(pattern) or matches_whole(pattern, names),
    )  # fmt: skip
    many = {f"*.f{number}.*x": "none" for number in range(999)}
    decides = Omissions(tuple({"*": "all", **many}.items()))
    for _ in range(3):
        for number in range(100):
            path = f"args.0.f{number}.0.x"
            decides.meet(path)
            assert decides.degree(path) == "values"
    assert len(asked) == 2 * 100
    assert len(decides.unmatched) == 899


def test_what_is_remembered_of_paths_has_a_bound() -> None:
    decides = Omissions((("*", "all"), ("args.0.x*", "none")))
    tracemalloc.start()
    try:
        for number in range(3 * MAX_KNOWN_PATHS):
            assert decides.degree(f"args.0.y{number}") == "nothing"
            assert decides.degree(f"args.0.x{number}") == "values"
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200 * MAX_KNOWN_PATHS
    assert decides.degree("args.0.x" + 5000 * "y") == "values"


def test_names_of_keys() -> None:
    for key in ("pixel_values", "past_key_values.0", "a-b", "conv2d", "0", "h/1", "größe", 7, None,
                True, ("text", 3)):  # fmt: skip
        assert is_name(key), key
    for key in ("alice@example.com", "a sentence", "user_82317", "", "x" * 65, "12345",
                "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "+4912", 82317, 1.5, b"x", ("x", 82317),
                "line\nbreak"):  # fmt: skip
        assert not is_name(key), key


@pytest.mark.parametrize(
    ("default", "name", "kept"),
    [
        (None, "x", (True, True)), (True, "x", (True, True)), (1e-5, "x", (True, True)),
        (-1024, "x", (True, True)), (82317, "x", (True, False)), (2**70, "x", (False, False)),
        (82317.5, "x", (True, False)), (float("inf"), "x", (True, True)),
        ("bilinear", "mode", (True, False)), ("", "text", (True, False)),
        ("hunter", "api_key", (False, False)), ("https://me:pw@host", "url", (False, False)),
        ("x" * 33, "mode", (False, False)), (b"x", "x", (False, False)), ([], "x", (False, False)),
    ],
)  # fmt: skip
def test_only_public_defaults_are_kept(default: Any, name: str, kept: tuple[bool, bool]) -> None:
    found = (
        is_public_default(default, name, omits_values=omits_values)
        for omits_values in (False, True)
    )
    assert tuple(found) == kept


def test_the_manifest_says_which_defaults_are_missing(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(
            self, x: Any, y: Any = None, key: str = "sk-1", n: int = 4, m: int = 9**9
        ) -> None:
            pass

    for values in ("all", "none"):
        with record(Model(), tmp_path / f"{values}.tape", values=values):  # type: ignore[arg-type]
            pass
    found = {}
    for values in ("all", "none"):
        target = read(tmp_path / f"{values}.tape").target
        assert target.signature is not None
        found[values] = [(p.has_default, p.default, p.default_missing) for p in target.signature]
    first = [(False, None, False), (True, None, False), (True, None, True), (True, 4, False)]
    assert found == {"all": [*first, (True, 9**9, False)], "none": [*first, (True, None, True)]}


# --- what stands there ----------------------------------------------------------------------------


@dataclasses.dataclass
class Request:
    text: str
    rate: float
    row: Any = None


class DynamicCache:
    def __init__(self) -> None:
        self.seen = 7
        self.tokens: Any = None
        self.name = "secret"


class UserIds(list[int]):
    pass


class Mode(str, enum.Enum):
    FAST = "secret"


class Flags(enum.IntFlag):
    A = 1
    B = 2


def shown(node: Any, scalars: tuple[Any, ...]) -> Any:
    """A node in short: what it has, or the kind and length of what was there."""
    if node.kind == "opaque":
        return (node.of, node.length if node.length is None else scalars[node.length])
    if hasattr(node, "scalar"):
        return scalars[node.scalar]
    if hasattr(node, "keys"):
        return dict(zip(node.keys, (shown(c, scalars) for c in node.children), strict=True))
    if hasattr(node, "fields"):
        return dict(zip(node.fields, (shown(c, scalars) for c in node.children), strict=True))
    if hasattr(node, "children"):
        return [shown(child, scalars) for child in node.children]
    return getattr(node, "name", node.kind)


def inputs(call: ReadCall) -> Any:
    tree = call.record.inputs
    args, kwargs = tree.spec().root.children
    return shown(args, tree.scalars), shown(kwargs, tree.scalars)


def outputs(call: ReadCall) -> Any:
    tree = call.record.outputs
    assert tree is not None
    return shown(tree.spec().root, tree.scalars)


def test_calls_whose_texts_differ_have_one_structure(tmp_path: Path) -> None:
    model, path = Echo(), tmp_path / "t.tape"
    with record(model, path, values="none") as recorder:
        for length in range(50):
            model("x" * length, ROW)
    records = [call.record for call in read(path).calls]
    assert len({record.inputs.structure for record in records}) == 1
    assert [record.inputs.scalars for record in records] == [(n,) for n in range(50)]
    assert recorder.stats().kept == 50


def cache_of(tokens: Any) -> DynamicCache:
    cache = DynamicCache()
    cache.tokens = tokens
    return cache


IDS, GONE = list(range(100, 107)), ("int", None)
USERS = {"alice@example.com": ROW, "image": 1, 82317: 2, "bob smith": "x", 3: 4}
ONLY_PAST = {"*": "all", "past": "none"}
CACHE = {"seen": 7, "tokens": "none", "name": ("str", 6)}
# What is recorded, how, and what is on the tape.
STANDS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "text and bytes": (
        {"a": "secret", "b": b"secrets", "c": ["größer", {"a": "x" * 300}], "d": Request("s", 0.5)},
        "none",
        {"a": ("str", 6), "b": ("bytes", 7), "c": [("str", 6), {"a": ("str", 300)}],
         "d": {"text": ("str", 1), "rate": 0.5, "row": "none"}},
    ),
    "numbers, but not at a path": (
        {"prompt": ["x", 5, 0.5, 2j], "n": 5, "kept": "as it is", "f": 0.5},
        {"*": "none", "prompt": "none", "kept": "all"},
        {"prompt": [("str", 1), GONE, ("float", None), ("complex", None)], "n": 5,
         "kept": "as it is", "f": 0.5},
    ),
    "a list whose path is kept": (
        {"sizes": [1, 2, 3, 4, 5]}, {"*": "none", "sizes": "all"}, {"sizes": [1, 2, 3, 4, 5]},
    ),
    "a cache": ({"past": cache_of(None)}, ONLY_PAST, {"past": CACHE}),
    "its sizes": (
        {"past": cache_of([5, 6, 7, 8])}, ONLY_PAST, {"past": {**CACHE, "tokens": [5, 6, 7, 8]}},
    ),
    "a layer each": (
        {"past": cache_of([SimpleNamespace(length=n) for n in range(9)])}, ONLY_PAST,
        {"past": {**CACHE, "tokens": [{"length": n} for n in range(9)]}},
    ),
    "ids in a cache": (
        {"past": cache_of([5, 6, 7, 8, 9])}, ONLY_PAST, {"past": {**CACHE, "tokens": [GONE] * 5}},
    ),
    "keys that are no names": (
        {"users": USERS, "space": SimpleNamespace(**{"a b": 1, "c": 2}), "d e": 1}, "none",
        {"users": {"?0": "tensor", "image": 1, "?2": 2, "?3": ("str", 1), 3: 4},
         "space": {"?0": 1, "c": 2}, "?2": 1},
    ),
    "such keys at a path that is kept": (
        {"users": USERS}, {"*": "none", "users.*": "all"},
        {"users": {**USERS, "alice@example.com": "tensor"}},
    ),
    "a key that looks like a position": (  # as a pattern, it matches one more character
        {"x": {"a b": 1, "?0": 2}}, {"*": "none", "x.?0": "all"}, {"x": {"?0?": 1, "?0": 2}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STANDS)
def test_an_omitted_argument_is_replaced_by_its_kind_and_size(tmp_path: Path, name: str) -> None:
    given, values, expected = STANDS[name]
    assert inputs(taped(tmp_path, values=values, **given)) == ([], expected)


def test_many_numbers_are_data(tmp_path: Path) -> None:
    named = {0: 1, 1: 2, 2: 3, 3: 4, "k": 5}
    given: dict[str, tuple[Any, Any]] = {
        "a prompt": (IDS, [GONE] * 7),
        "on the edge": (IDS[:5], [GONE] * 5),
        "of few": (IDS[:4], IDS[:4]),
        "prompts of few": ([IDS[:2], IDS[:2], (5,)], [[GONE] * 2, [GONE] * 2, [GONE]]),
        "a size": ((3, 4), [3, 4]),
        "sizes": ([(3, 4), [5, 6]], [[3, 4], [5, 6]]),
        "of axes": (torch.Size(IDS), IDS),
        "sizes of axes": ([torch.Size(IDS)] * 2, [IDS] * 2),
        "among texts": ([5, "x", 6, None, 7, 8, 9.5], [
            GONE, ("str", 1), GONE, "none", GONE, GONE, ("float", None),
        ]),
        "with names": (dict.fromkeys("abcdefghi", 5), dict.fromkeys("abcdefghi", 5)),
        "by position": (dict(enumerate(IDS)), dict.fromkeys(range(7), GONE)),
        "by digits": ({str(n): i for n, i in enumerate(IDS)},
                      dict.fromkeys(map(str, range(7)), GONE)),
        "by a few positions": ({0: 5, 1: 6}, {0: 5, 1: 6}),
        "by position and name": (named, named),
        "in dicts": ([{"id": 7}] * 5, [{"id": GONE}] * 5),
        "in few dicts": ([{"id": 7}] * 4, [{"id": 7}] * 4),
        "in a deque": (deque(IDS), [GONE] * 7),
        "of a subclass": (UserIds(IDS), [GONE] * 7),
        "numpy's": ([np.int64(5)] * 5, [GONE] * 5),
        "slices": ((slice(0, 4, 2),) * 4, [[0, 4, 2]] * 4),
        "in one slice of many": ([range(5)] * 5, [[GONE] * 3] * 5),
    }  # fmt: skip
    values, expected = zip(*given.values(), strict=True)
    call = taped(tmp_path, values="none", **{f"x{n}": value for n, value in enumerate(values)})
    assert dict(zip(given, inputs(call)[1].values(), strict=True)) == dict(
        zip(given, expected, strict=True)
    )
    # Arguments of *args are a list as well.
    assert inputs(taped(tmp_path, *IDS, values="none"))[0] == [GONE] * 7


def test_arguments_with_names_are_no_list(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any,
                    j: Any) -> None:  # fmt: skip
            pass

    model = Model()
    with record(model, tmp_path / "t.tape", values="none"):
        model(*range(10))
    assert inputs(read(tmp_path / "t.tape").calls[0])[0] == list(range(10))


def test_numbers_that_a_model_returns_are_omitted(tmp_path: Path) -> None:
    found = outputs(
        taped(tmp_path, result=(5, {"score": 0.5}, True, "text", DynamicCache()), values="none")
    )
    assert found == [
        ("int", None), {"score": ("float", None)}, "bool", ("str", 4),
        CACHE,
    ]  # fmt: skip


def test_enums_and_flags_lose_their_values(tmp_path: Path) -> None:
    call = taped(tmp_path, Mode.FAST, Flags.A | Flags.B, Flags(82317), Flags(0), values="none")
    fast, both, other, zero = call.args
    assert (fast.kind, fast.name, fast.value) == ("enum", "FAST", None)
    assert both.kind == zero.kind == "enum"
    assert other.kind == "opaque"
    assert taped(tmp_path, Mode.FAST).args[0].value == "secret"


def test_a_tensor_at_two_places_is_withheld_where_it_is_at_either(tmp_path: Path) -> None:
    values = {"*": "all", "prompt": "none"}
    call = taped(tmp_path, x=ROW, prompt=[ROW], other=ROW.clone(), values=values)
    assert [leaf.missing for leaf in call.record.inputs.facts()] == ["policy", None]
    assert ROW.numpy().tobytes() in call.blob  # of the other one


def padded(count: int, fill: int, dtype: torch.dtype = torch.int64, size: int = 2048) -> Any:
    """Of ``count`` different ids, above and below what fills the rest."""
    made = torch.full((size,), fill, dtype=dtype)
    made[:count] = torch.arange(17, 17 + count).to(dtype)
    return made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (padded(1, 0), None),
        (padded(10, 20), None),
        (padded(10, 50_256, torch.int32), None),
        (padded(200, 0, torch.uint8), None),
        (padded(10, 2, torch.uint64), None),
        (padded(1022, 0, size=100_000), None),
        (padded(1023, 0, size=100_000), (0, 1039)),
        (padded(1024, 17, torch.uint64), (17, 1040)),
        (torch.arange(-1, 1023), (-1, 1022)),
        (torch.ones(1024, dtype=torch.int64), (1, 1)),
        (padded(2048, 0) % 2, (0, 1)),
        (torch.ones(1023, dtype=torch.int64), None),
        (torch.full((2048,), 2), None),
    ],
)  # fmt: skip
def test_the_range_of_few_that_differ_is_withheld(
    tmp_path: Path, given: Any, expected: tuple[int, int] | None
) -> None:
    """A step that is padded to its full length has one id that matters, which is its largest."""
    assert taped(tmp_path, given, values="none").ranges.get(0) == expected


# --- counters ------------------------------------------------------------------------------------


def test_counters_tell_no_int_and_no_key_of_calls_that_were_not_kept(tmp_path: Path) -> None:
    model, path = Echo(), tmp_path / "t.tape"
    with record(model, path, keep=First(1), values="none"):
        for number in range(3, 9):
            model(torch.zeros(number), number)
        model({"alice": torch.zeros(3)})
    table = read(path).table
    (row,), (kind,) = table.rows.values(), table.kinds.values()
    assert (row.seen, kind.seen, table.other.seen) == (1, 5, 1)
    size, number = kind.axes
    assert number is None
    assert size is not None  # sizes are what a tape is for
    assert (min(size.sizes), size.max) == (4, 8)
    assert unpack(row.scalars) == (3,)  # of the call that is on the tape
    assert b"alice" not in pack_inputs(table)


def test_novelty_goes_by_what_will_be_on_the_tape(tmp_path: Path) -> None:
    model, path = Echo(), tmp_path / "t.tape"
    with record(model, path, keep=Novelty(), values="none") as recorder:
        for number in range(1, 40):
            model("x" * number, torch.zeros(4))
    assert recorder.stats().kept <= 2
