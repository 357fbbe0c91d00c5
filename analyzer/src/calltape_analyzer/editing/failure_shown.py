"""What a tape was made small to show, as its history has it.

In comes a tape. Out go the checks that ``minimise`` ran: of which kind, and by which names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from calltape_analyzer.tape import Tape
from calltape_schema.privacy import is_without_text
from calltape_schema.records import Step

__all__ = ["ShownFailure", "all_shown_failures", "shown_failure"]

_MINIMISE = "minimise"
_CHECK = "fails_"
_KEEP_IT = ("filter", "recover", "redact")
"""What may be done to a tape that is still about the same failure; ``merge`` adds other calls."""


@dataclass(frozen=True)
class ShownFailure:
    """A check that a tape fails.

    Attributes:
        kind: ``predicate``, ``export`` or ``replay``.
        name: of the predicate, or of what makes the model; None if a redaction removed it.
        to_onnx: whether the export was to ONNX.
    """

    kind: str
    name: str | None
    to_onnx: bool = False


def all_shown_failures(tape: Tape) -> Iterator[ShownFailure]:
    """What the files of a tape were made small to show, each time that this was done."""
    for manifest in tape.manifests:
        for step in manifest.history or ():
            if step.verb == _MINIMISE:
                yield from _of_step(step)


def shown_failure(tape: Tape) -> ShownFailure | None:
    """What all of a tape was made small to show; None if it was not."""
    if len(tape.manifests) != 1:
        return None
    steps = reversed(tape.manifest.history or ())
    step = next((one for one in steps if one.verb not in _KEEP_IT), None)
    if step is None or step.verb != _MINIMISE:
        return None
    return next(_of_step(step), None)


def _of_step(step: Step) -> Iterator[ShownFailure]:
    options = dict(step.options)
    for option, value in options.items():
        if option.startswith(_CHECK):
            # Redaction leaves names of options, and not what they say: these two are there or not.
            yield ShownFailure(
                kind=option.removeprefix(_CHECK),
                name=None if is_without_text(value) else value,
                to_onnx="to" in options,
            )
