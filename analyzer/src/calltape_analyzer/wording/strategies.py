"""How programs were tried to be made, in words."""

from __future__ import annotations

from calltape_analyzer.programs.strategies import Sampled, Strategy, Tried

__all__ = ["WORDS"]

_STRATEGIES = {
    Strategy.PLAIN: "",
    Strategy.OPEN_LENGTHS: "lengths of recurrent layers open",
    Strategy.GROWING_BUFFERS: "buffers may grow",
    Strategy.OPEN_SIZE_INTS: "ints of sizes open",
    Strategy.DEFERRED: "runtime asserts deferred",
    Strategy.OPEN_INTS: "ints of tensors open",
    Strategy.NOT_EMPTY: "results not empty",
    Strategy.OPEN_NUMBERS: "by its values, numbers of tensors open",
    Strategy.BY_VALUES: "by its values",
    Strategy.BY_VALUES_OPEN_INTS: "by its values, ints of tensors open",
    Strategy.BY_VALUES_DEFERRED: "by its values, runtime asserts deferred",
    Strategy.EVERY_ITEM: "loops over every item",
    Strategy.OPEN_FLOATS: "floats of sizes open",
    Strategy.UNNOTICED: "as if it were not traced",
    Strategy.BATCHED_EXPERTS: "experts as batched_mm",
    Strategy.FIRST_DIMENSIONS: "only first dimensions open",
    Strategy.ONE_SIZE: "for these sizes only",
    Strategy.MERGED: "one program for both",
    Strategy.NOT_TRACED: "not traced",
    Strategy.IN_A_ROW: "calls in a row",
    Strategy.COMPARED: "compared with the model",
    Strategy.BESIDE: "sizes beside those that were wrong",
}


def _tried(found: Tried) -> str:
    sample = "" if found.sample is None else str(found.sample)
    return ", ".join(filter(None, [sample, _STRATEGIES[found.strategy]]))


def _sampled(found: Sampled) -> str:
    if not found.sizes:
        return f"call {found.call} as recorded"
    return f"call {found.call} resized to {found.sizes}"


WORDS = {Tried: _tried, Sampled: _sampled}
