"""Makes the programs of one variant, until every recorded size has one.

Most variants get a single program. If that rejects some sizes or values, others are traced from
these; if a value must be a constant, a program is made for each of a few values. Takes a variant;
adds its programs, and why some of its sizes or values have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

from calltape_analyzer.exporting.exporter import Exporter
from calltape_analyzer.exporting.value_parts import (
    calls_by_value,
    int_value_parts,
    keep_to_values,
    part_of_value,
    rejected_value,
    reproduces,
    serves_all_values,
    tensor_value_parts,
    unserved_calls,
    varying_ints,
    with_open_floats,
)
from calltape_analyzer.facts import Fact
from calltape_analyzer.foreign_errors import ErrorMeaning, means
from calltape_analyzer.observing.groups import MAX_VALUES
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs import notes, reasons
from calltape_analyzer.programs.attempts import Attempt, Candidate, Gap
from calltape_analyzer.programs.program import Program
from calltape_analyzer.text import UniqueNames
from calltape_analyzer.variants.alternatives import part_of
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.names import name_symbols

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["VariantExport"]

MAX_PROGRAMS = 12
"""The maximum number of programs for a variant."""
MAX_CONSTANTS = 3
"""The maximum number of programs for one size or one number of a variant. More of them would serve
no new call."""
_MAX_EXTENSIONS = 2
"""The maximum number of programs for unrecorded sizes of a variant."""


@dataclass
class VariantExport:
    """Makes programs for variants of one tape.

    Attributes:
        tape: the calls.
        exporter: tries to make a program for a variant.
        programs: those of all variants, to which new ones are added.
        gaps: by name, which variants, or some of their sizes or values, have no program, and why.
            New ones are added.
    """

    tape: Tape
    exporter: Exporter
    programs: list[Program]
    gaps: dict[str, Gap]

    def export(self, variant: VariantFacts) -> None:
        """Makes programs until every recorded size of a variant has one. Each is traced from a size
        that the earlier ones reject."""
        variant = self.exporter.loosened(variant)
        unserved: list[SizeRow] = list(variant.rows)
        given_up: list[SizeRow] = []
        reason: Fact | None = None
        attempts: list[Attempt] = []
        constants, programs_before = 0, len(self.programs)
        with_floats = self._with_open_floats(variant)
        if with_floats is not None:
            variant = replace(with_floats.program.variant, name=variant.name)
        while unserved and len(attempts) < MAX_PROGRAMS and constants < MAX_CONSTANTS:
            has_programs = bool(attempts)
            named = self._named(variant)
            is_first = not (has_programs or given_up)
            candidate, with_floats = with_floats, None
            if candidate is None and is_first and varying_ints(variant):
                candidate = self.exporter.export(named, single_size="never")
                if candidate is None or not candidate.served():
                    if self._export_int_values(variant):
                        return
                    candidate = self.exporter.export(named, single_size="only")
            elif candidate is None:
                candidate = self.exporter.export(named, None if is_first else unserved)
            keeps_values = candidate is None or keep_to_values(
                candidate, self.tape.calls, self.exporter.session
            )
            if not keeps_values and not has_programs:
                self._export_text_values(variant)
                return
            served = {row for row in unserved if candidate and candidate.serves(row)}
            if candidate is None or not served:
                if not has_programs and self._export_tensor_values(variant):
                    return
                reason = self._reason(named.name, candidate)
                # After a program that works, another size may still work; or after one whose
                # outputs have no elements.
                remaining = (
                    unserved[1:] if has_programs else _rejected_unproven(candidate, unserved)
                )
                given_up += [row for row in unserved if row not in remaining]
                unserved = remaining
                continue
            is_partial = has_programs or len(served) < len(unserved)
            self._add_program(candidate, variant, len(served), is_partial=is_partial)
            attempts.append(candidate.attempt)
            constants += candidate.program.is_constant
            unserved = [row for row in unserved if row not in served]
            if not has_programs and unserved:
                unserved = self._export_unserved_ints(variant, unserved)
        if unserved and constants == MAX_CONSTANTS:
            reason = reason or reasons.EachAlone(MAX_CONSTANTS)
        if any(attempt.by_values for attempt in attempts):
            self._export_other_values(variant, self.programs[programs_before:])
        if attempts and constants < len(attempts):
            self._extend(variant, attempts)
        if missing := len(given_up) + len(unserved):
            reason = reason or reasons.MostPrograms(MAX_PROGRAMS)
            is_all = missing == len(variant.rows)
            what = "" if is_all else f", {missing} other sizes"
            self.add_gap(variant, "variant" if is_all else "sizes", reason, what)

    def _add_program(
        self, candidate: Candidate, variant: VariantFacts, served: int, *, is_partial: bool
    ) -> None:
        """Adds the program of a candidate, with notes about the recorded sizes that it serves.

        Args:
            candidate: the program, and the attempt that made it.
            variant: whose sizes it serves.
            served: how many of them it serves that had no program.
            is_partial: whether other programs are needed for the others.
        """
        program, attempt = candidate.program, candidate.attempt
        if is_partial:
            program.all_notes.append(notes.ServesSome(served, len(variant.rows)))
        was_never_right = attempt.probed > 0 and not attempt.agreed
        if was_never_right and served == 1 < len(variant.rows):
            program.note(notes.OneSize())
        self.programs.append(program)

    def _with_open_floats(self, variant: VariantFacts) -> Candidate | None:
        """A program that has the floats that vary as inputs, and returns what the model does for
        several of their values; None if there is none. If it rejects every value but the one that
        it was traced with, a second program, traced with a rejected value, is tried instead: it may
        show that the floats can be inputs."""
        opened = with_open_floats(variant)
        if opened is None:
            return None
        session, named = self.exporter.session, self._named(opened)
        first = tried = self.exporter.export(named, single_size="never")
        if first is None or not first.served():
            return None
        for _ in range(MAX_CONSTANTS):
            if tried is None:
                break
            if serves_all_values(tried, self.tape.calls, session):
                floats = [n for n in tried.program.all_notes if isinstance(n, notes.OpenFloats)]
                first.program.all_notes += floats if tried is not first else []
                return first
            values = calls_by_value(named, self.tape.calls, session.sorter)
            call = rejected_value(tried.program, values, session)
            tried = None if call is None else self.exporter.export_call(named, call)
        return None

    def _export_int_values(self, variant: VariantFacts) -> bool:
        """Makes a program for each value of the ints that vary. Returns whether there are any."""
        parts = list(int_value_parts(variant))
        if not self._export_parts(parts[:MAX_CONSTANTS]):
            self.gaps.pop(parts[0].name, None)
            return False
        unserved_count = sum(part.calls for part in parts[MAX_CONSTANTS:])
        columns = varying_ints(variant)
        names = [variant.group.layout.column_name(column) for column in columns]
        self._add_value_gap(variant, unserved_count, names, MAX_CONSTANTS)
        return True

    def _export_parts(self, parts: Iterable[VariantFacts]) -> bool:
        """Makes programs for parts of a variant with one value each. Returns whether there are any,
        and stops at the first failure: another value could not be traced either."""
        before = len(self.programs)
        for part in parts:
            name_symbols(part)
            self.export(part)
            if len(self.programs) == before:
                return False
        return True

    def _export_unserved_ints(
        self, variant: VariantFacts, unserved: Sequence[SizeRow]
    ) -> list[SizeRow]:
        """Makes programs for values of ints that a program for all of them rejects, if several
        sizes have the value: the model takes another branch if an int is -1 for "all of them".

        Args:
            variant: has the ints.
            unserved: its rows that have no program.

        Returns:
            The rows that still have none.
        """
        unserved = list(unserved)
        if not varying_ints(variant):
            return unserved
        wanted = set(unserved)
        rows = [(row, seen) for row, seen in variant.rows.items() if row in wanted]
        for part in int_value_parts(part_of(variant, rows, variant.name)):
            if len(part.rows) < 2 or len(self.programs) >= MAX_PROGRAMS:
                continue
            before = len(self.programs)
            name_symbols(part)
            self.export(part)
            new = self.programs[before:]
            unserved = [r for r in unserved if all(p.rejects(r) is not None for p in new)]
            self.gaps.pop(part.name, None)
        return unserved

    def _add_value_gap(
        self, variant: VariantFacts, unserved_count: int, names: Sequence[str], most: int
    ) -> None:
        """Notes how many calls have values of some arguments that no program serves; ``most`` is
        how many programs are made for values."""
        if unserved_count:
            reason = reasons.ValuesLeft(unserved_count, variant.calls, most)
            self.add_gap(variant, "values", reason, f", other values of {', '.join(names)}")

    def _extend(self, variant: VariantFacts, attempts: Sequence[Attempt]) -> None:
        """Makes programs for unrecorded sizes that all earlier programs reject.

        Args:
            variant: what is exported.
            attempts: those that made the earlier programs; at least one.
        """
        are_single = 1 < len(attempts) == len(variant.rows)
        if are_single and not any(attempt.agreed for attempt in attempts):
            return  # each program serves one size, and so would another
        # What one program rejects, another may accept.
        rejected = set.intersection(*(set(attempt.rejected) for attempt in attempts))
        waiting = sorted(rejected, key=lambda sizing: sizing.values)
        extensions: list[Program] = []
        serves_range = False
        by_ints = any(attempt.by_values for attempt in attempts)
        while waiting and len(extensions) < _MAX_EXTENSIONS:
            if self.exporter.session.budget.is_spent:
                break
            named = self._named(variant, extensions)
            candidate = self.exporter.extend(named, waiting[0], symbolic_ints=by_ints)
            if candidate is None:
                break
            keep_to_values(candidate, self.tape.calls, self.exporter.session)
            candidate.program.note(notes.TracedUnseen())
            extensions.append(candidate.program)
            serves_range = serves_range or candidate.attempt.agreed > 1
            waiting = [sizing for sizing in waiting[1:] if sizing in candidate.attempt.rejected]
        # Programs for single unrecorded sizes are kept only if one serves a range.
        self.programs += extensions if serves_range else []

    def _export_text_values(self, variant: VariantFacts) -> None:
        """Makes a program for each combination of the texts and floats that vary."""
        calls, sorter = self.tape.calls, self.exporter.session.sorter
        combinations = calls_by_value(variant, calls, sorter)
        # Where texts vary as well, the floats may be inputs of a program for one text.
        by_text = calls_by_value(variant, calls, sorter, texts=True)
        if any(combination.values for combination in by_text):
            combinations = by_text
        names = [str(variant.group.layout.scalars[i]) for i in combinations[0].values]
        # There are few texts, and few floats if calls repeat them. Nobody expects a program to take
        # another one then.
        has_floats = any(type(v) is float for one in combinations for v in one.values.values())
        repeat = len(combinations) <= MAX_VALUES and 2 * len(combinations) <= variant.calls
        most = MAX_CONSTANTS if has_floats and not repeat else MAX_PROGRAMS
        numbered = enumerate(combinations[:most], 1)
        if self._export_parts(part_of_value(variant, value, number) for number, value in numbered):
            served_count = sum(combination.calls for combination in combinations[:most])
            self._add_value_gap(variant, variant.calls - served_count, names, most)

    def _named(self, variant: VariantFacts, more: Sequence[Program] = ()) -> VariantFacts:
        """The variant under a name that no program has, nor one of ``more``: ``decode (2)``."""
        taken = (program.name for program in (*self.programs, *more))
        return replace(variant, name=UniqueNames(taken, numbered="{} ({})").add(variant.name))

    def _export_other_values(self, variant: VariantFacts, programs: Sequence[Program]) -> None:
        """Makes programs for calls of recorded sizes whose values the earlier programs reject: from
        their own values, or else with small tensors as constants.

        Args:
            variant: what is exported.
            programs: the earlier programs for it.
        """
        calls, session = self.tape.calls, self.exporter.session
        programs = list(programs)
        unserved = unserved_calls(variant, programs, calls, session)
        while unserved and len(programs) < MAX_PROGRAMS:
            named = self._named(variant)
            candidate = self.exporter.export_call(named, unserved[0])
            if candidate is not None:
                keep_to_values(candidate, calls, session)
            if candidate is None or not reproduces(candidate.program, unserved[0], session):
                break
            programs.append(candidate.program)
            self.programs.append(candidate.program)
            unserved = unserved_calls(variant, programs, calls, session)
        if unserved and not self._export_tensor_values(variant):
            reason = reasons.ValuesRejected(unserved[0].number)
            self.add_gap(variant, "values", reason, ", other values")

    def _export_tensor_values(self, variant: VariantFacts) -> bool:
        """Makes programs with a small integer tensor as a constant, one for each of its values: a
        model that reads such a tensor with Python (``grid.tolist()``) cannot be traced otherwise.
        Returns whether there are any."""
        attempts = [a for a in self.exporter.attempts if a.variant == variant.name]
        if not any(means(attempt.summary, ErrorMeaning.NEEDS_VALUE) for attempt in attempts):
            return False
        sorter = self.exporter.session.sorter
        for path, value_count, parts in tensor_value_parts(variant, self.tape.calls, sorter):
            programs: list[Program] = []
            for part in islice(parts, MAX_CONSTANTS):
                name_symbols(part)
                candidate = self.exporter.export(part)
                if candidate is None or not candidate.attempt.reproduced:
                    if not programs:
                        break
                    self.add_gap(part, "values", self._reason(part.name, candidate))
                    continue
                keep_to_values(candidate, self.tape.calls, self.exporter.session)
                candidate.program.all_notes.append(notes.ConstantTensor(str(path)))
                programs.append(candidate.program)
            if not programs:
                continue
            self.programs += programs
            if value_count > MAX_CONSTANTS:
                unserved_count = value_count - MAX_CONSTANTS
                reason = reasons.ConstantsLeft(unserved_count, value_count, MAX_CONSTANTS)
                self.add_gap(variant, "values", reason, f", other values of {path}")
            return True
        return False

    def _reason(self, name: str, candidate: Candidate | None) -> Fact:
        """Why the best attempt at a variant of this name did not make a good program."""
        if candidate is not None and candidate.attempt.summary:
            return candidate.attempt.summary
        attempts = [a for a in self.exporter.attempts if a.variant == name]
        # Other attempts may report that the same line reads a value, which was no obstacle.
        untranslated = [a.summary for a in attempts if a.is_untranslated and a.summary]
        summaries = untranslated or [a.summary for a in attempts if a.summary]
        if summaries:
            return summaries[-1]
        budget = self.exporter.session.budget
        return budget.reason if budget.is_spent else reasons.Because(reasons.Why.NOT_EXPORTED)

    def add_gap(
        self,
        variant: VariantFacts,
        kind: Literal["variant", "sizes", "values"],
        reason: Fact,
        what: str = "",
    ) -> None:
        """Notes why a variant, or some of its sizes or values, have no program.

        Args:
            variant: what was exported.
            kind: what has no program.
            reason: why.
            what: the sizes or values, in words; added to the variant's name.
        """
        self.gaps[f"{variant.name}{what}"] = Gap(variant, kind, reason)


def _rejected_unproven(candidate: Candidate | None, rows: Sequence[SizeRow]) -> list[SizeRow]:
    """The rows that a program rejects, if nothing could be compared: it may be for the other side
    of a branch."""
    if candidate is None or candidate.attempt.compared:
        return []
    rejected = [row for row in rows if candidate.attempt.rows.get(row) == "rejected"]
    return rejected if len(rejected) < len(rows) else []
