"""``generate()`` observed at an attention layer: its cache is passed before it has tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from calltape_analyzer import InputObserver, open_tape
from tests.analyzer.observer.questions import QUESTIONS, same

pytestmark = pytest.mark.integration

D = torch.export.Dim.DYNAMIC
GROWING = {0: D, 2: D}

SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 50, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": None,
}  # fmt: skip


def decoder(name: str = "Llama", layers: int = 1, **config: Any) -> Any:
    """A tiny language model with random weights; its cache has 2 heads of size 4."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}Config")(**SIZES, num_hidden_layers=layers, **config)
    return getattr(transformers, f"{name}ForCausalLM")(made).eval()


def attention(model: Any, layer: int = 0) -> torch.nn.Module:
    return model.model.layers[layer].self_attn


def prompt(batch: int, length: int = 7) -> torch.Tensor:
    return torch.randint(1, 50, (batch, length))


def observed(
    module: torch.nn.Module, model: Any, tokens: torch.Tensor, observer: Any = None, **options: Any
) -> Any:
    observer = InputObserver() if observer is None else observer
    options = {"do_sample": False, "max_new_tokens": 4, **options}
    with torch.no_grad(), observer(module):
        model.generate(tokens, **options)
    return observer


def exported(
    module: torch.nn.Module, observer: Any, *, oblivious: bool, index: int | None = None
) -> Any:
    """The program of the observer's arguments. A dynamic size of 0 or 1 needs ``oblivious``."""
    args, kwargs = observer.infer_arguments(index, as_args_kwargs=True)
    shapes = observer.infer_dynamic_shapes(set_batch_dimension_for=True)
    with torch.no_grad(), torch.fx.experimental._config.patch(backed_size_oblivious=oblivious):
        return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)


def check_call(program: Any, observer: Any, index: int) -> None:
    """The program gives what the call gave."""
    args, kwargs = observer.infer_arguments(index, as_args_kwargs=True)
    got = pytree.tree_leaves(program.module()(*args, **kwargs))[0]
    torch.testing.assert_close(got, observer.info.flat_outputs[index][0])


@contextlib.contextmanager
def without_empty_layers() -> Iterator[None]:
    """A registration like that of the peers' own packages: a cache comes back without the layers
    that have no tensors, so that an empty one is false and counts as missing."""
    from transformers import DynamicCache

    def layers(cache: Any) -> list[Any]:
        return [layer for layer in cache.layers if layer.keys is not None]

    def flatten(cache: Any) -> tuple[list[Any], list[str]]:
        parts = [part for layer in layers(cache) for part in (layer.keys, layer.values)]
        return parts, [f"part_{i}" for i in range(len(parts))]

    def flatten_with_keys(cache: Any) -> tuple[list[Any], list[str]]:
        parts, names = flatten(cache)
        return [(pytree.MappingKey(n), p) for n, p in zip(names, parts, strict=True)], names

    def unflatten(parts: Any, _: Any) -> Any:
        parts = list(parts)
        if not all(isinstance(part, torch.Tensor) for part in parts):
            return DynamicCache()  # torch asks with strings, to tell the parts' names
        return DynamicCache(list(zip(parts[::2], parts[1::2], strict=True)))

    pytree.register_pytree_node(
        DynamicCache,
        flatten,
        unflatten,
        serialized_type_name="tests.DynamicCache",
        flatten_with_keys_fn=flatten_with_keys,
    )
    torch.fx._pytree.register_pytree_flatten_spec(DynamicCache, lambda c, _: flatten(c)[0])
    try:
        yield
    finally:
        pytree._deregister_pytree_node(DynamicCache)
        torch.fx._pytree.SUPPORTED_NODES.pop(DynamicCache, None)
        torch.fx._pytree.SUPPORTED_NODES_EXACT_MATCH.pop(DynamicCache, None)


@pytest.mark.parametrize("registration", ["none", "ours", "executorch", "exporters"])
@pytest.mark.parametrize(("layers", "batch"), [(1, 1), (1, 2), (2, 2)])
def test_the_first_call_stands_for_all(
    layers: int, batch: int, registration: str, registrations: Callable[[str], Any]
) -> None:
    model = decoder(layers=layers)
    tokens = prompt(batch)
    with registrations(registration):
        observer = observed(attention(model), model, tokens)
        arguments = observer.infer_arguments()
        shapes = observer.infer_dynamic_shapes(set_batch_dimension_for=True)
        flat = observer.infer_arguments(flat=True)
    assert arguments["hidden_states"].shape == (batch, 7, 16)
    assert len(arguments["cache"].layers) == layers
    for layer in arguments["cache"].layers:
        assert layer.keys.shape == layer.values.shape == (batch, 2, 0, 4)
    assert [tensor.shape[2] for tensor in flat if tensor.dim() == 4] == [0] * (2 * layers)
    assert shapes["hidden_states"] == {0: D, 1: D}
    assert pytree.tree_leaves(shapes["cache"]) == [D, D] * (2 * layers)


@pytest.mark.parametrize(("batch", "steps"), [(1, 20), (2, 4), (2, 2)])
@pytest.mark.parametrize("layers", [1, 2])
def test_an_attention_layer_has_the_answers_of_the_peer(
    layers: int, batch: int, steps: int
) -> None:
    """Also after one step, when the cache's size has not varied and is filled with zeros."""
    peer = torch.onnx.__dict__.get("InputObserver")
    if peer is None:
        pytest.skip("this torch has no InputObserver")
    model = decoder(layers=layers)
    tokens = prompt(batch)
    with without_empty_layers():
        ours, theirs = (
            observed(attention(model), model, tokens, observer, max_new_tokens=steps)
            for observer in (InputObserver(), peer())
        )
        for name in (
            "shapes", "batch", "arguments", "args_kwargs", "flat", "first", "last", "outputs",
            "aligned", "flat_lists", "constants",
        ):  # fmt: skip
            assert same(QUESTIONS[name](ours), QUESTIONS[name](theirs)), name


@pytest.mark.parametrize("registration", ["ours", "peers"])
@pytest.mark.parametrize("batch", [1, 2])
def test_an_attention_layer_is_exported_under_each_registration(
    batch: int, registration: str, registrations: Callable[[str], Any]
) -> None:
    model = decoder()
    module = attention(model)
    active = without_empty_layers() if registration == "peers" else registrations(registration)
    with active:
        observer = observed(module, model, prompt(batch))
        program = exported(module, observer, oblivious=True)
        check_call(program, observer, 0)
        other = observed(module, model, prompt(3, length=9))
        check_call(program, other, 0)


@pytest.mark.parametrize("batch", [1, 2])
def test_an_upper_layer_finds_the_tensors_of_those_below(
    batch: int, registrations: Callable[[str], Any]
) -> None:
    """The peers refuse: the cache has 2 tensors in the first call and 4 in the next."""
    model = decoder(layers=2)
    tokens = prompt(batch)
    lower = observed(attention(model, 0), model, tokens)
    module = attention(model, 1)
    with registrations("ours"):
        observer = observed(module, model, tokens)
        below, own = observer.infer_arguments()["cache"].layers
        assert own.keys.shape == own.values.shape == (batch, 2, 0, 4)
        # The next call of the lower layer has what the first one left in the cache.
        left = lower.infer_arguments(1)["cache"].layers[0]
        assert torch.equal(below.keys, left.keys)
        assert torch.equal(below.values, left.values)
        shapes = observer.infer_dynamic_shapes(set_batch_dimension_for=True)
        assert shapes["cache"] == [GROWING] * 4
        check_call(exported(module, observer, oblivious=True), observer, 0)


@pytest.mark.parametrize("what", ["model", "decoder layer"])
def test_a_model_and_a_decoder_layer_are_observed_as_well(
    what: str, registrations: Callable[[str], Any]
) -> None:
    model = decoder(layers=2)
    module = model if what == "model" else model.model.layers[0]
    with registrations("ours"):
        observer = observed(module, model, prompt(2))
        cache = observer.infer_arguments()["cache"]
        assert [layer.keys.shape for layer in cache.layers] == [(2, 2, 0, 4)] * 2
        check_call(exported(module, observer, oblivious=True), observer, 0)


def test_a_call_without_small_sizes_stands_for_all(registrations: Callable[[str], Any]) -> None:
    """torch.export takes it without any option; a second turn of a conversation is one."""
    model = decoder()
    tokens = prompt(2)
    with registrations("ours"):
        observer = InputObserver()
        with torch.no_grad(), observer(model, store_n_calls=6):
            first = model.generate(
                tokens, do_sample=False, max_new_tokens=3, return_dict_in_generate=True
            )
            again = torch.cat([first.sequences, prompt(2, 5)], dim=1)
            model.generate(again, cache=first.cache, do_sample=False, max_new_tokens=3)
        arguments = observer.infer_arguments()
        assert arguments["input_ids"].shape == (2, 6)
        assert arguments["cache"].layers[0].keys.shape == (2, 2, 9, 4)
        program = exported(model, observer, oblivious=False)
        for index in range(observer.num_obs()):
            check_call(program, observer, index)


def test_attention_without_a_cache_is_exported(registrations: Callable[[str], Any]) -> None:
    model = decoder()
    module = attention(model)
    with registrations("ours"):
        observer = observed(module, model, prompt(2), use_cache=False)
        assert "cache" not in observer.infer_arguments()
        program = exported(module, observer, oblivious=False)
        for index in range(observer.num_obs()):
            check_call(program, observer, index)


def test_a_window_that_is_not_full_counts_its_tokens(registrations: Callable[[str], Any]) -> None:
    """The layer's counter is an int of its state, and not among its tensors."""
    model = decoder("Gemma2", layers=2, sliding_window=32, head_dim=4)
    with registrations("ours"):
        for layer in (0, 1):
            observer = observed(attention(model, layer), model, prompt(2))
            window, full = observer.infer_arguments()["cache"].layers
            assert full.keys.shape == (2, 2, 0, 4)
            assert window.keys.shape == (2, 2, 7 * layer, 4)
            assert window.cumulative_length == 7 * layer
            program = exported(attention(model, layer), observer, oblivious=True)
            check_call(program, observer, 0)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_full_window_is_not_filled_with_zeros(
    layer: int, registrations: Callable[[str], Any]
) -> None:
    """The first call's mask is that of an empty cache. The peers fill the window all the same, and
    the model refuses."""
    model = decoder("Mistral", layers=2, sliding_window=4, head_dim=4)
    module = attention(model, layer)
    with registrations("ours"):
        observer = observed(module, model, prompt(2))
        args, kwargs = observer.infer_arguments(as_args_kwargs=True)
        assert kwargs["hidden_states"].shape == (2, 1, 16)
        with torch.no_grad():
            got = module(*args, **kwargs)[0]
        torch.testing.assert_close(got, observer.info.flat_outputs[1][0])


def test_the_arguments_of_a_static_cache_are_those_of_the_first_call(
    registrations: Callable[[str], Any],
) -> None:
    """Zeros of the full shape are what the first call makes of its cache. The peers refuse."""
    model = decoder(layers=2)
    model.set_attn_implementation("eager")
    options = {"cache_implementation": "static", "disable_compile": True}
    for layer in (0, 1):
        module = attention(model, layer)
        with registrations("ours"):
            observer = observed(module, model, prompt(2), **options)
            arguments = observer.infer_arguments()
            assert arguments["hidden_states"].shape == (2, 7, 16)
            below, own = arguments["cache"].layers
            assert int(below.cumulative_length) == 7 * layer
            assert int(own.cumulative_length) == 0
            assert not own.keys.any()
            program = exported(module, observer, oblivious=False)
            for index in range(observer.num_obs()):
                check_call(program, observer, index)


def test_an_encoder_decoder_cache_is_empty_only_where_it_grows(
    registrations: Callable[[str], Any],
) -> None:
    """What grows is empty in the first call, and the other cache keeps its size, as for the
    peers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BartConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=50,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    model = transformers.BartForConditionalGeneration(config).eval()
    module = model.model.decoder.layers[0].self_attn
    with registrations("ours"):
        observer = observed(module, model, prompt(2), decoder_input_ids=prompt(2, 4))
        args, kwargs = observer.infer_arguments(as_args_kwargs=True)
        assert args[0].shape == (2, 5, 16)
        cache = kwargs["cache"]
        assert cache.self_attention_cache.layers[0].keys.shape == (2, 2, 0, 8)
        assert cache.cross_attention_cache.layers[0].keys.shape == (2, 2, 7, 8)
        check_call(exported(module, observer, oblivious=True), observer, 0)


def test_the_tape_keeps_its_own_choice(registrations: Callable[[str], Any]) -> None:
    """A tape gives the call with all tensors, and each program of its own its arguments."""
    model = decoder()
    with registrations("ours"):
        observer = observed(attention(model), model, prompt(2))
        tape = open_tape(observer.paths)
        assert tape.infer_arguments().kwargs["cache"].layers[0].keys.shape == (2, 2, 7, 4)
        calls = [len(variant.calls) for variant in tape.variants()]
        assert sum(calls) == observer.num_obs()


def test_an_onnx_model_of_the_layer_reproduces_its_first_call(
    registrations: Callable[[str], Any],
) -> None:
    pytest.importorskip("onnxruntime")
    model = decoder()
    module = attention(model)
    with registrations("ours"):
        observer = observed(module, model, prompt(1), max_new_tokens=20)
        assert observer.remove_inputs(["position_ids"]) == 3
        program = exported(module, observer, oblivious=True)
        onnx_program = torch.onnx.export(program, dynamo=True, verbose=False)
        first, *others = observer.check_discrepancies(onnx_program)
    assert first["SUCCESS"]
    assert first["n_none"] == first["n_empty"] == 2
    # Its causal mask is that of a prompt, as for the peers; it runs on single tokens.
    assert all(row["abs"] < 0.5 for row in others)
