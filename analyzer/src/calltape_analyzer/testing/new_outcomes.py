"""What calls did in a replay, as records that can take the place of the recorded ones."""

from __future__ import annotations

from typing import Any

from calltape_analyzer.comparison.reports import ReportRow, text_of
from calltape_analyzer.errors import TapeError
from calltape_analyzer.pytree.classes import name_of
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.writing.built_calls import BuiltCall, build_tree
from calltape_schema.records import ModelError, Tree

__all__ = ["NewOutcomes"]

_WHOLE = ("tape", "exception")
"""Only what was compared as a whole is replaced. Of a call without values nobody knows what it
would give."""


class NewOutcomes:
    """Keeps what calls gave: as trees, because a later call may change the same tensors."""

    def __init__(self) -> None:
        self._kept: dict[CallRef, tuple[Tree | ModelError, dict[str, Any]]] = {}

    def keep(self, call: Call, result: Any, error: BaseException | None) -> None:
        """Takes the outcome of a call: what it returned, or what it raised."""
        values = _input_values(call)
        if values is None:
            return
        if error is not None:
            if call.record.error is not None:  # else it is no outcome that anybody wants
                raised = ModelError(type=name_of(type(error)), message=text_of(error))
                self._kept[call.ref] = raised, values
            return
        own = set(values)
        tree = build_tree(result, "outputs", values)
        for key in values.keys() - own:
            values[key] = values[key].detach().clone()
        self._kept[call.ref] = tree, values

    def of(self, call: Call, row: ReportRow) -> BuiltCall | None:
        """The call with its new outcome; None if it keeps the recorded one: it was not compared as
        a whole, or failed where it is to return, or what it gave is not a value."""
        kept = self._kept.get(call.ref)
        if kept is None or row.against not in _WHOLE:
            return None
        outcome, values = kept
        returned = outcome if isinstance(outcome, Tree) else None
        raised = outcome if isinstance(outcome, ModelError) else None
        changed = {"outputs": returned, "error": raised, "outputs_missing": None, "blob": None}
        return BuiltCall(call.record.model_copy(update=changed), values)


def _input_values(call: Call) -> dict[str, Any] | None:
    """The tensors of a call's arguments by their keys; None if one is not on the tape (what a model
    gives for made-up ones is no outcome of the call), or cannot be made here."""
    found: dict[str, Any] = {}
    try:
        for i, leaf in enumerate(call.record.inputs.facts()):
            if leaf.key is None:
                return None
            found[leaf.key] = call.tensor("inputs", i)
    except TapeError:
        return None
    if any(isinstance(value, Placeholder) for value in found.values()):
        return None
    return found
