"""What the peer and calltape are both asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return (
            ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)
        )
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if hasattr(ours, "layers"):
        return all(
            same([a.keys, a.values], [b.keys, b.values])
            for a, b in zip(ours.layers, theirs.layers, strict=True)
        )
    return bool(ours == theirs)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "shapes": lambda o: o.infer_dynamic_shapes(),
    "batch": lambda o: o.infer_dynamic_shapes(set_batch_dimension_for=True),
    "batch_of_some": lambda o: o.infer_dynamic_shapes(set_batch_dimension_for={0, "b", "c"}),
    "arguments": lambda o: o.infer_arguments(),
    "args_kwargs": lambda o: o.infer_arguments(as_args_kwargs=True),
    "flat": lambda o: o.infer_arguments(flat=True),
    "first": lambda o: o.infer_arguments(0),
    "last": lambda o: o.infer_arguments(o.num_obs() - 1),
    "given_tuple": lambda o: o.infer_arguments((torch.ones(2, 2),)),
    "latencies": lambda o: len(o.info.latencies),
    "outputs": lambda o: o.info.flat_outputs,
    "aligned": lambda o: (
        o.infer_dynamic_shapes(),
        [candidate.aligned_flat_list for candidate in o.info.inputs],
    ),
    "flat_lists": lambda o: [candidate.flat_list for candidate in o.info.inputs],
    "constants": lambda o: [candidate.cst_kwargs for candidate in o.info.inputs],
}
