"""The scenarios that users of input observers know, as the examples run them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InputObserver, open_tape
from calltape_recorder import record

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
D = torch.export.Dim.DYNAMIC


def example(name: str, *args: Any) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](*args)


def test_a_broadcast_dimension_stays_static() -> None:
    same, broadcast = example("two_tensors")
    assert same.num_obs() == broadcast.num_obs() == 3
    assert same.infer_dynamic_shapes() == ({0: D, 1: D}, {0: D, 1: D})
    assert broadcast.infer_dynamic_shapes() == ({0: D, 1: D}, {1: D})


def test_keyword_arguments_are_inferred_by_name(tmp_path: Path) -> None:
    shapes, logits = example("keyword_labels", tmp_path / "a.tape")
    assert shapes == {"x": {0: D}, "labels": {0: D}}
    assert logits.shape == (11, 3)


def test_a_mask_that_was_missing_is_inferred_as_empty() -> None:
    arguments, shapes = example("optional_mask")
    assert shapes == {"x": {0: D}, "mask": {0: D}}
    assert arguments["mask"].shape == (0, 10)


@pytest.mark.integration
def test_a_cache_of_a_language_model_has_batch_and_length() -> None:
    pytest.importorskip("transformers")
    shapes = example("llm_cache")
    assert shapes == {"input_ids": {0: D, 1: D}, "past_key_values": [{0: D, 2: D}] * 4}


@pytest.mark.integration
def test_an_image_that_was_missing_is_inferred_as_empty() -> None:
    pytest.importorskip("transformers")
    shapes, arguments = example("multimodal")
    assert arguments["pixel_values"].shape == (0, 3, 224, 224)
    assert shapes == {
        "input_ids": {0: D, 1: D},
        "pixel_values": {0: D},
        "attention_mask": {0: D, 1: D},
        "past_key_values": [{0: D, 2: D}, {0: D, 2: D}],
    }


@pytest.mark.integration
def test_dimensions_are_named_in_an_onnx_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    program = example("named_dimensions", tmp_path / "a.tape")
    assert [tuple(given.shape) for given in program.model.graph.inputs] == [("batch_size", 8)] * 3


@pytest.mark.integration
def test_dynamic_axes_are_named_by_argument(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    found = example("dynamic_axes", tmp_path)
    assert found["linear"] == {"input": {0: "input_dim_0"}, "output": {0: "input_dim_0"}}
    assert found["recurrent"] == {"x": {0: "x_dim_0", 1: "x_dim_1"}, "output": {0: "x_dim_0"}}
    assert found["reshape"] == {"x": {0: "x_dim_0"}, "output": {0: "output_dim_0"}}


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return x if y is None else x * 2 + y


@pytest.mark.integration
@pytest.mark.parametrize("by_keyword", [False, True])
def test_an_onnx_model_is_right_at_sizes_never_recorded(by_keyword: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model, path = Plain().eval(), str(tmp_path / "m.onnx")
    with record(model, tmp_path / "a.tape"):
        for batch, width in [(2, 3), (4, 5), (6, 9)]:
            x, y = torch.randn(batch, width), torch.randn(1, width)
            model(x=x, y=y) if by_keyword else model(x, y)
    tape = open_tape(tmp_path / "a.tape")
    args, kwargs = tape.infer_arguments()
    torch.onnx.export(
        model, args, path, kwargs=kwargs, dynamic_shapes=tape.infer_dynamic_shapes(),
        dynamo=True, verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x, y = torch.randn(11, 13), torch.randn(1, 13)
    (got,) = session.run(None, {"x": x.numpy(), "y": y.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(x, y))


@pytest.mark.integration
def test_every_form_of_a_model_has_no_discrepancies(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model, observer = Plain().eval(), InputObserver()
    with observer(model):
        for batch, width in [(2, 3), (4, 5)]:
            model(torch.randn(batch, width), torch.randn(1, width))
        model(torch.randn(3, 4))
    program = torch.onnx.export(
        model, observer.infer_arguments(), dynamic_shapes=observer.infer_dynamic_shapes(),
        dynamo=True, verbose=False,
    )  # fmt: skip
    path = tmp_path / "m.onnx"
    program.save(path)
    for form in (program, program.model_proto, path, str(path), path.read_bytes()):
        rows = observer.check_discrepancies(form, include_io=True)
        assert [row["SUCCESS"] for row in rows[:2]] == [True, True]
        assert rows[0]["abs"] < 1e-6
        assert {"index", "duration_torch", "ort_duration", "n_inputs"} <= rows[0].keys()
        assert [row["n_none"] for row in rows] == [0, 0, 1]
        assert [row["n_empty"] for row in rows] == [0, 0, 1]
        # The third call had no y: the program, which adds it, cannot give what the model gave.
        assert not rows[2]["SUCCESS"]


@pytest.mark.integration
@pytest.mark.parametrize("at_export", ["ours", "executorch", "exporters"])
def test_a_llama_that_generates_is_exported_with_its_cache(
    at_export: str, tmp_path: Path, registrations: Any
) -> None:
    """Prefill with a prepared cache, decoding, and a second turn; exported with the caches that
    were recorded, every call gives what was recorded."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    options = {"do_sample": False, "return_dict_in_generate": True, "max_new_tokens": 3}
    prompt = torch.randint(2, 64, (2, 7))
    with torch.no_grad(), record(model, tmp_path / "a.tape"):
        first = model.generate(prompt, **options)
        second = torch.cat([first.sequences, torch.randint(2, 64, (2, 5))], dim=1)
        model.generate(second, cache=first.cache, **options)
    tape = open_tape(tmp_path / "a.tape")
    assert len(tape) == 6
    growing = {0: D, 2: D}
    cache = [[growing] * 2] * 2 if at_export == "executorch" else [growing] * 4
    with torch.no_grad(), registrations(at_export):
        shapes = tape.infer_dynamic_shapes(set_batch_dimension_for=True)
        assert shapes["input_ids"] == {0: D, 1: D}
        assert shapes["cache"] == cache
        arguments = tape.infer_arguments().kwargs
        assert isinstance(arguments["cache"], transformers.DynamicCache)
        program = torch.export.export(
            model, (), kwargs=arguments, dynamic_shapes=shapes, strict=False
        ).module()
        # generate() marks a cache that it was given, and the exporters' registration takes one
        # with the mark for another structure.
        for call in tape[3:] if at_export == "exporters" else tape:
            got = program(**tape.infer_arguments(call.index).kwargs)
            torch.testing.assert_close(got.logits, call.outputs.logits, atol=1e-5, rtol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("active", ["none", "ours"])
def test_a_llama_that_generates_with_a_static_cache_is_inferred(
    active: str, tmp_path: Path, registrations: Any
) -> None:
    """The prefill's layers have their counter only; their keys and values count as missing."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad(), record(model, tmp_path / "a.tape"):
        model.generate(
            torch.randint(2, 64, (2, 5)), do_sample=False, max_new_tokens=4,
            cache_implementation="static",
        )  # fmt: skip
    tape = open_tape(tmp_path / "a.tape")
    with registrations(active):
        shapes, arguments = tape.infer_dynamic_shapes(), tape.infer_arguments(0).kwargs
    leaves = shapes["cache"]
    assert leaves == [{}] * len(leaves)
    assert len(leaves) in (4, 6)
    layer = arguments["cache"].layers[1]
    assert torch.equal(layer.keys, torch.zeros(2, 2, *layer.keys.shape[2:]))
    assert int(layer.cumulative_length) == 0


@pytest.mark.integration
def test_the_cache_of_an_encoder_decoder_is_inferred() -> None:
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def forward(self, cache: Any) -> Any:
            return cache

    def of(length: int) -> Any:
        def part(size: int) -> Any:
            pairs = [(torch.ones(1, 2, size, 4), torch.ones(1, 2, size, 4)) for _ in range(2)]
            return transformers.DynamicCache(pairs)

        return transformers.EncoderDecoderCache(part(length), part(9))

    for by_keyword in (False, True):
        model, observer = Model(), InputObserver()
        with observer(model):
            for given in (None, of(4), of(5)):
                model(cache=given) if by_keyword else model(given)
        shapes, arguments = observer.infer_dynamic_shapes(), observer.infer_arguments(0)
        expected = [[{2: D}] * 4, [{}] * 4]
        assert shapes == ({"cache": expected} if by_keyword else (expected,))
        cache = arguments["cache"] if by_keyword else arguments[0]
        assert cache.self_attention_cache.layers[0].keys.shape == (1, 2, 0, 4)
        assert cache.cross_attention_cache.layers[0].keys.shape == (1, 2, 9, 4)
