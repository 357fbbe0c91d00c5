"""Explains why a tape has no calls, and what to do. The recorder says it at its end, ``info``
later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calltape_schema.drop_reasons import UNWANTED, DropReason, Reason, reason_text
from calltape_schema.remedies import Remedy

_NOT_SEEN = {
    "hook": Remedy(
        ' Record what the application calls, or pass via="method" (and for another method its name,'
        ' as in method="decode"); attach before it is compiled or copied',
        " Record what the application calls, and attach before it is compiled or copied",
    ).after(
        "the application calls a copy of it (a deep copy, or a loaded one), calls its forward"
        " directly, calls other methods of it (decode, for example) or its parts, or overrides"
        " __call__; or it was compiled, also ahead of time, before the recorder was attached."
    ),
    "method": Remedy(
        ', of another method pass its name, as in method="decode",', ", or another method,"
    )
    .after(
        "the application calls a copy of it (a deep copy, or a loaded one), another object of"
        " the class, other methods of it (decode, for example) or its parts, or a reference to the"
        " method from before attach(); something replaced the method (accelerate does);"
        " or it was compiled, also ahead of time, before the recorder was attached. Record the"
        " object that the application calls"
    )
    .then(" and attach last, but before it is compiled or copied"),
}
_ADVICE: dict[Reason, str | Remedy] = {
    DropReason.QUEUE_FULL: (
        Remedy(
            "Omit the large ones, as with"
            ' values={"*": "all", "cache.*": "none"}, or raise that limit',
            "Record without the values of the large ones, or raise that limit",
        ).after("the tensors of a call do not fit into max_queue_bytes. ")
    ),
    DropReason.TRACING: (
        "the calls were traced, not run: they were compiled with fullgraph or exported, or a"
        " transform of torch.func (vmap, grad) called the module. Compile first, then attach the"
        " recorder to what was compiled; under a transform, record what calls it"
    ),
    DropReason.UNFINISHED: (
        "the calls were running at the end. Close the recorder when they have returned"
    ),
    DropReason.INTERNAL: "see the warnings of calltape in the log",
    DropReason.DISK_FULL: "the disk is full, or has only min_free_bytes left",
    DropReason.MAX_DISK_BYTES: "max_disk_bytes is too small for one call",
    DropReason.IO: "the disk failed",
    DropReason.FILE_REMOVED: "somebody removed the files while they were written",
}
_WANTED = UNWANTED - {DropReason.TRACING, DropReason.NOT_EXTRACTED}


def why_empty(name: str, via: str, seen: int, kept: int, dropped: Mapping[Any, int]) -> str | None:
    """Why no call of ``name`` is on the tape; None if some are, or if none was to be.

    Args:
        name: what is recorded.
        via: how calls of it are seen, ``hook`` or ``method``.
        seen: how many calls were seen.
        kept: how many of them are on the tape.
        dropped: how many are not, by reason.
    """
    if kept:
        return None
    if not seen:
        return f"no call of {name} was seen. The usual causes: {_NOT_SEEN[via]}"
    reasons = [reason for reason in dropped if reason not in _WANTED and dropped[reason]]
    if not reasons or any(reason in _WANTED and dropped[reason] for reason in dropped):
        return None
    causes = "; ".join(
        f"{reason_text(reason)} ({_ADVICE.get(reason, 'see the log')})" for reason in reasons
    )
    return f"every call of {name} was dropped: {causes}"
