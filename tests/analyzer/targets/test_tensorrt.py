from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, Variant, export, open_tape
from calltape_analyzer.targets.engines import (
    OptimizationProfile,
    optimization_profile,
    polygraphy_flags,
    trtexec_flags,
)
from calltape_recorder import record
from tests.analyzer.targets.conftest import Decoder, VariantsOf, decoder_call


@pytest.fixture
def profile(decoder: Variant) -> OptimizationProfile:
    return optimization_profile(decoder)


def test_the_optimum_is_what_most_calls_had(profile: OptimizationProfile) -> None:
    opt = {name: found.opt for name, found in profile.inputs.items()}
    assert opt == {"ids": (2, 1), "past": (2, 7, 4), "mask": (2, 8)}


def test_extremes_keep_what_always_held(profile: OptimizationProfile) -> None:
    """The mask is as long as past and new tokens together at both ends, although no call had both
    at their smallest or largest."""
    inputs = profile.inputs
    assert (inputs["ids"].min, inputs["ids"].max) == ((1, 1), (3, 5))
    assert (inputs["past"].min, inputs["past"].max) == ((1, 2, 4), (3, 10, 4))
    assert (inputs["mask"].min, inputs["mask"].max) == ((1, 3), (3, 15))


def test_a_profile_writes_flags_for_trtexec_and_polygraphy(profile: OptimizationProfile) -> None:
    assert profile.trtexec_flags() == [
        "--minShapes=ids:1x1,past:1x2x4,mask:1x3",
        "--optShapes=ids:2x1,past:2x7x4,mask:2x8",
        "--maxShapes=ids:3x5,past:3x10x4,mask:3x15",
    ]
    assert profile.polygraphy_flags()[:4] == [
        "--trt-min-shapes",
        "ids:[1,1]",
        "past:[1,2,4]",
        "mask:[1,3]",
    ]
    again = OptimizationProfile.model_validate_json(profile.model_dump_json())
    assert again == profile
    assert profile.calls == 7


def test_several_profiles_are_numbered(profile: OptimizationProfile) -> None:
    flags = trtexec_flags([profile, profile])
    assert flags[0] == "--profile=0"
    assert flags[4] == "--profile=1"
    assert trtexec_flags([profile]) == profile.trtexec_flags()
    assert polygraphy_flags([profile, profile]).count("--trt-opt-shapes") == 2
    other = profile.model_copy(update={"inputs": {"x": profile.inputs["ids"]}})
    with pytest.raises(TapeError, match="different inputs"):
        trtexec_flags([profile, other])


def test_constants_need_no_range(variants_of: VariantsOf) -> None:
    (variant,) = variants_of(torch.nn.ReLU(), [((torch.ones(2, 3),), {})] * 2)
    profile = optimization_profile(variant)
    assert profile.inputs == {}
    assert profile.trtexec_flags() == profile.polygraphy_flags() == []


def test_a_profile_notes_or_skips_empty_tensors(variants_of: VariantsOf) -> None:
    sizes = [(2, 5, 0), (2, 5, 0), (3, 2, 4), (4, 3, 6)]
    variants = variants_of(Decoder(), [decoder_call(*given) for given in sizes])
    variant = next(v for v in variants if any(0 in row.shapes[1] for row in v.facts.rows))
    profile = optimization_profile(variant)
    assert profile.inputs["past"].min[1] == 0
    assert any("size of 0" in note for note in profile.notes)
    assert any("most common sizes" in note for note in profile.notes)
    without = optimization_profile(variant, empty=False)
    assert without.inputs["past"].min[1] == 4
    assert without.calls == 2
    assert any("2 calls with an empty tensor" in note for note in without.notes)


def test_of_equally_common_sizes_the_middle_is_optimal(variants_of: VariantsOf) -> None:
    sizes = [(2, 5, 0), (2, 1, 5), (2, 1, 9), (2, 1, 7), (3, 4, 0)]
    variants = variants_of(Decoder(), [decoder_call(*given) for given in sizes])
    opts = [optimization_profile(v).inputs["past"].opt for v in variants if len(v) > 2]
    assert opts == [(2, 7, 4)], "the middle of those that are not empty"


def test_a_profile_needs_a_call_without_empty_tensors(variants_of: VariantsOf) -> None:
    calls = [((torch.ones(n, 0),), {}) for n in (3, 5)]
    (variant,) = variants_of(torch.nn.ReLU(), calls)
    with pytest.raises(TapeError, match="every call"):
        optimization_profile(variant, empty=False)


def test_polygraphy_takes_it(profile: OptimizationProfile) -> None:
    trt = pytest.importorskip("polygraphy.backend.trt", reason="polygraphy is not installed")
    made = trt.Profile()
    for name, shapes in json.loads(json.dumps(profile.polygraphy())).items():
        made.add(name, **shapes)
    for name, found in profile.inputs.items():
        assert [tuple(shape) for shape in made[name]] == [found.min, found.opt, found.max]


def test_polygraphy_parses_the_flags(profile: OptimizationProfile) -> None:
    pytest.importorskip("polygraphy", reason="polygraphy is not installed")
    from polygraphy.tools.args.util import parse_meta

    words = profile.polygraphy_flags()
    start = words.index("--trt-max-shapes") + 1
    meta = parse_meta(words[start:], includes_dtype=False)
    assert {name: tuple(found.shape) for name, found in meta.items()} == {
        name: found.max for name, found in profile.inputs.items()
    }


@pytest.mark.integration
def test_names_are_those_of_the_onnx_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    model = Decoder()
    with record(model, tmp_path / "a.tape"):
        for given in [(2, 5, 2), (2, 1, 7), (3, 2, 10)]:
            model(*decoder_call(*given)[0])
    tape = open_tape(tmp_path / "a.tape")
    (program,) = export(tape, model, to="onnx").values()
    (variant,) = tape.variants()
    dynamic = {
        given.name: tuple(given.shape)
        for given in program.exported.model.graph.inputs
        if any(not isinstance(size, int) for size in given.shape)
    }
    profile = optimization_profile(variant)
    assert list(dynamic) == list(profile.inputs)
    for name, shape in dynamic.items():
        fixed = {axis: size for axis, size in enumerate(shape) if isinstance(size, int)}
        found = profile.inputs[name]
        assert all(found.min[axis] == found.max[axis] == size for axis, size in fixed.items())
