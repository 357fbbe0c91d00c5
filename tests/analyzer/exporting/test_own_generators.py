"""Models that make a generator of random numbers in each call, and those that are given one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import export
from calltape_analyzer.errors import ExportError
from tests.analyzer.exported import assert_as_module, call, made, taped

CALLS = [call(torch.ones(n, 4)) for n in (2, 3, 5)]


class Seeded(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        noise = torch.randn(4, generator=generator) + torch.rand(4, generator=generator)
        return x + noise + torch.randperm(4, generator=generator)


class OfSize(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + torch.rand(x.shape[0], 4, generator=torch.Generator().manual_seed(3))


class OfValues(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + torch.bernoulli(x * 0.5, generator=torch.Generator().manual_seed(3))


_ELSEWHERE = {"noise": torch.Generator().manual_seed(3)}


class OfElsewhere(torch.nn.Module):
    """Draws from torch's own generator, and from one in a container."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.held = {"noise": torch.Generator().manual_seed(3), "torch": torch.default_generator}
        self.name = name

    def forward(self, x: Any) -> Any:
        found = _ELSEWHERE["noise"] if self.name == "elsewhere" else self.held[self.name]
        return x + torch.rand(4, generator=found)


class Holding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Any) -> Any:
        return x + torch.rand(4, generator=self.generator)


class Given(torch.nn.Module):
    def forward(self, x: Any, generator: Any = None, noise: Any = None) -> Any:
        return x + (torch.rand(4, generator=generator) if noise is None else noise)


def test_its_numbers_are_constants_and_nothing_is_random(tmp_path: Path) -> None:
    programs = made(tmp_path, Seeded(), CALLS, [call(torch.ones(9, 4))])
    (program,) = programs.values()
    assert not program.random_generators
    for _ in range(3):
        assert_as_module(programs, Seeded(), CALLS)


@pytest.mark.integration
def test_as_many_as_a_size_says_are_drawn_for_each_size_alone(tmp_path: Path) -> None:
    programs = made(tmp_path, OfSize(), CALLS)
    assert len(programs) == 3
    for _ in range(2):
        assert_as_module(programs, OfSize(), CALLS)
    assert any("go on drawing" in str(attempt.error) for attempt in programs.attempts)


@pytest.mark.integration
def test_what_values_decide_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="a program would go on drawing"):
        export(taped(tmp_path, OfValues(), CALLS), OfValues())


@pytest.mark.integration
def test_the_generator_of_torch_gives_no_constants(tmp_path: Path) -> None:
    programs = export(taped(tmp_path, OfElsewhere("torch"), CALLS), OfElsewhere("torch"))
    first, second = programs(torch.ones(3, 4)), programs(torch.ones(3, 4))
    assert not torch.equal(first, second)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["noise", "elsewhere"])
def test_a_generator_that_lives_on_is_state(tmp_path: Path, name: str) -> None:
    model = OfElsewhere(name)
    with pytest.raises(ExportError, match="returns something else when it is called again"):
        export(taped(tmp_path, model, CALLS), model)


def test_a_generator_that_the_model_holds_is_random(tmp_path: Path) -> None:
    programs = export(taped(tmp_path, Holding(), CALLS), Holding())
    assert programs.verify().ok
    (program,) = programs.values()
    assert program.random_generators


@pytest.mark.integration
def test_a_generator_is_no_argument_and_the_advice_is_good(tmp_path: Path) -> None:
    calls = [call(torch.ones(n, 4), torch.Generator().manual_seed(n)) for n in (2, 3, 5)]
    with pytest.raises(ExportError) as caught:
        export(taped(tmp_path, Given(), calls), Given())
    text = str(caught.value)
    assert "draw the numbers before, and call the model with them, and record that" in text
    assert "register_pytree_node" not in text
    folder = tmp_path / "followed"
    folder.mkdir()
    made(folder, Given(), [call(torch.ones(n, 4), noise=torch.rand(4)) for n in (2, 3, 5)])


class Masked(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        if mask is None:
            length = x.shape[2]
            mask = create_block_mask(
                lambda b, h, q, k: q >= k, 1, None, length, length, device="cpu"
            )
        return flex_attention(x, x, x, block_mask=mask)


@pytest.mark.integration
def test_a_block_mask_is_made_by_the_model(tmp_path: Path) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, None, 128, 128, device="cpu")
    calls = [call(torch.rand(n, 2, 128, 8), mask) for n in (1, 2)]
    with pytest.raises(ExportError, match="let the model make it, of tensors or sizes"):
        export(taped(tmp_path, Masked(), calls), Masked())
    folder = tmp_path / "followed"
    folder.mkdir()
    made(folder, Masked(), [call(torch.rand(n, 2, 128, 8)) for n in (1, 2, 3)])
