"""To leave an argument out is advised only where a call may leave it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, open_tape
from calltape_analyzer.observing.signature import Signature
from calltape_recorder import record
from tests.analyzer.observed import zeros
from tests.analyzer.tapes import target_of


class Batch:
    """An object of a class that calltape does not know."""

    def __init__(self) -> None:
        self.x = zeros(2)


class Takes(torch.nn.Module):
    def forward(self, x: Any, extra: Any = None, *more: Any, **others: Any) -> torch.Tensor:
        return zeros(1)


def test_a_call_may_lack_only_optional_arguments() -> None:
    signature = Signature.of(target_of(Takes()))
    found = [n for n in ("x", "extra", "more.0", "others", "mask") if signature.may_lack(n)]
    assert found == ["extra", "mask"]


GIVEN: dict[str, tuple[tuple[Any, ...], dict[str, Any], str | None]] = {
    "a required object": ((Batch(),), {}, None),
    "a required sparse tensor": ((torch.eye(2).to_sparse(),), {}, None),
    "an optional object": ((zeros(2), Batch()), {}, "extra"),
    "an optional sparse tensor": ((zeros(2), torch.eye(2).to_sparse()), {}, "extra"),
    "one of others": ((zeros(2),), {"mask": Batch()}, "mask"),
    "one of more": ((zeros(2), zeros(2), Batch()), {}, None),
}


@pytest.mark.parametrize(("args", "kwargs", "optional"), GIVEN.values(), ids=GIVEN)
def test_remove_inputs_is_advised_only_for_optional_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], optional: str | None, tmp_path: Path
) -> None:
    model = Takes()
    with record(model, tmp_path / "a.tape"):
        model(*args, **kwargs)
    with open_tape(tmp_path / "a.tape") as tape:
        sources = (tape, tape.variants()[0])
        for source in sources:
            with pytest.raises(InferenceError) as caught:
                source.infer_arguments()
            advice = caught.value.advice or ""
            if optional is None:
                assert "remove_inputs" not in advice
                assert advice
            else:
                assert (
                    f"if the model does without {optional}, leave it out with "
                    f"Tape.remove_inputs(['{optional}'])" in advice
                )
                tape.only(ignore=[optional]).infer_arguments()  # the advice helps
