"""How a program is tried to be made: which sizes are open, and what stands in for what."""

from __future__ import annotations

from enum import Enum

from calltape_analyzer.facts import Fact


class Strategy(Enum):
    """What an attempt tries."""

    PLAIN = "plain"
    """All dynamic sizes are open, and no value is known."""
    OPEN_LENGTHS = "open_lengths"
    """The lengths of recurrent layers are open as well."""
    GROWING_BUFFERS = "growing_buffers"
    """The model may register buffers while it is traced."""
    OPEN_SIZE_INTS = "open_size_ints"
    """Ints that the model makes of sizes are open."""
    DEFERRED = "deferred"
    """Conditions become assertions, where they can."""
    OPEN_INTS = "open_ints"
    """Ints that the model reads from tensors are open."""
    NOT_EMPTY = "not_empty"
    """Results whose size only values tell are taken not to be empty."""
    OPEN_NUMBERS = "open_numbers"
    """By the values of a call, with numbers of tensors open."""
    BY_VALUES = "by_values"
    BY_VALUES_OPEN_INTS = "by_values_open_ints"
    BY_VALUES_DEFERRED = "by_values_deferred"
    EVERY_ITEM = "every_item"
    """Loops over what is hit run for every item."""
    OPEN_FLOATS = "open_floats"
    """Floats that the model makes of sizes are open."""
    UNNOTICED = "unnoticed"
    """The model is told that there is no trace."""
    BATCHED_EXPERTS = "batched_experts"
    """Experts run in the one way that can be converted."""
    FIRST_DIMENSIONS = "first_dimensions"
    """Only first dimensions are open."""
    ONE_SIZE = "one_size"
    """No size is open."""
    MERGED = "merged"
    """One program for several variants; the model itself was asked first."""
    NOT_TRACED = "not_traced"
    """No trace can take the variant."""
    IN_A_ROW = "in_a_row"
    """The model was called several times in a row: no program keeps what a call leaves."""
    COMPARED = "compared"
    """The model was compared with what was recorded, and differs."""
    OTHER_VALUES = "other_values"
    """Calls of other values were run through a program."""
    BESIDE = "beside"
    """Sizes beside wrong ones were run through a program."""


class Sampled(Fact, code="sampled"):
    """The arguments of an attempt: those of a recorded call, resized to other sizes unless these
    are empty."""

    call: int
    sizes: str = ""


class Tried(Fact, code="tried"):
    """A strategy, and the arguments that it was tried with."""

    strategy: Strategy
    sample: Sampled | None = None
