"""A tape and a variant are asked for shapes and arguments in one way, and answer in one form."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, TapeError, Variant, open_tape
from calltape_analyzer.errors import InferenceError, UsageError
from tests.analyzer.tapes import write_tape

AUTO, DYNAMIC = torch.export.Dim.AUTO, torch.export.Dim.DYNAMIC


class Model(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None, *, scale: Any = 1.0) -> Any:
        return x


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    calls = [
        ((torch.full((2 + i, 4), i),), {"mask": torch.ones(2 + i, 5 + i), "scale": 3.0})
        for i in range(3)
    ]
    return open_tape(write_tape(tmp_path / "a.tape", calls, target=Model()))


def sources(tape: Tape) -> list[Tape | Variant]:
    (variant,) = tape.variants()
    return [tape, variant, tape.only(variant=variant.name)]


@pytest.mark.parametrize("name", ["infer_dynamic_shapes", "infer_arguments"])
def test_tape_and_variant_share_signature_and_documentation(name: str) -> None:
    ours, theirs = getattr(Tape, name), getattr(Variant, name)
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__doc__ is theirs.__doc__


@pytest.mark.parametrize("dim", ["auto", "dynamic"])
def test_shapes_have_one_form(tape: Tape, dim: Any) -> None:
    kind = AUTO if dim == "auto" else DYNAMIC
    for source in sources(tape):
        shapes = source.infer_dynamic_shapes(dim=dim)
        assert shapes == {"x": {0: kind}, "mask": {0: kind, 1: kind}, "scale": None}


def test_names_are_shared_by_what_is_equal(tape: Tape) -> None:
    for source in sources(tape):
        shapes: Any = source.infer_dynamic_shapes(dim="names")
        assert shapes == source.infer_dynamic_shapes(dim_names=True)
        assert shapes["x"][0] == shapes["mask"][0]
        assert shapes["mask"][1] not in (shapes["x"][0], None)


def test_names_can_be_given(tape: Tape) -> None:
    for source in sources(tape):
        for key in ("x", 0):
            shapes: Any = source.infer_dynamic_shapes(dim_names={key: {0: "rows"}})
            assert shapes["x"] == {0: "rows"}
        with pytest.raises(UsageError, match="not an argument"):
            source.infer_dynamic_shapes(dim_names={"y": {0: "rows"}})


def test_batch_is_declared_in_one_way(tmp_path: Path) -> None:
    calls = [((torch.zeros(2, 4 + i),), {}) for i in range(3)]
    with open_tape(write_tape(tmp_path / "a.tape", calls, target=Model())) as tape:
        for source in sources(tape):
            for declared in ({"x"}, {0}, True):
                shapes = source.infer_dynamic_shapes(declared, dim="dynamic")
                assert shapes == ({0: DYNAMIC, 1: DYNAMIC},)


def test_arguments_have_one_form(tape: Tape) -> None:
    for source in sources(tape):
        arguments = source.infer_arguments()
        assert (len(arguments.args), set(arguments.kwargs)) == (1, {"mask", "scale"})
        args, kwargs = arguments
        assert torch.is_tensor(args[0])
        assert kwargs["scale"] == 3.0
        as_peer = source.infer_arguments(as_args_kwargs=False)
        assert isinstance(as_peer, dict)
        assert set(as_peer) == {"x", "mask", "scale"}


def test_arguments_of_one_call_have_its_values(tape: Tape) -> None:
    for source in sources(tape):
        for index, rows in ((0, 2), (2, 4), (-1, 4)):
            assert torch.equal(
                source.infer_arguments(index).args[0], torch.full((rows, 4), rows - 2)
            )
        with pytest.raises(InferenceError, match="Count from 0"):
            source.infer_arguments(3)


def test_arguments_of_the_callers_own_are_completed(tape: Tape) -> None:
    x, mask = torch.zeros(9, 4, dtype=torch.int64), torch.ones(9, 7)
    for source in sources(tape):
        arguments: Any = source.infer_arguments({"x": x, "mask": mask}, as_args_kwargs=False)
        assert (arguments["x"].shape, arguments["mask"].shape, arguments["scale"]) == (
            (9, 4),
            (9, 7),
            3.0,
        )
        with pytest.raises(TapeError):
            source.infer_arguments("x")  # type: ignore[call-overload]


def test_a_variant_refuses_arguments_that_are_not_its_own(tape: Tape) -> None:
    (variant,) = tape.variants()
    with pytest.raises(UsageError, match="does not take these arguments"):
        variant.infer_arguments({"x": torch.zeros(9, 5, dtype=torch.int64)})


def test_tensors_are_made_on_a_device(tape: Tape) -> None:
    for source in sources(tape):
        for index in (None, 1):
            arguments = source.infer_arguments(index, device="meta")
            assert {arguments.args[0].device.type, arguments.kwargs["mask"].device.type} == {"meta"}


def test_a_kind_of_dimension_that_does_not_exist(tape: Tape) -> None:
    for source in sources(tape):
        with pytest.raises(UsageError, match="auto"):
            source.infer_dynamic_shapes(dim="static")  # type: ignore[arg-type]
