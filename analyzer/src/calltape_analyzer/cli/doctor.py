"""``calltape doctor``: what is wrong or unwise about a tape."""

from __future__ import annotations

from calltape_analyzer.cli.output import Json, command, lines, print_model
from calltape_analyzer.cli.tapes import OfTarget, Part, Paths, opened

__all__ = ["doctor"]


@command
def doctor(paths: Paths, target: OfTarget = None, json: Json = False) -> None:
    """What is wrong or unwise about a tape, and what to do.

    Damage, files without a trailer, calls that are lost, sizes that never varied, a batch that was
    always 1, values and classes that are missing or could not be stored, and what may be private.
    Reads all of the tape. Ends with 3 if it is damaged.

    \b
    calltape doctor runs/llm.tape
    calltape doctor runs/ --json
    """
    from calltape_analyzer.editing.diagnosis import diagnose

    with opened(paths, Part(target=target)) as tape:
        found = diagnose(tape)
        if json:
            print_model(found)
        else:
            lines(str(found))
