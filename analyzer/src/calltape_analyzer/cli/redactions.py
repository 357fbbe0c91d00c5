"""``calltape redact`` and ``privacy``: tapes that one can give away.

In comes a tape. Out goes a new one without what may tell of a person or a machine, or an account of
what there is.
"""

from __future__ import annotations

from typing import Annotated

import typer

from calltape_analyzer.cli.edits import Force, Out, forced, print_report
from calltape_analyzer.cli.output import Json, command, line, print_model
from calltape_analyzer.cli.tapes import Calls, Part, Paths, opened

__all__ = [
    "Hash",
    "Keep",
    "Noise",
    "Permute",
    "ShapesOnly",
    "Special",
    "privacy",
    "redact",
]


def _patterns(name: str, help_text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(name, metavar="PATH", help=help_text)
    return found


Keep = Annotated[
    list[str] | None, _patterns("--keep", "Values that stay as they are, such as 'mode'.")
]
Hash = Annotated[
    list[str] | None,
    _patterns("--hash", "Values that become others, equal ones equal ones, as texts do anyway."),
]
Permute = Annotated[
    list[str] | None,
    _patterns("--permute", "Ids that become other ids of the same range, on all of the tape."),
]
Noise = Annotated[
    list[str] | None, _patterns("--noise", "Floats that become random ones of the same range.")
]
Special = Annotated[
    bool, typer.Option("--special", help="Under --noise, NaN and infinities stay in place.")
]
ShapesOnly = Annotated[
    list[str] | None,
    _patterns("--shapes-only", "Values of which no range and no pseudonym stays either."),
]


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
    force: Force = False,
    json: Json = False,
) -> None:
    """A tape without what may tell of a person or a machine.

    Tensors keep their shapes only. Texts become others of the same length; equal ones stay equal.
    Messages of exceptions, what was returned, the date, thread ids, the host and file names go. The
    result is compared with TAPE before it is there: shapes, variants and explain say the same, and
    nothing that was removed is in its bytes. docs/privacy.md has a table.

    PATH is a path of arguments, as values= of the recorder has it. Several times for several; the
    most specific one decides.

    \b
    calltape redact runs/llm.tape -o give.tape
    calltape redact runs/llm.tape -o give.tape --permute input_ids --keep attention_mask
    """
    from calltape_analyzer.redacting.redaction import redact as redacted

    with opened(paths) as tape, forced():
        report = redacted(
            tape, out, keep=keep or (), hash=hash or (), permute=permute or (), noise=noise or (),
            shapes_only=shapes_only or (), special=special, overwrite=force,
        )  # fmt: skip
        print_report(report, json)


@command
def privacy(
    paths: Paths,
    by_call: Annotated[bool, typer.Option("--by-call", help="List each call by itself.")] = False,
    calls: Calls = None,
    json: Json = False,
) -> None:
    """What on a tape may tell of a person or a machine, and what to do about it.

    By argument: texts, whole numbers that may be token ids, floats that may be images or audio,
    keys that look like data; then messages of exceptions, thread ids, times, the host, file names
    and modules. No value is shown.

    \b
    calltape privacy runs/llm.tape
    calltape privacy runs/llm.tape --by-call --json
    """
    from calltape_analyzer.redacting.private_data import private_data

    with opened(paths, Part(calls)) as tape:
        found = private_data(tape, by_call=by_call)
        if json:
            print_model(found)
        else:
            for text in str(found).splitlines():
                line(text)
