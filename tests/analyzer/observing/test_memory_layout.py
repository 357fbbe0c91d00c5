"""Layouts in memory have the names that people know, and each name is true."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from calltape_analyzer.editing.diagnosis import diagnose
from calltape_analyzer.observing.memory_layout import (
    CONTIGUOUS,
    LayoutSeen,
    layout_name,
    layouts_in_words,
)
from calltape_analyzer.variants.variant_findings import VariantFindings
from tests.analyzer.cli.commands import run
from tests.analyzer.observed import Optional, given, tape_of, zeros


def name_of(tensor: torch.Tensor) -> str:
    return layout_name(tuple(tensor.shape), tensor.stride())


def layouts_of(found: VariantFindings) -> dict[str, dict[str, int]]:
    return {tensor.argument: {s.name: s.calls for s in tensor.layouts} for tensor in found.tensors}


NAMED = {
    "a scalar": (zeros(), "contiguous"),
    "whole": (zeros(3, 4), "contiguous"),
    "one row of a transposed one": (zeros(4, 1).t(), "contiguous"),
    "nothing": (zeros(4, 0).t(), "contiguous"),
    "transposed": (zeros(4, 3).t(), "transposed (stride order 1,0)"),
    "heads": (zeros(2, 5, 3, 4).transpose(1, 2), "transposed (stride order 0,2,1,3)"),
    "columns": (zeros(5, 8)[:, :4], "with gaps"),
    "a step": (zeros(8)[::2], "with gaps"),
    "transposed columns": (zeros(5, 8)[:, :4].t(), "transposed (stride order 1,0) with gaps"),
    "pictures": (zeros(2, 5, 6, 3).permute(0, 3, 1, 2), "channels_last"),
    "one picture": (
        zeros(1, 3, 5, 6).contiguous(memory_format=torch.channels_last), "channels_last"
    ),
    "a part of pictures": (
        zeros(2, 5, 6, 3).permute(0, 3, 1, 2)[:, :, 1:4], "channels_last with gaps"
    ),
    "films": (zeros(2, 4, 5, 6, 3).permute(0, 4, 1, 2, 3), "channels_last_3d"),
    "the same everywhere": (zeros(1).expand(4), "expanded (axis 0)"),
    "expanded": (zeros(2, 1, 3).expand(2, 5, 3), "expanded (axis 1)"),
    "expanded twice": (zeros(1, 3, 1).expand(2, 3, 4), "expanded (axes 0,2)"),
    "expanded columns": (
        zeros(3, 8)[:, None, :4].expand(3, 5, 4), "expanded (axis 1) and with gaps"
    ),
    "windows": (zeros(9).unfold(0, 4, 2), "overlapping"),
    "expanded windows": (
        zeros(9).unfold(0, 4, 1)[None].expand(2, 6, 4), "expanded (axis 0) and overlapping"
    ),
    "interleaved": (zeros(8).as_strided((3, 2), (2, 3)), "transposed (stride order 1,0) with gaps"),
}  # fmt: skip


@pytest.mark.parametrize(("tensor", "name"), NAMED.values(), ids=NAMED)
def test_names(tensor: torch.Tensor, name: str) -> None:
    assert name_of(tensor) == name


def test_a_leaf_says_which_axes_are_expanded() -> None:
    assert layout_name((2, 3), None) == CONTIGUOUS
    assert layout_name((2, 3), None, (0,)) == "expanded (axis 0)"
    assert layout_name((2, 3), (0, 1), (0,)) == "expanded (axis 0)"
    assert layout_name((2, 3, 3), (1, 12, 4)).startswith("transposed (stride order 1,2,0)")


def test_each_name_is_true_of_every_small_layout() -> None:
    """Sizes and strides of all kinds are compared with torch's answers, and with the places of the
    elements, one by one."""
    memory = torch.zeros(200)
    for shape in itertools.product((1, 2, 3), repeat=3):
        for strides in itertools.product((0, 1, 2, 3, 4, 6, 9), repeat=3):
            tensor = memory.as_strided(shape, strides)
            places = [
                sum(i * step for i, step in zip(at, strides, strict=True))
                for at in itertools.product(*map(range, shape))
            ]
            name = name_of(tensor)
            assert (name == CONTIGUOUS) is tensor.is_contiguous(), (shape, strides)
            stands_still = [a for a in range(3) if shape[a] > 1 and strides[a] == 0]
            assert ("expanded" in name) is bool(stands_still), (shape, strides)
            if stands_still:
                continue
            is_full = max(places) + 1 == len(set(places))
            if "overlapping" in name:
                assert len(set(places)) < len(places), (shape, strides)
            else:
                assert ("with gaps" in name) is not is_full, (shape, strides)


def test_layouts_are_named_unless_all_are_contiguous() -> None:
    def words(**calls: int) -> str | None:
        return layouts_in_words([LayoutSeen(name=name, calls=n) for name, n in calls.items()])

    assert words() is None
    assert words(contiguous=7) is None
    assert words(channels_last=1) == "channels_last in the only call"
    assert words(channels_last=2) == "channels_last in all calls"
    several = words(contiguous=3, channels_last=1)
    assert several == "contiguous in 3 calls, channels_last in 1"


def test_findings_explanations_and_symptoms_tell_where_layouts_differ(tmp_path: Path) -> None:
    calls = [
        *(given(zeros(n, 3)) for n in (2, 4, 5)),
        given(zeros(3, 6).t()),
        given(zeros(7, 3), mask=zeros(1, 3).expand(7, 3)),
    ]
    tape = tape_of(tmp_path, calls, Optional())
    mixed, masked = tape.variants()
    both = {"contiguous": 3, "transposed (stride order 1,0)": 1}
    assert layouts_of(mixed.findings) == {"x": both}
    assert layouts_of(masked.findings) == {"x": {"contiguous": 1}, "mask": {"expanded (axis 0)": 1}}
    told = "layout in memory: contiguous in 3 calls, transposed (stride order 1,0) in 1"
    assert told in str(tape.explain("x"))
    assert str(tape.explain("x")).count("layout in memory") == 1
    symptom = next(one for one in diagnose(tape).symptoms if one.kind == "layouts")
    assert f"x in {mixed.name}: contiguous in 3 calls, transposed" in symptom.text
    assert "expanded" not in symptom.text  # one layout in all calls of its variant


def test_contiguous_calls_are_told_nothing_of_layouts(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [given(zeros(n, 3)) for n in (2, 4)], Optional())
    assert "layout" not in str(tape.explain("x"))
    assert all(symptom.kind != "layouts" for symptom in diagnose(tape).symptoms)


def test_variants_that_only_sizes_tell_apart_say_whose_layouts_they_have(tmp_path: Path) -> None:
    """Broadcasting makes two variants of one group, which does not know which sizes had which."""
    calls = [
        given(zeros(4, 3), zeros(4, 3)),
        given(zeros(5, 3), zeros(1, 3)),
        given(zeros(3, 6).t(), zeros(6, 3)),
    ]
    variants = tape_of(tmp_path, calls, Optional()).variants()
    assert len(variants) == 2
    for variant in variants:
        assert sum(layouts_of(variant.findings)["x"].values()) == 3
        assert layouts_of(variant.findings)["mask"] == {"contiguous": len(variant)}
        assert any("layouts in memory are those of 3 calls" in n for n in variant.findings.notes)


def test_the_command_tells_them(tmp_path: Path) -> None:
    pictures = [zeros(n, 4, 4, 3).permute(0, 3, 1, 2) for n in (2, 3)]
    tape = tape_of(tmp_path, [given(one) for one in (*pictures, zeros(4, 3, 4, 4))], Optional())
    told = "channels_last in 2 calls, contiguous in 1"
    code, out, _ = run("variants", tape.paths[0])
    assert (code, f"layout of x: {told}" in out.splitlines()) == (0, True)
