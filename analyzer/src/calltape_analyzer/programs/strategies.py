"""The strategies by which a program is tried to be made, and what came of each attempt."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, Field, SkipValidation, computed_field

from calltape_analyzer.arguments.sizings import Sizing, sizes_in_words
from calltape_analyzer.comparison.verdicts import JsonText, Verdict
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs.reasons import Unseen, UntriedSize
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.fields import Count, Many, Seconds

__all__ = ["Attempt", "RowOutcome"]


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


RowOutcome = Literal["ok", "wrong", "rejected", "failed", "untried"]

_MAX_UNTRIED, _MAX_UNVERIFIED = 10_000, 5
"""Parts of an output that could not be compared, as many as an attempt names."""


def _of_use_to_the_export(make: Callable[[], Any]) -> Any:
    return Field(default_factory=make, exclude=True, repr=False)


class Attempt(BaseModel):
    """One try to make a program, and what came of it. ``model_dump_json()`` gives it as JSON,
    without ``rows``, and the sizes in ``rejected`` and others, which are of use to the export only.

    Attributes:
        variant: its name.
        strategy: how it was tried.
        sample: the arguments that it was tried with; None if nothing was traced.
        reproduced, tried: how many recorded sizes the program reproduced, and how many were run.
        unrun: how many were not run, because the time was up, or one before had failed.
        agreed, probed: the same for sizes that no call had, compared with the model itself.
        wrong: at how many of them the program returned other values.
        declined: at how many more the model itself raised an error, which proves nothing.
        error: why it failed, or what is wrong with the first call at which the program failed or
            returned other values.
        remark: what is no error: the first condition of the program that a recorded call does not
            meet, what came of the first size that no call had, or that the time was up.
        seconds: how long it took.
        rows: what became of each recorded size: ``ok``, ``wrong``, ``rejected``, ``failed`` if the
            program raised an error although its conditions allow the size, or ``untried`` if the
            time was up.
        failed: at how many sizes that its conditions allow the program raised an error.
        rejected, wrong_at, failed_at, agreed_at: the sizes that no call had and that the program
            rejected, or at which it returned other values, raised an error, or agreed.
        untried: the sizes that no call had and at which the model was not run, with the reason.
        compared: how many values were compared in all of these runs.
        unverified: what could not be compared: where it is in the outputs, and why.
        by_values: whether the program depends on the values of a call, not only on its sizes.
        is_untranslated: whether a program was traced that does what no ONNX model does.
    """

    variant: JsonText
    strategy: Strategy
    sample: Sampled | None = None
    reproduced: Count = 0
    tried: Count = 0
    unrun: Count = 0
    agreed: Count = 0
    probed: Count = 0
    declined: Count = 0
    wrong: Count = 0
    error: Fact | None = None
    remark: Fact | None = None
    seconds: Seconds = 0.0
    rows: SkipValidation[dict[SizeRow, RowOutcome]] = _of_use_to_the_export(dict)
    failed: Count = 0
    rejected: SkipValidation[list[Sizing]] = _of_use_to_the_export(list)
    wrong_at: SkipValidation[list[Sizing]] = _of_use_to_the_export(list)
    failed_at: SkipValidation[list[Sizing]] = _of_use_to_the_export(list)
    agreed_at: SkipValidation[list[Sizing]] = _of_use_to_the_export(list)
    untried: list[UntriedSize] = Field(
        default_factory=list, max_length=_MAX_UNTRIED, fail_fast=True
    )
    compared: Count = 0
    unverified: Many[Fact] = ()
    by_values: bool = False
    is_untranslated: bool = Field(default=False, exclude=True)

    def add(self, found: Verdict | None) -> None:
        """Counts a comparison, if there is one."""
        if found is None:
            return
        self.compared += found.compared
        self.unverified = tuple(dict.fromkeys((*self.unverified, *found.unverified)))[
            :_MAX_UNVERIFIED
        ]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def what(self) -> str:
        """How it was tried, in words."""
        return str(Tried(self.strategy, self.sample))

    def note(self, remark: Fact) -> None:
        """Adds a remark, if there is none yet."""
        self.remark = self.remark or remark

    @property
    def summary(self) -> Fact | None:
        """What came of it, if it is not all that one could wish for."""
        return self.error or self.remark

    def note_wrong(self, sizing: Sizing) -> None:
        """Counts a size that no call had and at which the program returned other values."""
        self.wrong += 1
        self.wrong_at.append(sizing)

    def note_untried(self, variant: VariantFacts, sizing: Sizing, why: Fact) -> None:
        """Adds a size that no call had and at which the model was not run."""
        self.untried.append(UntriedSize(sizes_in_words(variant, sizing), why))

    def note_compared(self, sizing: Sizing, found: Verdict) -> None:
        """Counts a size that no call had, at which the program ran to its end."""
        self.probed += 1
        self.add(found)
        if found.agrees:
            self.agreed += 1
            self.agreed_at.append(sizing)
            return
        self.note_wrong(sizing)
        if found.error is not None:
            self.note(Unseen(found.error))

    @property
    def ok(self) -> bool:
        """Whether all recorded sizes were reproduced, and there was one."""
        return self.reproduced == self.tried > 0 and not self.unrun

    @property
    def rejects(self) -> bool:
        """Whether nothing came of it, or the program rejects a size that was tried."""
        return (
            not self.tried
            or bool(self.rejected)
            or not {"rejected", "failed"}.isdisjoint(self.rows.values())
        )

    @property
    def perfect(self) -> bool:
        """Whether the program also agreed with the model at all sizes that no call had."""
        return self.ok and self.agreed == self.probed
