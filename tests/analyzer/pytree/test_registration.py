"""register_flattening_functions: what torch.export needs for a tape's classes, and no trace of it
afterwards."""

from __future__ import annotations

import contextlib
import copy
import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

from calltape_analyzer import InputObserver, TapeError, open_tape, register_flattening_functions
from calltape_analyzer.programs.exported_model import NEEDED
from calltape_recorder import record
from tests.pytree_nodes import deregister

D = torch.export.Dim.DYNAMIC


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None = None
    scale: int = 2


class Both(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Product(torch.nn.Module):
    def forward(self, pair: Pair | Both) -> torch.Tensor:
        return pair.left * 2 + pair.right  # type: ignore[operator]


def registries() -> tuple[Any, ...]:
    import torch.fx

    return (
        dict(pytree.SUPPORTED_NODES),
        dict(pytree.SUPPORTED_SERIALIZED_TYPES),
        dict(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE),
        dict(torch.fx._pytree.SUPPORTED_NODES),
        dict(torch.fx._pytree.SUPPORTED_NODES_EXACT_MATCH),
        list(pytree._cxx_pytree_pending_imports),
    )


@pytest.mark.skipif(torch.__version__ < NEEDED, reason="exports need a newer torch")
@pytest.mark.parametrize("cls", [Pair, Both])
def test_a_class_on_the_tape_is_registered_for_an_export(
    cls: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch 2.12 says something there whose format is wrong.
    log = logging.getLogger("torch._export.serde.serialize")
    monkeypatch.setattr(log, "disabled", True)
    model = Product()
    with record(model, tmp_path / "a.tape"):
        for batch in (2, 3, 5):
            model(cls(torch.randn(batch, 4), torch.randn(batch, 4)))
    tape = open_tape(tmp_path / "a.tape", classes=[cls])
    with register_flattening_functions(tape=tape):
        shapes = tape.infer_dynamic_shapes()
        program = torch.export.export(model, *tape.infer_arguments(), dynamic_shapes=shapes)
        torch.export.save(program, tmp_path / "a.pt2")
        loaded = torch.export.load(tmp_path / "a.pt2").module()
        given = cls(torch.randn(7, 4), torch.randn(7, 4))
        torch.testing.assert_close(loaded(given), model(given))
    # Not a comparison of everything: exporting makes torch register classes of its own.
    assert not any(cls in registry or cls in registry.values() for registry in registries()[:5])


def test_shapes_of_a_dataclass_do_not_depend_on_its_registration(tmp_path: Path) -> None:
    model = Product()
    with record(model, tmp_path / "a.tape"):
        model(Pair(torch.randn(2, 4), torch.randn(2, 1)))
        model(Pair(torch.randn(3, 4), torch.randn(3, 1)))
    tape = open_tape(tmp_path / "a.tape", classes=[Pair])
    outside = tape.infer_dynamic_shapes()
    with register_flattening_functions([Pair]):
        assert tape.infer_dynamic_shapes() == outside == ([{0: D}, {0: D}, None],)


def test_nested_blocks_and_threads_leave_nothing_behind() -> None:
    before = registries()
    barrier = threading.Barrier(4)
    wrong: list[str] = []

    def use() -> None:
        barrier.wait()
        for _ in range(50):
            with register_flattening_functions([Pair]), register_flattening_functions([Pair]):
                if len(pytree.tree_leaves(Pair(torch.ones(1)))) != 2:
                    wrong.append("not registered")

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert registries() == before


def test_an_exception_takes_the_registration_back() -> None:
    before = registries()
    with pytest.raises(KeyError), register_flattening_functions([Pair]):
        raise KeyError
    assert registries() == before


def test_a_registration_that_was_there_stays() -> None:
    class Mine:
        pass

    pytree.register_pytree_node(Mine, lambda m: ([], "mine"), lambda c, x: Mine())
    try:
        registered = pytree.SUPPORTED_NODES[Mine]
        with register_flattening_functions([Mine]):
            assert pytree.SUPPORTED_NODES[Mine] is registered
        assert pytree.SUPPORTED_NODES[Mine] is registered
    finally:
        deregister(Mine)


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Holder:
    def __init__(self, kind: Bits) -> None:
        self.kind, self.x = kind, torch.ones(2)


@pytest.mark.parametrize("kind", [Bits.A, Bits.A | Bits.B, Bits(0)])
def test_flags_of_an_object_come_back(kind: Bits) -> None:
    with register_flattening_functions([Holder, Bits]):
        leaves, spec = pytree.tree_flatten(Holder(kind))
        assert len(leaves) == 1
        stored = pytree.treespec_loads(pytree.treespec_dumps(spec))
        found = pytree.tree_unflatten(leaves, stored).kind
    assert found == kind
    assert type(found) is Bits


def test_only_classes_are_registered() -> None:
    with pytest.raises(TapeError, match="is not a class"), register_flattening_functions([3]):  # type: ignore[list-item]
        pass


# Caches of transformers from here on.


def caches() -> dict[str, Any]:
    from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig, StaticCache
    from transformers.cache_utils import DynamicSlidingWindowLayer

    def kv(length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(2, 2, length, 4), torch.randn(2, 2, length, 4)

    sliding = DynamicCache()
    sliding.layers = [DynamicSlidingWindowLayer(sliding_window=6) for _ in range(2)]
    sliding.layer_class_to_replicate = None
    full = copy.deepcopy(sliding)
    for layer in sliding.layers:
        layer.update(*kv(3))
    for layer in full.layers:
        layer.update(*kv(9))
    config = LlamaConfig(
        hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2
    )
    static = StaticCache(config=config, max_cache_len=8)
    static.update(*kv(3), 0)
    static.update(*kv(3), 1)
    return {
        "dynamic": DynamicCache([kv(5), kv(5)]),
        "empty": DynamicCache(),
        "prepared": DynamicCache(config=config),
        "sliding": sliding,
        "full": full,
        "static": static,
        "encoder_decoder": EncoderDecoderCache(DynamicCache([kv(3)]), DynamicCache([kv(7)])),
    }


NAMES = ["dynamic", "empty", "prepared", "sliding", "full", "static", "encoder_decoder"]


def state(value: Any) -> Any:
    """Everything that an object holds, comparable."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape), value.tolist())
    if isinstance(value, (list, tuple)):
        return [state(item) for item in value]
    if isinstance(value, dict):
        return {key: state(item) for key, item in value.items()}
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return (type(value), {name: state(item) for name, item in vars(value).items()})
    return value


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_round_trip_keeps_the_whole_state(name: str) -> None:
    pytest.importorskip("transformers")
    cache = caches()[name]
    with register_flattening_functions():
        leaves, spec = pytree.tree_flatten(cache)
        again = pytree.tree_unflatten(leaves, spec)
        assert state(again) == state(cache)
        assert list(vars(again)) == list(vars(cache))
        assert pytree.tree_structure(again) == spec
        loaded = pytree.treespec_loads(pytree.treespec_dumps(spec))
        assert state(pytree.tree_unflatten(leaves, loaded)) == state(cache)


@pytest.mark.integration
def test_a_rebuilt_cache_works_on() -> None:
    pytest.importorskip("transformers")
    for name in ("dynamic", "sliding", "full"):
        cache = caches()[name]
        with register_flattening_functions():
            again = pytree.tree_map(torch.clone, cache)
        key, value = torch.randn(2, 2, 1, 4), torch.randn(2, 2, 1, 4)
        for expected, got in zip(
            cache.update(key, value, 0), again.update(key, value, 0), strict=True
        ):
            torch.testing.assert_close(got, expected)
        assert again.get_seq_length() == cache.get_seq_length()


@pytest.mark.integration
def test_private_marks_make_no_other_structure() -> None:
    pytest.importorskip("transformers")
    cache = caches()["dynamic"]
    with register_flattening_functions():
        before = pytree.tree_structure(cache)
        cache._is_user_defined = True
        marked = pytree.tree_structure(cache)
        assert marked == before
        cache.offloading = True
        assert pytree.tree_structure(cache) != before
        again = pytree.tree_unflatten(pytree.tree_leaves(cache), marked)
        assert again._is_user_defined is True


@pytest.mark.integration
def test_steps_of_a_sliding_window_are_one_structure_until_it_is_full() -> None:
    pytest.importorskip("transformers")
    cache, full = caches()["sliding"], caches()["full"]
    with register_flattening_functions():
        before = pytree.tree_structure(cache)
        cache.layers[0].update(torch.randn(2, 2, 1, 4), torch.randn(2, 2, 1, 4))
        assert pytree.tree_structure(cache) == before
        assert pytree.tree_structure(full) != before


@pytest.mark.integration
def test_past_the_window_a_program_takes_its_own_number_of_tokens_only(tmp_path: Path) -> None:
    """The number is a constant of the program: with another one its positions would be wrong."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=6,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval()
    with torch.no_grad():
        given = [transformers.DynamicCache(config=config) for _ in range(3)]
        for tokens, cache in zip((9, 10, 11), given, strict=True):
            model(torch.randint(64, (2, tokens)), past_key_values=cache)
        with record(model, tmp_path / "a.tape"):
            for cache in given:
                model(input_ids=torch.randint(64, (2, 3)), past_key_values=cache)
    tape = open_tape(tmp_path / "a.tape")
    with register_flattening_functions(), torch.no_grad():
        program = torch.export.export(
            model, *tape.infer_arguments(), dynamic_shapes=tape.infer_dynamic_shapes(),
            strict=False,
        ).module()  # fmt: skip
        got = program(**tape.infer_arguments(0).kwargs)
        torch.testing.assert_close(got.logits, tape[0].outputs.logits)
        for other in (1, 2):
            with pytest.raises(ValueError, match="spec"):
                program(**tape.infer_arguments(other).kwargs)


@pytest.mark.integration
@pytest.mark.parametrize("active", ["executorch", "exporters"])
def test_transformers_registrations_come_first(
    active: str, registrations: Callable[[str], Any]
) -> None:
    from transformers import DynamicCache

    with registrations(active):
        theirs = pytree.SUPPORTED_NODES[DynamicCache]
        with register_flattening_functions():
            assert pytree.SUPPORTED_NODES[DynamicCache] is theirs
        assert pytree.SUPPORTED_NODES[DynamicCache] is theirs


@pytest.mark.integration
def test_a_later_registration_of_transformers_gives_way_silently() -> None:
    pytest.importorskip("transformers")
    from transformers import DynamicCache
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    before = registries()
    with register_flattening_functions():
        ours = pytree.SUPPORTED_NODES[DynamicCache]
        # It depends on the version of transformers whether it says so.
        with contextlib.suppress(ValueError):
            register_dynamic_cache_export_support()
        assert pytree.SUPPORTED_NODES[DynamicCache] is ours
    assert registries() == before


class Reads(torch.nn.Module):
    def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
        if cache is None:
            return x
        return x + sum(layer.keys.mean() + layer.values.mean() for layer in cache.layers)


@pytest.mark.integration
@pytest.mark.parametrize("at_record", ["none", "ours", "executorch", "exporters"])
@pytest.mark.parametrize("at_export", ["ours", "executorch", "exporters"])
def test_a_cache_is_exported_under_any_registration(
    at_record: str, at_export: str, registrations: Callable[[str], Any]
) -> None:
    from transformers import DynamicCache

    model, observer = Reads().eval(), InputObserver()

    def call(batch: int, length: int) -> tuple[torch.Tensor, Any]:
        shape = (batch, 2, length, 4)
        pairs = [(torch.randn(shape), torch.randn(shape)) for _ in range(2)]
        return torch.randn(batch, 3), DynamicCache(pairs)

    if at_record == "none":
        with observer(model):
            model(*call(2, 3))
            model(*call(4, 5))
    else:
        with registrations(at_record), observer(model):
            model(*call(2, 3))
            model(*call(4, 5))
    with registrations(at_export):
        shapes = observer.infer_dynamic_shapes()
        nested = [[{0: D, 2: D}] * 2, [{0: D, 2: D}] * 2]
        flat = [{0: D, 2: D}] * 4
        assert shapes == ({0: D}, nested if at_export == "executorch" else flat)
        program = torch.export.export(model, observer.infer_arguments(), dynamic_shapes=shapes)
        given = call(6, 9)
        torch.testing.assert_close(program.module()(*given), model(*given))
