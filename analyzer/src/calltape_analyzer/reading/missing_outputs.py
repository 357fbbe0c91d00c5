"""What to do about outputs that are not on a tape: it depends on why they are missing."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["advice_on_outputs"]

_ADVICE = {
    "policy": "record with outputs=True",
    "queue_full": "there was no memory left to copy them: record with a larger max_queue_bytes, or "
    "keep fewer calls",
    "internal": "the recorder failed, as the log of the host says",
    "left out by calltape filter": "take the tape that was filtered",
}


def advice_on_outputs(missing: Iterable[str | None]) -> str:
    """How to have outputs the next time.

    Args:
        missing: why they are missing, as records say it.
    """
    known = {one for one in missing if one is not None}
    # Of a stream the reason stands within: 3 of 9 chunks kept: queue_full.
    found = [
        advice
        for reason, advice in _ADVICE.items()
        if any(one == reason or f": {reason}" in one for one in known)
    ]
    return "; ".join(found) or "these calls have none to compare a program with"
