"""``calltape redact``: tapes that one can give away.

In comes a tape. Out goes a new one without what may tell of a person or a machine.
"""

from __future__ import annotations

from calltape_analyzer.cli.edits import Force, Out, print_report
from calltape_analyzer.cli.output import (
    Json,
    command,
    forced,
    wrong_words,
)
from calltape_analyzer.cli.redaction_options import (
    EFFORT,
    Hash,
    Keep,
    Noise,
    Permute,
    ShapesOnly,
    Special,
    redaction_choices,
)
from calltape_analyzer.cli.tapes import OfTarget, Part, Paths, opened

__all__ = ["redact"]


@command
def redact(
    paths: Paths,
    out: Out,
    keep: Keep = None,
    hash: Hash = None,
    permute: Permute = None,
    noise: Noise = None,
    special: Special = False,
    shapes_only: ShapesOnly = None,
    target: OfTarget = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """A tape without what may tell of a person or a machine.

    Tensors keep their shapes only. Texts become others of the same length, and long numbers others
    of the same size, unless they have to do with sizes of tensors; equal ones stay equal.
    Messages of exceptions, what was returned, the date, thread ids, the host and file names go. The
    result is compared with TAPE before it is there: shapes, variants and explain say the same, and
    nothing that was removed is in its bytes. docs/privacy.md has a table.

    PATH is a path of arguments, as values= of the recorder has it. Several times for several; the
    most specific one decides.

    \b
    calltape redact runs/llm.tape -o give.tape
    calltape redact runs/llm.tape -o permuted.tape --permute input_ids
    """
    from calltape_analyzer.redacting.redaction import redact as redacted

    choices = redaction_choices(keep, hash, permute, noise, special, shapes_only)
    part = Part(target=target)
    with opened(paths, part, tells=False, effort=EFFORT) as tape, forced(), wrong_words():
        print_report(redacted(tape, out, **choices, overwrite=force), json)
