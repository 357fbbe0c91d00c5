"""Which calls are evidence of what a model takes: one rule for every analysis.

A call that raised is no evidence, because the model may have refused what it was passed. If all
calls raised, they are all that is known, and all of them are evidence. A call that had not ended
when its process died is evidence, because nobody knows that it failed.
"""

from __future__ import annotations

from calltape_analyzer.observing.traffic_counters import TrafficCounters
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.text import counted

__all__ = ["counters_of_evidence", "has_raised", "left_out_note", "raised_are_evidence"]


def has_raised(call: Call) -> bool:
    """Whether a call raised; then it is evidence only as :func:`raised_are_evidence` says."""
    return call.record.error is not None


def raised_are_evidence(others: int) -> bool:
    """Whether calls that raised are evidence.

    Args:
        others: how many calls did not raise.
    """
    return others == 0


def counters_of_evidence(counters: TrafficCounters, calls: Calls, left_out: int) -> TrafficCounters:
    """Traffic counters without the kept calls that are no evidence. Calls that were not kept stay
    in: counters do not tell which of them raised.

    Args:
        counters: of all calls.
        calls: the kept calls.
        left_out: how many of the kept calls raised and are no evidence.
    """
    if not left_out:
        return counters
    raised = (seen for seen in calls.by_inputs() if seen.raised)
    return counters.without((seen.inputs, seen.calls) for seen in raised)


def left_out_note(count: int) -> str:
    """For people, that calls are left out because they raised."""
    return f"{counted(count, 'call')} raised and {'is' if count == 1 else 'are'} left out"
