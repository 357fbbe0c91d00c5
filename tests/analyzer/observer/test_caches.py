"""Which call stands for all if a cache is empty at first, on a class that nobody registered."""

from __future__ import annotations

import pytest
import torch

from calltape_analyzer import InputObserver, open_tape

D = torch.export.Dim.DYNAMIC


class Cached(torch.nn.Module):
    """Keeps what it was given, like a layer of a language model."""

    def forward(self, x, cache=None):
        seen = x if cache.seen is None else torch.cat([cache.seen, x])
        cache.seen = seen
        return seen.sum(0)


class Cache:
    seen: torch.Tensor | None = None

    def __init__(self) -> None:
        self.seen = None


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        # Single tokens follow: the first call stands for all, as for the peers.
        ((4, 1, 1), (4, 0)),
        # A second turn has all tensors and no size that torch.export specializes.
        ((4, 1, 3), (3, 5)),
    ],
)
def test_a_cache_that_is_empty_at_first_is_inferred_from_the_first_call(
    lengths: tuple[int, ...], expected: tuple[int, int]
) -> None:
    model, cache, observer = Cached(), Cache(), InputObserver()
    with observer(model):
        for length in lengths:
            model(x=torch.ones(length, 2), cache=cache)
    assert observer.infer_dynamic_shapes() == {"x": {0: D}, "cache": [{0: D}]}
    arguments = observer.infer_arguments()
    assert (len(arguments["x"]), len(arguments["cache"].seen)) == expected
    assert (
        len(open_tape(observer.paths, classes=[Cache]).infer_arguments().kwargs["cache"].seen) > 0
    )
