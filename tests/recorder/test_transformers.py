"""A real generate() is recorded, and does not notice."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from tests.recorder.reading import ReadCall, ReadTape, read

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def generated(model: Any, **options: Any) -> torch.Tensor:
    ids = torch.arange(1, 9).reshape(2, 4)
    result: torch.Tensor = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False,
        pad_token_id=0, **options,
    )  # fmt: skip
    return result


def kwargs_of(model: Any) -> list[dict[str, Any]]:
    """The kwargs that generate() passes to the model, by name and kind of value."""
    seen: list[dict[str, Any]] = []

    def look(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.append(
            {name: (type(value), getattr(value, "shape", None)) for name, value in kwargs.items()}
        )

    handle = model.register_forward_pre_hook(look, with_kwargs=True, prepend=True)
    try:
        generated(model)
    finally:
        handle.remove()
    return seen


@pytest.mark.parametrize("via", ["hook", "method"])
def test_generate_is_the_same_and_every_step_is_recorded(
    tmp_path: Path, llama: Any, via: Any
) -> None:
    path = tmp_path / "t.tape"
    expected, passed = generated(llama), kwargs_of(llama)
    with record(llama, path, via=via):
        assert torch.equal(generated(llama), expected)
    with record(llama, tmp_path / "u.tape", via=via):
        assert kwargs_of(llama) == passed
    tape = read(path)
    assert len(tape.calls) == 5
    _check_lengths(tape)
    prefill = tape.calls[0]
    assert torch.equal(
        prefill.input(prefill.kwargs["input_ids"].leaf), torch.arange(1, 9).reshape(2, 4)
    )
    keys = [fact.key for fact in tape.calls[1].record.inputs.facts()]
    assert "kwargs.cache.layers.0.keys" in keys
    assert "kwargs.input_ids" in keys


def _check_lengths(tape: ReadTape) -> None:
    """The cache before each step, although the model changes it in place."""
    lengths = [_length(call, "inputs") for call in tape.calls]
    after = [_length(call, "outputs") for call in tape.calls]
    assert lengths == [None, 4, 5, 6, 7]
    assert after == [4, 5, 6, 7, 8]


def _length(call: ReadCall, side: str) -> int | None:
    tree = getattr(call.record, side)
    root = (
        call.kwargs
        if side == "inputs"
        else dict(zip(call.outputs.fields, call.outputs.children, strict=False))
    )
    cache = root["cache"]
    assert (cache.kind, cache.type) == ("object", "transformers.cache_utils:DynamicCache")
    layers = dict(zip(cache.fields, cache.children, strict=False))["layers"].children
    for layer in layers:
        keys = dict(zip(layer.fields, layer.children, strict=False)).get("keys")
        if keys is not None and keys.kind == "tensor":
            return int(tree.facts()[keys.leaf].shape[2])
    return None


def test_a_tape_does_not_depend_on_what_is_registered(tmp_path: Path, llama: Any) -> None:
    from torch.utils import _pytree as pytree

    structures = []
    for registered in (False, True):
        cache = transformers.DynamicCache()
        cache.update(torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8), 0)
        if registered:
            pytree.register_pytree_node(
                transformers.DynamicCache, lambda c: ([], None), lambda c, _: None
            )
        try:
            with record(llama, tmp_path / f"{registered}.tape"):
                llama(input_ids=torch.ones(1, 1, dtype=torch.long), cache=cache)
        finally:
            if registered:
                pytree._deregister_pytree_node(transformers.DynamicCache)
        structures.append(read(tmp_path / f"{registered}.tape").calls[0].record.inputs.structure)
    assert structures[0] == structures[1]


def test_caches_of_every_kind(tmp_path: Path, llama: Any) -> None:
    from tests.recorder.models import Echo

    kv = torch.randn(1, 2, 3, 8)
    dynamic = transformers.DynamicCache()
    dynamic.update(kv, kv, 0)
    sliding = transformers.DynamicCache(
        config=transformers.MistralConfig(
            num_hidden_layers=1, sliding_window=4, hidden_size=32, num_attention_heads=4
        )
    )
    sliding.update(kv, kv, 0)
    static = transformers.StaticCache(config=llama.config, max_cache_len=6)
    static.update(kv, kv, 0)
    both = transformers.EncoderDecoderCache(dynamic, transformers.DynamicCache())
    caches = {"dynamic": dynamic, "sliding": sliding, "static": static, "both": both}
    caches |= _state_caches()
    model, path = Echo(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        model(**caches)
    assert recorder.stats().dropped == {}
    call = read(path).calls[0]
    for name in caches:
        assert call.kwargs[name].kind == "object", name
    tensors = {fact.key: fact for fact in call.record.inputs.facts()}
    assert tensors["kwargs.dynamic.layers.0.keys"].shape == (1, 2, 3, 8)
    assert tensors["kwargs.static.layers.0.keys"].shape == (1, 2, 6, 8)
    assert "kwargs.sliding.layers.0.values" in tensors
    # The same cache object twice: its tensors are the same leaves.
    assert not any(key and key.startswith("kwargs.both.self") for key in tensors)


def _state_caches() -> dict[str, Any]:
    layer = transformers.cache_utils.LinearAttentionLayer
    with contextlib.suppress(TypeError):  # its arguments differ between versions
        cache = transformers.DynamicCache()
        cache.layers.append(layer())
        cache.layers[0].conv_states = torch.ones(1, 2, 3)
        return {"state": cache}
    return {}


def test_model_outputs_are_their_present_fields(tmp_path: Path, llama: Any) -> None:
    path = tmp_path / "t.tape"
    with record(llama, path):
        llama(
            input_ids=torch.ones(1, 2, dtype=torch.long), output_hidden_states=True, use_cache=False
        )
    root = read(path).calls[0].outputs
    assert root.kind == "dataclass"
    assert root.type.endswith(":CausalLMOutputWithPast")
    assert root.fields == ("logits", "hidden_states")


@pytest.mark.parametrize("via", ["hook", "method"])
def test_generation_with_a_compiled_forward_is_recorded(
    tmp_path: Path, llama: Any, via: Any
) -> None:
    import copy

    plain, model = copy.deepcopy(llama), copy.deepcopy(llama)
    expected = generated(plain, cache_implementation="static")
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    with record(model, tmp_path / "t.tape", via=via) as recorder:
        assert torch.equal(generated(model, cache_implementation="static"), expected)
    assert recorder.stats().dropped == {}
    assert recorder.stats().kept == 5
