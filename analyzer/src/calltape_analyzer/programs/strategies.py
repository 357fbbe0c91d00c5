"""The strategies that attempts to make a program follow."""

from __future__ import annotations

from enum import Enum

__all__ = ["Strategy"]


class Strategy(Enum):
    """How an attempt makes a program."""

    PLAIN = "plain"
    """All dynamic sizes are open, and no value is known."""
    OPEN_LENGTHS = "open_lengths"
    """The lengths of recurrent layers are open as well."""
    GROWING_BUFFERS = "growing_buffers"
    """The model may register buffers while it is traced."""
    OPEN_SIZE_INTS = "open_size_ints"
    """Ints that the model makes of sizes are open."""
    DEFERRED = "deferred"
    """Guards become assertions in the program where possible."""
    OPEN_INTS = "open_ints"
    """Ints that the model reads from tensors are open."""
    NOT_EMPTY = "not_empty"
    """Results whose size depends on values are assumed not to be empty."""
    OPEN_NUMBERS = "open_numbers"
    """The trace knows the values of a call, and numbers that the model reads from tensors are
    open."""
    BY_VALUES = "by_values"
    """The trace knows the values of a call, and asserts what it assumes about them."""
    BY_VALUES_OPEN_INTS = "by_values_open_ints"
    """As BY_VALUES, with ints and the lengths of recurrent layers open."""
    BY_VALUES_DEFERRED = "by_values_deferred"
    """As BY_VALUES, with guards as assertions where possible."""
    EVERY_ITEM = "every_item"
    """Loops over selected items run for every item."""
    OPEN_FLOATS = "open_floats"
    """Floats that the model makes of sizes are open."""
    UNNOTICED = "unnoticed"
    """The model is told that no trace is running."""
    BATCHED_EXPERTS = "batched_experts"
    """Experts run in the only implementation that can be converted to ONNX."""
    FIRST_DIMENSIONS = "first_dimensions"
    """Only first dimensions are open."""
    ONE_SIZE = "one_size"
    """No size is open."""
    MERGED = "merged"
    """One program for several variants, after a run of the model itself."""
    NOT_TRACED = "not_traced"
    """The variant cannot be traced."""
    IN_A_ROW = "in_a_row"
    """The model ran several times in a row, and no program keeps the state that a call leaves."""
    COMPARED = "compared"
    """The model was compared with what was recorded, and differs."""
    BESIDE = "beside"
    """A program ran at sizes next to wrong ones."""
