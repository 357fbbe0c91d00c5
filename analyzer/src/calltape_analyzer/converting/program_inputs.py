"""How calls become the inputs of a program that ``calltape export`` wrote.

In come calls. Out go the inputs by name. The manifest beside the program knows what a merged
program takes for a call that lacks some of them: an empty cache.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calltape_analyzer.arguments.samples import Sample, in_variant
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.dispatch import accepting_programs
from calltape_analyzer.programs.input_matching import CallValue, values_of_layout
from calltape_analyzer.programs.loading import declared_programs, folder_of_programs
from calltape_analyzer.programs.program import Program
from calltape_analyzer.pytree.memory_limit import memory_limit_of
from calltape_analyzer.reading.call import Call

__all__ = ["ProgramInputs", "program_inputs"]


class ProgramInputs(NamedTuple):
    """The inputs of one program.

    Attributes:
        program: as its manifest has it.
        sorter: lays calls out as the program has them.
        names: by the name of an input in the file the name in the manifest.
    """

    program: Program
    sorter: CallSorter
    names: Mapping[str, str]

    def of(self, call: Call, placed: SortedCall, ignored: Collection[str]) -> dict[str, Any]:
        """The tensors and ints of a call, by the names in the file.

        Args:
            call: the call.
            placed: the same, as the sorter lays it out.
            ignored: arguments that do not count (:meth:`Tape.remove_inputs`).

        Raises:
            InferenceError: the program does not take the call.
        """
        own = {self.program.name: self.program}
        _, reasons = accepting_programs(own, placed, ignored)
        for name, reason in reasons.items():
            raise InferenceError(
                f"call {call.number} is none of this program ({name}): {reason}",
                advice="choose its calls (`--variant NAME` or `--calls`, Tape.only in Python)",
            )
        sample = Sample(
            [call.tensor("inputs", place.number) for place in placed.layout.tensors],
            placed.layout.scalars_of(call.record.inputs.scalars),
            memory_limit_of(call.tape_bytes),
        )
        whole = in_variant(self.program.variant, sample, placed.key, placed.row)
        known = self.program.inputs(whole)
        return {name: known[own] for name, own in self.names.items()}

    def taken(self, placed: SortedCall) -> set[CallValue]:
        """The values of a call that are inputs."""
        plan, layout = self.program.plan, self.program.variant.group.layout
        own = set(self.names.values())
        used = set[tuple[str, str, str]]()
        for name, leaf in zip(plan.names, plan.leaves, strict=True):
            if name in own:
                place = (layout.tensors if leaf.kind == "tensor" else layout.scalars)[leaf.index]
                used.add((place.argument, place.path, leaf.kind))
        values = values_of_layout(placed.layout)
        return {one for one in values if (one.argument, one.path, one.kind) in used}


def program_inputs(model: str | os.PathLike[str], names: Sequence[str]) -> ProgramInputs | None:
    """The inputs of an ONNX file, if a manifest beside it knows it.

    Args:
        model: the path of the file.
        names: of its inputs.

    Raises:
        TapeError: the manifest is damaged.
    """
    folder = folder_of_programs(model)
    if folder is None:
        return None
    programs = declared_programs(folder)
    file = Path(model).name
    program = next((one for one in programs.values() if one.exported == file), None)
    if program is None:
        return None
    known = set(program.plan.names)
    # The exporter adds _orig to the name of an input that is also a value within the graph.
    own = {name: name if name in known else name.removesuffix("_orig") for name in names}
    return ProgramInputs(program, programs.sorter, own) if known.issuperset(own.values()) else None
