"""Recorded calls through an ONNX model: how far its outputs are from the recorded ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.comparison.judging import Run, judge
from calltape_analyzer.comparison.verdicts import Against, Verdict
from calltape_analyzer.facts import Fact
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.pytree.nodes import Returned
from calltape_analyzer.pytree.rendering import render
from calltape_analyzer.reading.call import Call
from calltape_analyzer.replaying.model_values import CallValue, match_inputs

__all__ = ["Feed", "PeerRun"]

Feed = tuple[str, str, Any, bool]
"""Argument, path below it, tensor, and whether the recorded call did not have it."""


@dataclass
class PeerRun(Run):
    """A recorded call through the model, compared as the peers do: outputs in their order.

    Attributes:
        model: is run.
        given: the tensors that it gets.
        outputs: the tensors that were recorded.
        unknown: the parts of what was recorded that nothing can be compared with.
        skip_none: whether an output that is None on one side is no difference.
    """

    model: ExportedModel
    given: Sequence[Feed]
    outputs: Sequence[Any]
    unknown: Sequence[Fact]
    skip_none: bool

    def row(self, call: Call, atol: float, rtol: float, *, include_io: bool) -> dict[str, Any]:
        """The row of the call in the table: the absolute and the relative difference each have a
        bound of their own.

        Raises:
            InferenceError: the model has other inputs than the call.
        """
        given, names = self.given, self.model.input_names
        values = [CallValue(name, path, "tensor", i) for i, (name, path, *_) in enumerate(given)]
        matched = match_inputs(names, values).items()
        self._feeds = {name: given[value.number][2] for name, value in matched}
        found = judge(call, self, Tolerances(rtol=rtol, atol=atol))
        row: dict[str, Any] = {"SUCCESS": found.ok}
        row |= {} if found.error is None else {"error": str(found.error)}
        if found.compared and math.isfinite(found.max_abs):
            relative = self._relative(rtol)
            is_near = found.max_abs <= atol and relative <= rtol
            row |= {"SUCCESS": found.ok and is_near, "abs": found.max_abs, "rel": relative}
        row |= {
            "ort_duration": self.seconds,
            "n_inputs": len(names),
            "n_none": sum(missing for _, _, _, missing in given),
            "n_empty": sum(missing or tensor.numel() == 0 for _, _, tensor, missing in given),
        }
        if include_io:
            row |= {
                "inputs": render(self._feeds),
                "outputs_torch": render(self.outputs),
                "outputs_ort": render(self.result),
            }
        return row

    def run(self) -> list[Any]:
        got = self.model.run(self._feeds)
        if not self.skip_none:
            return got
        kept = [i for i, one in enumerate(self.outputs) if one is not None]
        got = [got[i] for i in kept] if len(got) == len(self.outputs) else got
        self.outputs = [self.outputs[i] for i in kept]
        return got

    def leaves(self, result: Any) -> Returned:
        return Returned({f".{i}": tensor for i, tensor in enumerate(result)})

    def expected(self, call: Call) -> tuple[dict[str, Any], Against]:
        return self.leaves(self.outputs).leaves, "tape"

    def explained(self, call: Call, verdict: Verdict, expected: Mapping[str, Any]) -> Verdict:
        return verdict.without(self.unknown)

    def _relative(self, rtol: float) -> float:
        """The largest ``|a - b| / (|a| + rtol)``, as in ``torch.onnx.InputObserver``."""
        import torch

        largest = 0.0
        for ours, theirs in zip(self.outputs, self.result, strict=True):
            if theirs.numel():
                wide = torch.complex128 if theirs.is_complex() else torch.float64
                one, other = ours.cpu().to(wide), theirs.to(wide)
                # Equal infinities and NaN on both sides are no difference.
                same = (one == other) | (one.isnan() & other.isnan())
                apart = torch.where(same, 0.0, (one - other).abs() / (one.abs() + rtol))
                largest = max(largest, float(apart.max()))
        return largest
