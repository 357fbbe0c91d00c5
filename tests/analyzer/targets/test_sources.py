"""Every target is reached in one way, and takes a tape or a variant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, UsageError, open_tape, targets
from calltape_analyzer.targets import engines, exporters
from tests.analyzer.tapes import write_tape


class Model(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None) -> Any:
        return x


def tape_of(path: Path, *, variants: int) -> Tape:
    calls: list[Any] = [((torch.zeros(2 + i, 4),), {}) for i in range(3)]
    if variants == 2:
        calls += [((torch.zeros(5 + i, 4),), {"mask": torch.zeros(5 + i, 2)}) for i in range(3)]
    outputs = [call[0][0] for call in calls]
    return open_tape(write_tape(path / "a.tape", calls, target=Model(), outputs=outputs))


ASKED: dict[str, Callable[[Any], Any]] = {
    "dynamic_axes": lambda source: targets.dynamic_axes(source),
    "partial_shapes": lambda source: targets.partial_shapes(source),
    "optimization_profile": lambda source: targets.optimization_profile(source),
    "shapes_collection": lambda source: targets.shapes_collection(source)[1][0].shape,
    "additional_inputs": lambda source: len(
        targets.additional_inputs(source)._examples  # type: ignore[attr-defined]
    ),
}
OF_ONE_PROGRAM = set(ASKED) - {"dynamic_axes"}


@pytest.mark.parametrize("name", ASKED)
def test_a_tape_of_one_variant_is_that_variant(name: str, tmp_path: Path) -> None:
    with tape_of(tmp_path, variants=1) as tape:
        (variant,) = tape.variants()
        assert ASKED[name](tape) == ASKED[name](variant)


@pytest.mark.parametrize("name", ASKED)
def test_a_part_of_a_tape_is_that_variant(name: str, tmp_path: Path) -> None:
    with tape_of(tmp_path, variants=2) as tape:
        first = tape.variants()[0]
        assert ASKED[name](tape.only(variant=0)) == ASKED[name](first)


@pytest.mark.parametrize("name", sorted(OF_ONE_PROGRAM))
def test_what_is_said_of_one_program_wants_one_variant(name: str, tmp_path: Path) -> None:
    with (
        tape_of(tmp_path, variants=2) as tape,
        pytest.raises(UsageError, match="2 variants: 'no mask', 'mask present'"),
    ):
        ASKED[name](tape)


def test_dynamic_axes_are_of_all_variants(tmp_path: Path) -> None:
    with tape_of(tmp_path, variants=2) as tape:
        assert set(targets.dynamic_axes(tape)) == {"x", "mask", "output"}


def test_every_function_of_a_module_is_reachable_from_the_package() -> None:
    for module in (engines, exporters):
        for public in module.__all__:
            assert getattr(targets, public) is getattr(module, public)
            assert public in targets.__all__


def test_the_source_comes_first() -> None:
    for name in ASKED:
        parameters = list(inspect.signature(getattr(targets, name)).parameters)
        assert parameters[0] == "source", name
