"""The values that can stand in a command line: files, and what is on the tapes that are named.

In comes which word is asked for. Out go values that begin as it does. A tape costs as much here as
the first part of a second reads of it: then there are fewer answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias

from calltape_analyzer.cli.answer import Answer, is_safe
from calltape_analyzer.cli.asked_word import AskedWord

if TYPE_CHECKING:
    from calltape_analyzer.observing.layout import ArgumentLayout
    from calltape_analyzer.tape import Tape
    from calltape_analyzer.variants.variant_findings import VariantFindings

__all__ = ["FILES", "VALUES", "candidates"]

Values: TypeAlias = "Callable[[AskedWord, Tape], Iterable[Answer]]"

_TAPES = (".tape", ".tape.zst", ".tape.gz")
_SURVEYS = (".json", ".json.gz")
FILES = {
    "TAPE": _TAPES,
    "BEFORE": (*_TAPES, *_SURVEYS),
    "NOW": (*_TAPES, *_SURVEYS),
    "PATH": (*_TAPES, *_SURVEYS),
    "IN": (),
    "MODEL": (".onnx", ".pt2"),
    "TARGET": (".onnx", ".pt2"),
    "FILE.py": (".py",),
    "FILE.html": (".html",),
    "FILE.tape": (),
    "FILE": (),
    "OUT": (),
    "DIR": (os.sep,),
}
"""How the names of files end that can stand there; any if nothing is said. Directories always can:
others are below them."""

_TAKE_SURVEYS = ("explain", "info", "report", "shapes", "variants")
_SECONDS, _BYTES = 0.8, 256 * 2**20
_MOST_ENTRIES = 20_000
_MOST_NUMBERS, _MOST_INPUTS = 50, 20
_MOST_SCANNED = 5_000
_LIST_END = re.compile(r".*(?:,|\.\.)", re.DOTALL)


def candidates(asked: AskedWord, shell: str) -> Iterator[Answer]:
    """Values for a word, those of a tape before files."""
    for name in reversed(asked.kinds):
        if name == "TARGET-NAME":
            yield from _target_names(asked)
        elif name in VALUES:
            yield from _of_tapes(asked, VALUES[name])
        elif name == "PATH" and asked.option is not None:
            yield from _of_tapes(asked, _places)
        elif name in FILES:
            ends = FILES[name] + (_SURVEYS if asked.verb in _TAKE_SURVEYS else ())
            yield from _files(asked.text, ends, shell)


def _files(text: str, ends: tuple[str, ...], shell: str) -> Iterator[Answer]:
    if shell == "zsh":
        pattern = f"*({'|'.join(ends)})" if ends and ends != (os.sep,) else ""
        yield Answer("files", pattern)
        return
    folder, beginning = os.path.split(text)
    shown = text[: len(text) - len(beginning)]
    found: list[str] = []
    with os.scandir(os.path.expanduser(folder) or ".") as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            if not entry.name.startswith(beginning):
                continue
            if entry.name.startswith(".") and not beginning.startswith("."):
                continue
            is_folder = _is_folder(entry)
            if is_folder or not ends or entry.name.endswith(ends):
                found.append(f"{shown}{entry.name}{os.sep if is_folder else ''}")
    yield from (Answer("path", name) for name in sorted(found))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _of_tapes(asked: AskedWord, values: Values) -> Iterator[Answer]:
    """Answers from the tapes that are named; none if they cannot be read soon enough."""
    if not asked.tapes:
        return
    from calltape_analyzer.cli.budget import Exceeded

    try:
        with _opened(asked) as tape:
            yield from values(asked, tape)
    except (Exceeded, Exception):
        return  # a broken or costly tape has no more answers, and files may follow


@contextmanager
def _opened(asked: AskedWord) -> Iterator[Tape]:
    """The tapes, within limits that nobody raises for a completion. URLs are left alone."""
    from calltape_analyzer.cli.budget import reading
    from calltape_analyzer.opening import open_tape

    files = _files_named(asked)
    with reading(files), open_tape(files, target=asked.target) as tape:
        yield tape


def _files_named(asked: AskedWord) -> list[str]:
    """The files of the tapes that are named; reading them has the limits of a completion."""
    from calltape_analyzer.cli.budget import limits
    from calltape_analyzer.reading.files import files_of

    limits.seconds, limits.nbytes = _SECONDS, _BYTES
    names = [os.path.expanduser(name) for name in asked.tapes]
    return [name for name in files_of(names) if os.path.isfile(name)]


def _numbers(asked: AskedWord, tape: Tape) -> Iterator[Answer]:
    begun = _LIST_END.match(asked.text)
    before = begun.group() if begun is not None and "CALLS" in asked.kinds else ""
    names = _addresses(tape)
    if before.endswith(".."):
        names = _range_ends(before.removesuffix(".."), names)
    found = (name for name in names if f"{before}{name}".startswith(asked.text))
    for name in islice(found, _MOST_NUMBERS):
        yield Answer("plain", f"{before}{name}")


def _range_ends(before: str, addresses: Iterable[str]) -> Iterator[str]:
    """Numbers of the calls at which a range can end that begins as the last of a list does."""
    recording, _, first = before.rpartition(",")[2].rpartition(":")
    low = int(first) if first.isdecimal() else 0
    for address in addresses:
        own, _, number = address.rpartition(":")
        if (not own or own.startswith(recording)) and int(number) >= low:
            yield number


def _addresses(tape: Tape) -> Iterator[str]:
    """All calls of a tape, or, of a long one whose end tells of them, the first and the last with
    each of the inputs."""
    calls = tape.calls
    if tape.source != "summary" or len(calls) <= _MOST_SCANNED:
        yield from (calls.shown(call.ref) for call in calls)
        return
    places = {place for seen in calls.by_inputs() for place in (seen.first, seen.last)}
    yield from (calls.shown(place.ref) for place in sorted(places))


def _findings(tape: Tape) -> list[VariantFindings]:
    return [variant.findings for variant in tape.variants()]


def _variants(asked: AskedWord, tape: Tape) -> Iterator[Answer]:
    for number, found in enumerate(_findings(tape)):
        # A name that a shell would take apart has a number.
        name = found.name if is_safe(found.name) else str(number)
        if name.startswith(asked.text):
            yield Answer("plain", name, found.name)


def _layouts(tape: Tape) -> Iterator[ArgumentLayout]:
    """How the first different inputs are laid out."""
    from calltape_analyzer.observing.layout import layout_of_inputs

    for seen in islice(tape.calls.by_inputs(), _MOST_INPUTS):
        inputs = seen.inputs
        yield layout_of_inputs(inputs.spec().root, inputs.scalars, tape.signature)


def _arguments(asked: AskedWord, tape: Tape) -> Iterator[Answer]:
    signature = tape.signature
    known = (one.name for one in signature.parameters if not one.kind.startswith("VAR_"))
    passed = (name for layout in _layouts(tape) for name in layout.arguments)
    return _beginning(asked.text, chain(known, passed))


def _places(asked: AskedWord, tape: Tape) -> Iterator[Answer]:
    """Arguments, symbols, and places below arguments; lists of like places as one."""
    from calltape_analyzer.text import pattern_of

    yield from _arguments(asked, tape)
    paths = (path for layout in _layouts(tape) for path in (*layout.tensors, *layout.scalars))
    yield from _beginning(asked.text, (pattern_of(str(path)) for path in paths))
    if "ARGUMENT" in asked.kinds:
        symbols = (symbol.name for found in _findings(tape) for symbol in found.symbols)
        yield from _beginning(asked.text, symbols)


def _axes(asked: AskedWord, tape: Tape) -> Iterator[Answer]:
    from calltape_analyzer.text import pattern_of

    name = asked.placed[0]
    for found in _findings(tape):
        for one in found.tensors:
            place = f"{one.argument}{one.path}"
            if name in (one.argument, place, pattern_of(place)):
                for axis in one.dimensions:
                    if str(axis.axis).startswith(asked.text):
                        yield Answer("plain", str(axis.axis), axis.symbol or f"always {axis.min}")


def _recordings(asked: AskedWord, tape: Tape) -> Iterator[Answer]:
    return _beginning(asked.text, (one.tape.hex()[:8] for one in tape.manifests))


def _target_names(asked: AskedWord) -> Iterator[Answer]:
    """What there is on tapes of several models, which are no one tape."""
    from calltape_analyzer.cli.budget import Exceeded, reading
    from calltape_analyzer.listing import list_recordings
    from calltape_analyzer.reading.damage import Damage

    try:
        files = _files_named(asked)
        with reading(files):
            targets = sorted({one.target for one in list_recordings(files, Damage())})
    except (Exceeded, Exception):
        return
    yield from _beginning(asked.text, targets)


def _beginning(text: str, names: Iterable[str]) -> Iterator[Answer]:
    return (Answer("plain", name) for name in names if name.startswith(text))


VALUES: dict[str, Values] = {
    "CALL": _numbers,
    "CALLS": _numbers,
    "VARIANT": _variants,
    "ARG": _arguments,
    "ARGUMENT": _places,
    "AXIS": _axes,
    "RECORDING": _recordings,
}
"""What is on a tape, by the word of the help."""
