"""``calltape redact`` and ``privacy``: tapes that one can give away.

In comes a tape. Out goes a new one without what may tell of a person or a machine, or an account of
what there is.
"""

from __future__ import annotations

from typing import Annotated

import typer

from calltape_analyzer.cli.edits import Force, Out, print_report
from calltape_analyzer.cli.output import (
    Json,
    command,
    forced,
    lines,
    print_model,
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
from calltape_analyzer.cli.tapes import Calls, OfTarget, Part, Paths, opened

__all__ = ["privacy", "redact"]


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


@command
def privacy(
    paths: Paths,
    target: OfTarget = None,
    by_call: Annotated[bool, typer.Option("--by-call", help="List each call by itself.")] = False,
    calls: Calls = None,
    json: Json = False,
) -> None:
    """What on a tape may tell of a person or a machine.

    By argument: texts, long numbers, whole numbers that may be token ids, floats that may be images
    or audio, keys that look like data; then messages of exceptions, thread ids, times, the host,
    file names and modules. No value is shown, and * for each key that looks like data. A key that
    is a plain word is shown, also if a user wrote it.

    \b
    calltape privacy runs/llm.tape
    calltape privacy runs/llm.tape --by-call --json
    """
    from calltape_analyzer.redacting.private_data import private_data

    with opened(paths, Part(calls, target=target)) as tape:
        found = private_data(tape, by_call=by_call)
        if json:
            print_model(found)
        else:
            lines(str(found))
