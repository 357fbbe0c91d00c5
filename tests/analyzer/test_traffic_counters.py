"""What the trailers say of the whole traffic: adding up, names, and what inference makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import open_tape
from calltape_analyzer.binding import Signature
from calltape_analyzer.targets.buckets import buckets
from calltape_analyzer.targets.coreml import range_dimensions
from calltape_analyzer.targets.openvino import partial_shapes
from calltape_analyzer.targets.tensorrt import optimization_profile
from calltape_analyzer.targets.torch_compile import mark_dynamic
from calltape_analyzer.traffic_counters import Counters, Values, ints_of, tensors_of
from calltape_recorder import First, When, record
from calltape_schema.traffic import MAX_SIZES, Axis, Group, Traffic
from calltape_schema.tree import encode_structure
from tests.analyzer.tapes import Recorded, write_tape
from tests.analyzer.test_cli import run
from tests.analyzer.test_explaining import toy_lm

ZEROS = torch.zeros


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int = 3, scale: float = 1.0) -> torch.Tensor:
        if x.shape[1] == 13:
            raise ValueError("13")
        return x * 2


def doubled(path: Path, sizes: list[tuple[int, int]], keep: Any, **more: Any) -> Path:
    model = Doubling()
    with record(model, path, keep=keep, **more):
        for size in sizes:
            model(ZEROS(size))
    return path


def structure(leaves: int, ints: int, name: str = "x") -> bytes:
    nodes: list[Any] = [{"kind": "tensor", "leaf": i} for i in range(leaves)]
    nodes += [{"kind": "int", "scalar": i} for i in range(ints)]
    args = {"kind": "tuple", "children": nodes}
    kwargs = {"kind": "dict", "keys": [name], "children": [{"kind": "none"}]}
    root = {"kind": "tuple", "children": [args, kwargs]}
    return encode_structure({"root": root, "leaves": leaves, "scalars": ints})


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    sizes = draw(st.dictionaries(st.integers(0, 60), st.integers(1, 9), max_size=MAX_SIZES))
    other = draw(st.integers(0 if sizes else 1, 9))
    beyond = draw(st.lists(st.integers(0, 99), min_size=1)) if other else []
    every = [*sizes, *beyond]
    return Axis(
        min=min(every), max=max(every), sizes=tuple(sorted(sizes.items())), other_calls=other
    )


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    groups = []
    for name in draw(st.sets(st.sampled_from("ab"))):
        for dtype in draw(st.sets(st.sampled_from(["int64", "float32"]))):
            group = Group(
                structure=structure(1, 1, name), calls=draw(st.integers(1, 99)), dtypes=(dtype,),
                leaves=((draw(axes()), draw(axes())),), scalars=(draw(st.none() | axes()),),
            )  # fmt: skip
            groups.append(group)
    return Traffic(groups=tuple(groups), other_calls=draw(st.integers(0, 9)))


def counters(traffic: Traffic) -> Counters:
    made, errors = Counters.of(traffic)
    assert not errors
    return made


@given(traffics(), traffics(), traffics())
def test_merging_is_associative_and_commutative(one: Traffic, two: Traffic, three: Traffic) -> None:
    a, b, c = map(counters, (one, two, three))
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(b).calls == a.calls + b.calls
    assert a.merge(Counters()) == a


@given(axes(), axes())
def test_no_call_is_lost_beyond_the_sizes_that_are_kept(one: Axis, other: Axis) -> None:
    def calls(values: Values) -> int:
        return sum(values.sizes.values()) + values.other_calls

    a, b = Values.of(one), Values.of(other)
    both = a.merge(b)
    assert calls(both) == calls(a) + calls(b)
    assert len(both.sizes) <= MAX_SIZES
    assert (both.min, both.max) == (min(a.min, b.min), max(a.max, b.max))


def test_sizes_beyond_32_are_summed_up() -> None:
    one = Values(0, 31, dict.fromkeys(range(32), 2))
    other = Values(20, 40, dict.fromkeys(range(20, 41), 1))
    both = one.merge(other)
    assert list(both.sizes) == list(range(32))
    assert (both.sizes[0], both.sizes[20], both.other_calls, both.max) == (2, 3, 9, 40)


@pytest.mark.parametrize(
    ("values", "taken", "left"),
    [
        (Values(1, 9, {1: 2, 9: 1}), (9, 1), Values(1, 1, {1: 2})),
        (Values(1, 9, {1: 2, 9: 3}), (9, 1), Values(1, 9, {1: 2, 9: 2})),
        (Values(1, 9, {1: 2}, 2), (9, 1), Values(1, 9, {1: 2}, 1)),
        (Values(1, 9, {1: 2}, 1), (9, 1), Values(1, 1, {1: 2})),
        (Values(9, 9, {9: 1}), (9, 1), None),
    ],
)
def test_calls_can_be_taken_out(
    values: Values, taken: tuple[int, int], left: Values | None
) -> None:
    assert values.without(*taken) == left


def test_names_are_those_of_the_signature(tmp_path: Path) -> None:
    model = toy_lm()
    with record(model, tmp_path / "a.tape", keep=First(1)):
        _, cache = model(ZEROS(2, 3, dtype=torch.int64))
        model(ZEROS(2, 1, dtype=torch.int64), past_key_values=cache, scale=0.5)
        model(input_ids=ZEROS(2, 1, dtype=torch.int64), past_key_values=[cache[0], cache[1], None])
    with open_tape(tmp_path / "a.tape") as tape:
        found = tape.counters
        signature = Signature.of(tape.target)
        assert (found.calls, found.other_calls, found.complete) == (3, 0, True)
        names = [[name for name, _, _ in tensors_of(g, signature)] for g in found.in_order()]
    assert sorted(names) == [
        ["input_ids"],
        ["input_ids", "past_key_values.0", "past_key_values.1"],
        ["input_ids", "past_key_values.0", "past_key_values.1"],
    ]


def test_ints_have_values(tmp_path: Path) -> None:
    model = Doubling()
    with record(model, tmp_path / "a.tape", keep=First(1)):
        for n in (5, 9, 5):
            model(ZEROS(2, 2), n)
    with open_tape(tmp_path / "a.tape") as tape:
        (group,) = tape.counters.groups.values()
        ((name, values),) = ints_of(group, Signature.of(tape.target))
    assert (name, values) == ("n", Values(5, 9, {5: 2, 9: 1}))


def test_files_add_up_and_those_without_counters_are_named(tmp_path: Path) -> None:
    doubled(tmp_path / "a.tape", [(2, 3), (2, 4)], First(1))
    doubled(tmp_path / "b.tape", [(5, 3)], First(1))
    plain = write_tape(tmp_path / "c.tape", [], sealed=False)
    with open_tape([tmp_path / "a.tape", tmp_path / "b.tape", plain]) as tape:
        found = tape.counters
        assert not found.complete
        assert found.missing == {str(plain)}
        (group,) = found.groups.values()
        assert group.calls == found.calls == 3
        assert group.leaves[0] == (Values(2, 5, {2: 2, 5: 1}), Values(3, 4, {3: 2, 4: 1}))


def test_a_group_that_contradicts_itself_is_left_out() -> None:
    axis = Axis(min=1, max=2, sizes=((1, 1), (2, 1)))
    wrong = [
        Group(structure=b"\xc1", calls=1),
        Group(structure=structure(2, 0), calls=2, dtypes=("int8",), leaves=((axis,),)),
        Group(structure=structure(0, 1), calls=4, scalars=(Axis(min=3, max=2),)),
        Group(
            structure=structure(1, 0), calls=8, dtypes=("int8",), leaves=((Axis(min=-1, max=2),),)
        ),
    ]
    made, errors = Counters.of(Traffic(groups=tuple(wrong), other_calls=16))
    assert (made.calls, made.other_calls, len(errors)) == (31, 31, 4)
    assert not made.groups


def test_a_trailer_that_lies_is_damage_and_nothing_worse(tmp_path: Path) -> None:
    """Of a group that breaks the format only the calls are left; sound ones are as they are."""
    good = Group(
        structure=structure(1, 0), calls=3, dtypes=("int8",),
        leaves=((Axis(min=1, max=9, other_calls=3),),),
    )  # fmt: skip
    axes = (Axis(min=0, max=2**63 - 1, sizes=((0, 1), (2**63 - 1, 2**62 - 1))),) * 64
    wide = Group(structure=structure(1, 0), calls=2**62, dtypes=("\x1b[31m",), leaves=(axes,))
    wrong = Group(structure=b"\xc1", calls=5)
    deep = Group(structure=b"\x91" * 10_000 + b"\x90", calls=7)
    path = write_tape(
        tmp_path / "a.tape", [((ZEROS(4),), {"x": None})],
        traffic=Traffic(groups=(good, wide, wrong, deep), other_calls=2**62 - 16),
        dropped={"policy": 2**63 - 2},
    )  # fmt: skip
    with open_tape(path) as tape:
        found = tape.counters
        assert [group.calls for group in found.in_order()] == [2**62, 3]
        assert found.other_calls == 2**62 - 16 + 12
        assert [error.path for error in tape.damage] == [str(path)] * 2
        assert {error.kind for error in tape.damage} <= {"invalid", "limit", "damaged"}
        tape.variants()
        tape.shape_findings()
    shown = run("info", path)
    assert "\x1b" not in shown.out
    assert "Traceback" not in shown.err
    assert run("info", path, "--json").out.startswith("{")


# What inference makes of it.

SIZES = [(2, 3), (2, 6), (4, 5), (1, 40), (8, 7), (8, 2)]


def test_ranges_for_engines_are_those_of_the_whole_traffic(tmp_path: Path) -> None:
    with open_tape(doubled(tmp_path / "a.tape", SIZES, First(3))) as tape:
        (variant,) = tape.variants()
        made = optimization_profile(variant)
        profile = made.inputs["x"]
        assert made.notes[0].startswith("kept 3 of 6 calls: the sizes that kernels")
        assert (profile.min, profile.max) == ((1, 2), (8, 40))
        assert partial_shapes(variant) == {"x": [(1, 8), (2, 40)]}
        lower, upper = range_dimensions(variant)["x"]
        assert isinstance(lower, dict)
        assert isinstance(upper, dict)
        assert (lower["lower"], lower["upper"], upper["upper"]) == (1, 8, 40)
        marks = mark_dynamic(variant, (ZEROS(4, 5),))
        assert [(mark.min, mark.max) for mark in marks] == [(2, 8), (2, 40)]
        assert [(s.min, s.max, s.distinct) for s in variant.findings.symbols] == [
            (1, 8, 2), (2, 40, 3)
        ]  # fmt: skip


def test_a_relation_that_only_the_kept_calls_have(tmp_path: Path) -> None:
    sizes = [(2, 3), (4, 5), (6, 7), (3, 40)]
    with open_tape(doubled(tmp_path / "a.tape", sizes, First(3))) as tape:
        (variant,) = tape.variants()
        assert optimization_profile(variant).inputs["x"].max == (6, 40)
        warnings = list(variant.findings.warnings())
    assert any("+ 1 held in the kept calls, but not in all" in text for text in warnings)


def test_buckets_weigh_the_whole_traffic(tmp_path: Path) -> None:
    sizes = [(2, 3), (2, 5), *[(2, 9)] * 6]
    with open_tape(doubled(tmp_path / "a.tape", sizes, First(2))) as tape:
        (variant,) = tape.variants()
        (symbol,) = variant.facts.symbols
        found = buckets(variant, symbol.name, 2)
    assert (found.sizes, found.calls, found.weighs) == ((5, 9), (2, 6), "all")
    many = [(2, 3), (2, 5), *[(2, n) for n in range(20, 60)]]
    with open_tape(doubled(tmp_path / "b.tape", many, First(2))) as tape:
        (variant,) = tape.variants()
        few = buckets(variant, symbol.name, 3)
    assert (few.sizes, few.weighs) == ((3, 5, 59), "kept and largest")


def test_explain_tells_kept_calls_and_all(tmp_path: Path) -> None:
    with open_tape(doubled(tmp_path / "a.tape", SIZES, First(3))) as tape:
        text = str(tape.explain("x", 1))
        (dimension,) = tape.explain("x", 1).parts[0].dimensions
    assert "kept 3 of 6 calls: 3 to 6; over all: 2 to 40" in text
    assert text.count("kept 3") == 1
    assert dimension.whole is not None
    assert (dimension.whole.min, dimension.whole.max) == (2, 40)


def test_nothing_is_said_where_the_kept_calls_have_all_sizes(tmp_path: Path) -> None:
    with open_tape(doubled(tmp_path / "a.tape", SIZES, First(9))) as tape:
        assert "kept" not in str(tape.explain("x"))
        assert list(tape.variants()[0].findings.warnings()) == []


def test_a_constant_that_is_none_is_a_warning_and_stays_constant(tmp_path: Path) -> None:
    sizes = [(2, 3), (2, 5), (8, 4)]
    with open_tape(doubled(tmp_path / "a.tape", sizes, First(2))) as tape:
        (variant,) = tape.variants()
        assert variant.findings.tensors[0].shape[0] == 2
        assert optimization_profile(variant).inputs["x"].max == (2, 5)
        note = "x[0] is constant, but kept 2 of 3 calls: 2; over all: 2 to 8"
        assert note in list(variant.findings.warnings())
        explained = tape.explain("x", 0)
    assert "warning: it is constant in the kept calls only" in str(explained)


def test_calls_that_raised_widen_nothing(tmp_path: Path) -> None:
    model = Doubling()
    with record(model, tmp_path / "a.tape"):
        for size in ((2, 3), (2, 5), (8, 13)):
            try:
                model(ZEROS(size))
            except ValueError:
                assert size == (8, 13)
    with open_tape(tmp_path / "a.tape") as tape:
        assert tape.counters.calls == 3
        (variant,) = tape.variants()
        assert optimization_profile(variant).inputs["x"].max == (2, 5)
        assert not any("all" in text for text in variant.findings.warnings())


def test_variants_that_counters_cannot_tell_apart_keep_their_ranges(tmp_path: Path) -> None:
    model = Doubling()
    small = When(lambda args, kwargs: args[0].shape[1] < 20)
    with record(model, tmp_path / "a.tape", keep=small):
        for scale, length in ((0.5, 3), (0.5, 5), (0.25, 3), (0.25, 7), (0.5, 40)):
            model(ZEROS(2, length), scale=scale)
    with open_tape(tmp_path / "a.tape") as tape:
        one, other = tape.variants()
        assert optimization_profile(one).inputs["x"].max == (2, 5)
        assert optimization_profile(other).inputs["x"].max == (2, 7)
        text = str(tape.explain("x", 1))
        assert one.findings.all_calls is None
    told = f"kept 4 of 5 calls (those of {other.name} among them): 3 to 7; over all: 3 to 40"
    assert told in text


def test_an_equality_that_only_the_kept_calls_have(tmp_path: Path) -> None:
    class Adding(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a.sum() + b.sum()

    model = Adding()
    with record(model, tmp_path / "a.tape", keep=First(2)):
        for first, second in ((2, 2), (3, 3), (4, 9)):
            model(ZEROS(first), ZEROS(second))
    with open_tape(tmp_path / "a.tape") as tape:
        warnings = list(tape.variants()[0].findings.warnings())
    assert any("a[0] and b[0] were equal in the kept calls, but not in all" in w for w in warnings)


def test_ranges_are_of_the_calls_that_are_counted(tmp_path: Path) -> None:
    """A file without a trailer has calls and no counters: its sizes count as well."""
    one = doubled(tmp_path / "a.tape", [(2, 3), (2, 6), (2, 9)], First(2))
    other = write_tape(tmp_path / "b.tape", [((ZEROS(2, 50),), {})], target=Doubling(),
                       sealed=False, tape_id=b"b" * 16)  # fmt: skip
    with open_tape([one, other]) as tape:
        (variant,) = tape.variants()
        assert optimization_profile(variant).inputs["x"].max == (2, 50)
        assert variant.findings.all_calls == 3
        (axis,) = [a for a in tape.shape_findings().arguments[0].leaves[0].axes if a.dynamic]
        assert axis.whole is None


def test_sums_over_files_have_no_limit(tmp_path: Path) -> None:
    most = 2**63 - 1
    paths = [
        write_tape(
            tmp_path / f"{n}.tape", [], tape_id=bytes([n]) * 16,
            dropped={f"{n} {reason}": most // 900 for reason in range(600)},
        )
        for n in range(3)
    ]  # fmt: skip
    with open_tape(paths) as tape:
        coverage = tape.coverage
    assert coverage.seen == 1800 * (most // 900) > most
    assert len(coverage.dropped) == 1800


# Calls that were written ahead.


def ahead(tmp_path: Path, *numbers: int) -> Path:
    """A recording that was killed in a call."""
    calls = [Recorded((ZEROS(2 + n, 4),), outputs=ZEROS(2 + n, 4), number=n) for n in range(3)]
    write_tape(tmp_path / "a.tape", calls, target=Doubling(), sealed=False)
    for file, number in enumerate(numbers):
        call = Recorded(
            (ZEROS(9, 4),), outputs_missing="under way", number=number, duration_ns=None
        )
        write_tape(tmp_path / f"a.ahead-{file}.tape", [call], target=Doubling(), sealed=False)
    write_tape(tmp_path / "a.ahead-9.tape", [], target=Doubling(), sealed=False)
    return tmp_path


def test_a_call_under_way_is_a_call_of_the_tape(tmp_path: Path) -> None:
    with open_tape(ahead(tmp_path, 3)) as tape:
        assert [call.number for call in tape.calls] == [0, 1, 2, 3]
        assert [call.number for call in tape.under_way] == [3]
        assert tape.under_way[0].index == 3
        assert tape[3].under_way
        assert not tape[0].under_way
        assert "1 of them under way when the process died" in repr(tape)
        assert (tape.coverage.seen, tape.coverage.kept) == (4, 4)
        assert tape.counters.missing == {str(tmp_path / "a.tape")}
        (variant,) = tape.variants()
        assert variant.findings.tensors[0].dimensions[0].max == 9
        assert tape.infer_arguments(3)[0].shape == (9, 4)


def test_a_call_that_ended_after_all_is_there_once(tmp_path: Path) -> None:
    with open_tape(ahead(tmp_path, 1, 5)) as tape:
        assert [call.number for call in tape.calls] == [0, 1, 2, 5]
        assert [call.number for call in tape.under_way] == [5]
        assert tape.find(1).outputs is not None


def test_replay_leaves_a_call_under_way_out(tmp_path: Path) -> None:
    from calltape_analyzer import replay

    with open_tape(ahead(tmp_path, 3)) as tape:
        report = replay(tape, lambda x: x)
    assert report.ok
    assert [row.call for row in report] == [0, 1, 2]
    assert report.notes == ["1 call under way when the process died: left out"]
