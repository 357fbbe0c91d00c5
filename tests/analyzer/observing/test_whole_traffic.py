"""What variants, targets and explanations make of the traffic counters of a tape."""

from __future__ import annotations

from pathlib import Path

import torch

from calltape_analyzer import open_tape
from calltape_analyzer.targets.engines import optimization_profile, partial_shapes
from calltape_recorder import First, When, record
from tests.analyzer.observing.doubling import SIZES, ZEROS, Doubling, doubled
from tests.analyzer.tapes import write_tape


def test_ranges_for_engines_are_those_of_the_whole_traffic(tmp_path: Path) -> None:
    with open_tape(doubled(tmp_path / "a.tape", SIZES, First(3))) as tape:
        (variant,) = tape.variants()
        made = optimization_profile(variant)
        profile = made.inputs["x"]
        assert made.notes[0].startswith("kept 3 of 6 calls: the sizes that kernels")
        assert (profile.min, profile.max) == ((1, 2), (8, 40))
        assert partial_shapes(variant) == {"x": [(1, 8), (2, 40)]}
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
        for scale, length in (("a", 3), ("a", 5), ("b", 3), ("b", 7), ("a", 40)):
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
    """A file without an end has calls and no counters: its sizes count as well."""
    one = doubled(tmp_path / "a.tape", [(2, 3), (2, 6), (2, 9)], First(2))
    other = write_tape(tmp_path / "b.tape", [((ZEROS(2, 50),), {})], target=Doubling(),
                       sealed=False, tape_id=b"b" * 16)  # fmt: skip
    with open_tape([one, other]) as tape:
        (variant,) = tape.variants()
        assert optimization_profile(variant).inputs["x"].max == (2, 50)
        assert variant.findings.all_calls == 3


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
