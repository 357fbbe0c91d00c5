"""One program for several variants: for a prefill and its decode steps.

Takes the variants of a tape; returns programs that serve several of them, and the variants that
still need one of their own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calltape_analyzer.exporting.exporter import Exporter
from calltape_analyzer.exporting.session.model_differences import why_state_lost
from calltape_analyzer.exporting.session.unseen_runs import why_incomplete
from calltape_analyzer.facts import Note
from calltape_analyzer.programs import notes
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import OfCall
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.variants.alternatives import can_merge, merged
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.names import name_symbols

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["Merging"]

WORTH_SAYING = 1.0
"""How many lost seconds are worth a note."""


@dataclass
class Merging:
    """The programs that serve several variants of one tape.

    Attributes:
        tape: the calls.
        exporter: tries to make a program for a variant.
        programs: what was found.
        failed: the names of merged variants that have no program, although one was traced.
        seconds: how long the attempts to make these took.
        narrow: the names of merged variants whose program rejects sizes that the model accepts.
    """

    tape: Tape
    exporter: Exporter
    programs: list[Program] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    narrow: list[str] = field(default_factory=list)

    def run(self, variants: Sequence[VariantFacts]) -> list[VariantFacts]:
        """Exports several variants as one program where possible.

        Returns:
            The variants that still need a program.
        """
        unmerged = list(variants)
        for larger in variants:
            others = [v for v in unmerged if v is not larger] if larger in unmerged else []
            smaller = [v for v in others if can_merge(v, larger) and self._completes(larger, v)]
            if smaller and self._has_program(larger, smaller):
                unmerged = [v for v in unmerged if v is not larger and v not in smaller]
        return unmerged

    @property
    def notes(self) -> list[Note]:
        """Which sizes programs for single variants might serve in addition, and how much time
        ``merge="never"`` would save. The time is mentioned only if merging gave no program."""
        merge_notes: list[Note] = [notes.MergeRejects(tuple(self.narrow))] if self.narrow else []
        cost_nothing = not self.failed or self.seconds < WORTH_SAYING
        if not (cost_nothing or self.programs or self.exporter.session.budget.is_spent):
            merge_notes.append(notes.MergeCost(tuple(self.failed), round(self.seconds)))
        return merge_notes

    def _has_program(self, larger: VariantFacts, smaller: Sequence[VariantFacts]) -> bool:
        """Makes one program for a variant and smaller ones. Returns whether that is possible."""
        self.exporter.warm_up()  # else the first trace would include imports
        begin = time.perf_counter()
        merged_variant = self.exporter.loosened(self._merged(larger, smaller))
        candidate = self.exporter.export(merged_variant, single_size="never", all_or_nothing=True)
        if candidate is not None and candidate.attempt.ok and candidate.program.only_rows is None:
            program, attempt = candidate.program, candidate.attempt
            # If a recorded call needs state that this program loses, programs for single variants
            # may not need it.
            if why_state_lost(self.exporter.session, program, (), self.tape.calls) is None:
                self.programs.append(program)
                if attempt.probed > attempt.agreed + attempt.wrong:
                    self.narrow.append(merged_variant.name)
                return True
        self.exporter.forget_slow(merged_variant)
        self.failed.append(merged_variant.name)
        self.seconds += time.perf_counter() - begin
        return False

    def _completes(self, larger: VariantFacts, smaller: VariantFacts) -> bool:
        """Whether the model itself accepts calls of a smaller variant as calls of a larger one,
        with an empty cache. An encoder-decoder does not: it takes an empty cache for a full one. A
        run shows that, and saves a trace."""
        variant = self._merged(larger, [smaller])
        call = self.tape.calls.at(smaller.rows.first)
        why = why_incomplete(self.exporter.session, variant, call)
        if why is None:
            return True
        error = OfCall(call.number, why)
        self.exporter.attempts.append(
            Attempt(variant=variant.name, strategy=Strategy.MERGED, error=error)
        )
        return False

    def _merged(self, larger: VariantFacts, smaller: Sequence[VariantFacts]) -> VariantFacts:
        variant = merged(larger, smaller, self.exporter.session.sorter, self.tape.calls)
        variant.name = " + ".join([*(v.name for v in smaller), larger.name])
        name_symbols(variant)
        return variant
