"""A cache class is taught in one place: a made-up one, in calltape_schema.cache_classes."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as torch_pytree

from calltape_analyzer import Placeholder, Tape, open_tape, register_flattening_functions
from calltape_analyzer.programs.caller_objects import in_own_objects, returned_arguments
from calltape_analyzer.pytree.caches import loaded_cache_classes, set_token_counters
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.description import describe_result
from calltape_analyzer.pytree.nodes import values_in
from calltape_recorder import record
from calltape_schema import cache_classes


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class that nobody taught: no name tells that it is a cache."""

    class Memory:
        def __init__(self, length: int, batch: int = 2) -> None:
            self.k = torch.ones(batch, 3, length, 4)
            self.v = torch.ones(batch, 3, length, 4)
            self.seen = length

    Memory.__module__, Memory.__qualname__ = "acme.kv", "Memory"
    module: Any = types.ModuleType("acme.kv")
    module.Memory = Memory
    monkeypatch.setitem(sys.modules, "acme.kv", module)
    return Memory


@pytest.fixture
def taught(memory: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All that has to be written to teach it."""
    monkeypatch.setitem(cache_classes.CACHES, "Memory", "acme.kv")
    monkeypatch.setitem(cache_classes.COUNTERS, "seen", ("k", -2))
    return memory


class Decoder(torch.nn.Module):
    def forward(self, ids: torch.Tensor, memory: Any = None) -> torch.Tensor:
        return ids * 2 if memory is None else ids + memory.k.sum()


def tape_of(path: Path, *memories: Any) -> Tape:
    model = Decoder()
    with record(model, path):
        for rows, memory in enumerate(memories, 2):
            model(torch.ones(rows, rows + 3), memory=memory)
    return open_tape(path)


def test_a_taught_cache_is_recorded_by_its_attributes_and_read_back(
    taught: Any, tmp_path: Path
) -> None:
    (call,) = tape_of(tmp_path / "a.tape", taught(5))
    made = call.inputs.kwargs["memory"]
    assert type(made) is taught
    assert made.seen == 5
    assert torch.equal(made.k, torch.ones(2, 3, 5, 4))


def test_a_class_that_was_not_taught_is_a_placeholder(memory: Any, tmp_path: Path) -> None:
    (call,) = tape_of(tmp_path / "a.tape", memory(5))
    assert isinstance(call.inputs.kwargs["memory"], Placeholder)


def test_its_tensors_are_a_list_of_dynamic_shapes(taught: Any, tmp_path: Path) -> None:
    tape = tape_of(tmp_path / "a.tape", taught(5), taught(6))
    dynamic = torch.export.Dim.DYNAMIC
    assert tape.infer_dynamic_shapes() == {
        "ids": {0: dynamic, 1: dynamic},
        "memory": [{2: dynamic}, {2: dynamic}],
    }


def test_its_counter_is_no_number_of_a_program(taught: Any, tmp_path: Path) -> None:
    assert taught in loaded_cache_classes()
    with register_flattening_functions():
        _, short = torch_pytree.tree_flatten(taught(5))
        leaves, long = torch_pytree.tree_flatten(taught(6))
        assert short == long
        assert torch_pytree.tree_unflatten(leaves, short).seen == 6
    assert taught not in torch_pytree.SUPPORTED_NODES
    (variant,) = tape_of(tmp_path / "a.tape", taught(5), taught(6)).variants()
    (counter,) = variant.findings.ints
    assert (counter.path, counter.counts) == (".seen", "memory.k[2]")


def test_variants_are_named_by_it(taught: Any, tmp_path: Path) -> None:
    variants = tape_of(tmp_path / "a.tape", None, taught(5)).variants()
    assert [variant.name for variant in variants] == ["prefill", "decode"]


def test_one_that_is_filled_with_nothing_has_counted_nothing(taught: Any) -> None:
    made = taught(5)
    made.k = made.k[:, :, :0]
    set_token_counters(made)
    assert made.seen == 0


def test_the_parts_of_a_pair_that_are_filled_with_nothing_have_counted_nothing(taught: Any) -> None:
    made = types.SimpleNamespace(self_attention_cache=taught(5), cross_attention_cache=taught(7))
    made.self_attention_cache.k = made.self_attention_cache.k[:, :, :0]
    made.cross_attention_cache.k = made.cross_attention_cache.k[:, :, :0]
    set_token_counters(made)
    assert (made.self_attention_cache.seen, made.cross_attention_cache.seen) == (0, 0)


def test_a_model_that_changes_a_taught_cache_hands_it_back(taught: Any) -> None:
    own, made = taught(5), taught(6)
    returned = returned_arguments({"memory": own}, {"memory": own})
    assert returned == {"memory": "memory"}
    result = in_own_objects({"memory": made}, returned, {"memory": own})
    assert result["memory"] is own
    assert own.seen == 6


def test_its_flags_are_no_values_of_a_result(taught: Any) -> None:
    made = taught(5)
    vars(made).update(_mark=1, is_full=True, offset=7)
    described = describe_result({"memory": made})
    found = values_in(described.node, described.tensors.__getitem__, described.scalars.__getitem__)
    assert list(found) == [".memory.k", ".memory.v", ".memory.seen", ".memory.offset"]


@pytest.mark.parametrize("module", ["transformers.models.own.configuration_own", "own"])
def test_private_attributes_of_a_configuration_are_no_values_of_a_result(module: str) -> None:
    @dataclasses.dataclass
    class OwnConfig:
        size: int = 3

    OwnConfig.__module__ = module
    made = OwnConfig()
    vars(made).update(_commit="abc", beside=1)
    described = describe_result({"config": made})
    found = values_in(described.node, described.tensors.__getitem__, described.scalars.__getitem__)
    private = [] if module != "own" else [".config._commit"]
    assert sorted(found) == sorted([".config.size", ".config.beside", *private])


@pytest.mark.parametrize("tables", [cache_classes.CACHES, cache_classes.LAYERS])
def test_every_taught_class_exists_and_is_rebuilt(tables: dict[str, str]) -> None:
    cache_utils = pytest.importorskip("transformers.cache_utils")
    for name, module in tables.items():
        cls = getattr(cache_utils, name)
        assert cls.__module__ == module
        assert cache_classes.is_cache(cls)
        assert ClassIndex().get(f"{module}:{name}") is cls


@pytest.mark.parametrize("name", ["sys:modules", "os:environ", "acme.kv:Memory", "Cache", ":Cache"])
def test_no_other_library_is_asked(name: str, memory: Any) -> None:
    assert ClassIndex().get(name) is None
