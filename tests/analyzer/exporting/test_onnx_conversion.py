"""ONNX models: right or refused, and readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    ExportOptions,
    NoVariant,
    Programs,
    TapeError,
    export,
    load_programs,
)
from calltape_analyzer.programs.notes import Unwritten
from calltape_analyzer.variants.variant_findings import findings_of
from tests.analyzer.exported import assert_as_module, call, made, taped
from tests.analyzer.exporting.attending import STEPS, UNSEEN, Attending, ToyCache
from tests.analyzer.exporting.models import (
    ARGUMENTS,
    CLASSES,
    Branching,
    Grid,
    Model,
    Returns,
    Untraced,
    never_wrong,
    t,
)

pytestmark = pytest.mark.integration
pytest.importorskip("onnxruntime")

LEFT_OUT = ("a dtype",)  # the runtime has no results of all dtypes on the CPU


def graph(programs: Programs) -> Any:
    (program,) = programs.values()
    return program.exported.model_proto.graph


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in LEFT_OUT])
def test_argument_goes_into_an_onnx_model(name: str, tmp_path: Path) -> None:
    cls, calls, unseen = ARGUMENTS[name]
    if name == "bfloat16":
        calls = [call(x.float()) for (x,), _ in calls]
        unseen = [call(x.float()) for (x,), _ in unseen]
    made(tmp_path, cls(), calls, unseen, classes=CLASSES, to="onnx")


@pytest.mark.parametrize(
    "kind",
    ["dict", "dataclass", "tuple", "sizes", "list", "input", "input and more", "named tuple",
     "constant", "view"],
)  # fmt: skip
def test_result_comes_out_of_an_onnx_model(kind: str, tmp_path: Path) -> None:
    calls = [call(t(n, 3)) for n in (4, 6)]
    made(tmp_path, Returns(kind), calls, [call(t(5, 3))], classes=CLASSES, to="onnx")


@pytest.mark.parametrize("cls", [Branching, Untraced])
def test_sizes_that_became_constants_are_refused(cls: type[Model], tmp_path: Path) -> None:
    module = cls()
    programs = export(
        taped(tmp_path, module, [call(t(n, 3)) for n in (2, 3, 7)]), module, to="onnx"
    )
    assert never_wrong(programs, module, [call(t(n, 3)) for n in range(1, 15)]) >= 1


def test_size_that_never_varied_is_refused_at_another(tmp_path: Path) -> None:
    class Sums(Model):
        def forward(self, x):
            return x.sum(-1)

    programs = made(tmp_path, Sums(), [call(t(n, 3)) for n in (4, 6)], to="onnx")
    with pytest.raises(NoVariant):
        programs(t(5, 4))


class Named(Model):
    def forward(self, x, weight):
        y = self.linear(x) * weight
        return {"mean": y.mean(0), "linear": y, "weight": weight + 1, "x": x, "bias": y.sum(),
                "linear.weight": x * 2, "mul": y * 3, "add": y + 1}  # fmt: skip


def test_names_are_those_of_arguments_and_results_whatever_else_is_called_so(
    tmp_path: Path,
) -> None:
    calls = [call(t(n, 3), t(n, 3)) for n in (4, 6)]
    programs = made(tmp_path, Named(), calls, [call(t(5, 3), t(5, 3))], to="onnx")
    found = graph(programs)
    inputs, outputs = [v.name for v in found.input], [v.name for v in found.output]
    assert inputs == ["x", "weight"]
    assert outputs[0] == "mean"
    assert outputs[1] == "linear"
    assert len({*inputs, *outputs}) >= len(inputs) + len(outputs) - 1
    import onnx

    (program,) = programs.values()
    onnx.checker.check_model(program.exported.model_proto)


def test_dimensions_have_names(tmp_path: Path) -> None:
    class Attention(Model):
        def forward(self, input_ids, past):
            return torch.cat([past, input_ids], 1)

    calls = [call(t(b, n, 3), t(b, p, 3)) for b, n, p in ((2, 3, 5), (3, 4, 7), (4, 6, 5))]
    found = graph(made(tmp_path, Attention(), calls, to="onnx"))
    dims = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in found.input
    }
    ids, past = dims["input_ids"], dims["past"]
    assert ids[0] == past[0]
    assert ids[1] != past[1]
    assert ids[2] == past[2] == 3
    assert all(
        str(name).isidentifier() and not str(name).startswith("s7") for name in ids[:2] + past[:2]
    )


class Decoder(Model):
    def forward(self, x, mask, past):
        keys, values = (torch.cat([known, x], 1) for known in past)
        return {"y": keys * mask.unsqueeze(-1) + values, "past": (keys, values)}


def test_dimensions_are_called_what_variants_calls_them(tmp_path: Path) -> None:
    sizes = ((2, 3, 5), (3, 4, 7), (4, 6, 5))
    calls = [call(t(b, n, 3), t(b, n + p), (t(b, p, 3), t(b, p, 3))) for b, n, p in sizes]
    programs = made(tmp_path, Decoder(), calls, to="onnx")
    (program,) = programs.values()
    found = graph(programs)
    shown = findings_of(program.variant)
    assert (
        {one.name: one.shape for one in shown.tensors}
        == {one.name: sizes_of(one) for one in found.input}
        == {
            "x": ("x_dim_0", "x_dim_1", 3),
            "mask": ("x_dim_0", "mask_dim_1"),  # to torch a sum of two others
            "past.0": ("x_dim_0", "past_0_dim_1", 3),
            "past.1": ("x_dim_0", "past_0_dim_1", 3),
        }
    )
    names = ("y", "outputs.past.0", "outputs.past.1")
    expected = dict.fromkeys(names, ("x_dim_0", "mask_dim_1", 3))
    assert {one.name: sizes_of(one) for one in found.output} == expected


class Apart(Model):
    def forward(self, x, past):
        # ONNX Runtime takes memory of a result again, as soon as nothing needs it.
        return *((2 * known).exp().sin() + known for known in past), x


def test_dimensions_that_only_the_model_keeps_apart_have_one_name(tmp_path: Path) -> None:
    calls = [call(t(b, 2), (t(n, 3), t(n, 3))) for b, n in ((2, 5), (3, 7), (4, 6))]
    programs = made(tmp_path, Apart(), calls, to="onnx")
    inputs = {one.name: sizes_of(one) for one in graph(programs).input}
    assert inputs["past.0"] == inputs["past.1"] == ("past_0_dim_0", 3)
    for sizes in ((9, 8), (8, 9), (200, 1)):
        past = tuple(t(n, 3) for n in sizes)
        outputs = programs(t(2, 2), past)
        for got, wanted in zip(outputs[:2], past, strict=True):
            torch.testing.assert_close(got, (2 * wanted).exp().sin() + wanted)


def sizes_of(value):
    return tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)


@pytest.mark.parametrize("version", [18, 20])
def test_options_reach_the_exporter(version: int, tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 3)
    tape = taped(tmp_path, module, [call(t(n, 3)) for n in (2, 3)])
    (program,) = export(
        tape, module, to="onnx", options=ExportOptions(exporter={"opset_version": version})
    ).values()
    (own,) = [
        o.version for o in program.exported.model_proto.opset_import if o.domain in ("", "ai.onnx")
    ]
    assert own == version


class Mutating(Model):
    def forward(self, x, state):
        state.mul_(2)
        return self.linear(x) + state, state


def test_an_argument_that_is_written_to_and_returned_has_a_note(tmp_path: Path) -> None:
    calls = [call(t(n, 3), t(n, 3)) for n in (4, 6)]
    programs = made(tmp_path, Mutating(), calls, [call(t(5, 3), t(5, 3))], to="onnx")
    (program,) = programs.values()
    assert Unwritten("state", is_returned=True) in program.notes
    programs.save(tmp_path / "saved")
    for each in (programs, load_programs(tmp_path / "saved")):
        state = torch.ones(5, 3)
        assert each(t(5, 3), state)[1] is state
        assert torch.equal(state, torch.full((5, 3), 2.0))
        # As of the model: elements that share memory cannot be written to.
        with pytest.raises(RuntimeError, match="single memory location"):
            each(t(5, 3), torch.ones(1, 3).expand(5, 3))
    manifest = tmp_path / "saved" / "manifest.json"
    document = json.loads(manifest.read_text())
    assert document["programs"][0]["result_arguments"] == [[1, 1]]
    document["programs"][0]["result_arguments"] = [[1, 2]]
    manifest.write_text(json.dumps(document))
    with pytest.raises(TapeError, match="its manifest contradicts itself: a tensor"):
        load_programs(tmp_path / "saved")


def test_prefill_and_decode_become_one_model(tmp_path: Path) -> None:
    module = Attending()
    programs = made(tmp_path, module, STEPS, UNSEEN, classes=[ToyCache], to="onnx")
    assert len(programs) == 1
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", classes=[ToyCache])
    loaded.save(tmp_path / "again")
    loaded = load_programs(tmp_path / "again", classes=[ToyCache])
    assert_as_module(loaded, module, [*STEPS, *UNSEEN], rtol=1e-3)


def test_saved_models_refuse_what_they_refused(tmp_path: Path) -> None:
    module = Grid()
    calls = [call(t(5, 3), torch.tensor(g)) for g in ([2, 3], [1, 4])]
    made(tmp_path, module, calls, to="onnx").save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved")
    assert_as_module(loaded, module, calls, rtol=1e-3)
    with pytest.raises(NoVariant, match="the program is for calls in which"):
        loaded(t(5, 3), torch.tensor([3, 2]))
    grids = [call(t(5, 3), torch.tensor([i, j])) for i in range(1, 6) for j in range(1, 6)]
    assert never_wrong(loaded, module, grids) >= 2
    branching = Branching()
    tape = taped(tmp_path, branching, [call(t(n, 3)) for n in (3, 4)], name="two.tape")
    export(tape, branching, to="onnx").save(tmp_path / "other")
    sizes = [call(t(n, 3)) for n in range(1, 12)]
    assert never_wrong(load_programs(tmp_path / "other"), branching, sizes) >= 2


class Pooling(Model):
    """Offsets of sequences are often int32, and ONNX indexes with int64 only."""

    def forward(self, x, offsets):
        sums = torch.cat([x.new_zeros(1, x.shape[1]), x.cumsum(0)])
        return self.linear(sums[offsets[1:]] - sums[offsets[:-1]])


def test_int32_offsets_index(tmp_path: Path) -> None:
    def given(*ends: int) -> Any:
        return call(t(ends[-1], 3), torch.tensor([0, *ends], dtype=torch.int32))

    recorded = [given(3, 5), given(2, 4, 9), given(8)]
    programs = made(tmp_path, Pooling(), recorded, [given(1, 6), given(4, 7, 9, 12)], to="onnx")
    assert len(programs) <= 2


class Logarithm(Model):
    def forward(self, x):
        return (x + 1e-10).log()


def test_a_small_constant_is_kept(tmp_path: Path) -> None:
    model = Logarithm()
    programs = made(tmp_path, model, [call(torch.rand(n, 3) + 1) for n in (3, 5)], to="onnx")
    assert "Add" in [node.op_type for node in graph(programs).node]
    assert_as_module(programs, model, [call(torch.zeros(4, 3))], rtol=1e-3)
