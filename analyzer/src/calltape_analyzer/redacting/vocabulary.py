"""The words that may be on a redacted tape: the allowlist of all text that is neither an
ordinal nor was asked for.

Text that a recorder writes is one of a few sentences, and what is named in code has the form of a
name. Any other text on a tape, at whatever place, may be data. The construction of the new tape
takes its words from here, and the check of its bytes asks the same functions.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from calltape_schema.privacy import is_name, is_without_text, length_of_text

__all__ = [
    "VERBS",
    "are_patterns",
    "is_class_name",
    "is_code_name",
    "is_default",
    "is_enum_name",
    "is_field",
    "is_platform",
    "is_torch_name",
    "is_version",
    "plain_id",
    "plain_platform",
    "plain_reason",
    "plain_version",
]  # fmt: skip

_MOST_DIGITS = 8
"""A name from code has fewer digits in a row than the number of a card, a phone or an account."""
_MOST_DIGITS_IN_ALL = 12

_NAME = re.compile(r"[\w.<>\-]{1,512}")
_CLASS = re.compile(r"[\w.<>\-\[\]|,'\"*]{1,512}")  # a class may be generic: Page[int]
_HASH = re.compile(r"(?=[0-9]*[a-f])[0-9a-f]{32,64}")
"""A part of the name of a module that transformers downloaded: the commit."""
_TORCH_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}(\[\w{1,8}\]|:\d{1,3})?", re.ASCII)
_MOST_DIGITS_OF_TORCH = 4

_PATTERN = re.compile(r"[\w.*?\[\]\-]{0,256}")
_ENUM_NAME = re.compile(r"[\w .|+/\-]{1,128}")
_MOST_IN_WORD = 32
_LEAST_BYTES = 8
"""An id of 16 random bytes has more different ones."""

_VERSION = re.compile(
    r"\d{1,4}(\.\d{1,3}){0,3}((a|b|rc|\.post|\.dev)\d{1,8})?(\+(cpu|xpu|cu\d{2,3}|rocm\d(\.\d){0,2}))?(?![\w.])",
    re.ASCII,
)
_SYSTEMS = ("Linux", "Windows", "macOS", "Darwin", "FreeBSD")
_MACHINES = re.compile(r"x86_64|AMD64|aarch64|arm64|ppc64le|s390x|riscv64|i686")

VERBS = frozenset(
    {"filter", "merge", "recover", "redact", "minimise", "replay", "survey", "update"}
)
"""What a step of the history may say that was done."""

_REASONS = """
policy|internal|queue_full|under way|unknown class|a module|a tracer|contains itself
when the target was found
a tensor in the context of a registered class|an array in the context of a registered class
an int of # bits|a text or bytes too long for a tape|an enum member with a long name
a class whose hash is code|a class that its module does not have
a class that calltape does not know|of a class of Python's own library
its state is not in Python attributes|attributes whose names are not texts
attributes whose names are not short texts|it holds no plain dict or list
a named tuple whose fields do not fit|its registered flatten function raised @
nested deeper than # levels|within # objects|more than # values in one (call|object)
a key of # (characters|bytes|bits) \\(at most #\\)|a key of type @|more than # keys of one hash
its storage was freed|it has no memory|a CUDA graph is being captured
per-channel quantization has no encoding
calltape minimise changed the arguments, or left the outcome out
(not readable: @|layout ~)(, symbolic shape)?(, shape unknown)?|dtype ~
it returned (a|an) (async generator|generator|coroutine), which had not run
raised after # chunks|closed by its consumer after # chunks
# of # chunks kept: %(; closed by its consumer after # chunks)?
"""
"""What the recorder says of a value that is not on the tape (``#`` is a number, ``@`` a class,
``~`` a word of torch or NumPy, ``%`` why a stream was cut), and since when it sees calls."""

_HOLES = {
    "#": r"\d{1,8}", "@": r"(?P<class>\S+)", "~": r"[a-z][a-z0-9_]{0,31}(\[\w{1,8}\])?",
    "%": r"(queue_full|internal|more than one call can hold|more than \d{1,8} chunks)",
}  # fmt: skip


def _forms() -> list[re.Pattern[str]]:
    lines = "|".join(_REASONS.split("\n")).strip("|")
    depth, forms = 0, [""]
    for character in lines:  # a bar within brackets belongs to its sentence
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and not depth:
            forms.append("")
        else:
            forms[-1] += _HOLES.get(character, character)
    return [re.compile(form, re.ASCII) for form in forms]


_FORMS = _forms()


def plain_reason(text: str) -> str:
    """Why something is not on a tape, if a recorder says it in these words; else how long the text
    was."""
    if is_without_text(text):
        return text
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is not None:
            named = found.groupdict().get("class")
            return text if named is None or is_class_name(named) else length_of_text(text)
    return length_of_text(text)


def is_code_name(text: str) -> bool:
    """Whether a text has the form of a name from code, maybe with dots: ``layers.0.forward``."""
    return _NAME.fullmatch(text) is not None and _has_few_digits(text)


def is_class_name(text: str) -> bool:
    """Whether a text has the form of ``module:Class``, or of the name of a class."""
    return all(_CLASS.fullmatch(part) for part in text.split(":")) and _has_few_digits(text)


def _has_few_digits(text: str) -> bool:
    counts = [
        sum(map(str.isdigit, part))
        for part in re.split(r"[.:\-]", text)
        if not _HASH.fullmatch(part)
    ]
    return max(counts, default=0) <= _MOST_DIGITS and sum(counts) <= _MOST_DIGITS_IN_ALL


def is_torch_name(text: str) -> bool:
    """Whether a text has the form of a name of torch or NumPy: ``float32``, ``cuda:0``."""
    few = sum(map(str.isdigit, text)) <= _MOST_DIGITS_OF_TORCH + 2
    return _TORCH_NAME.fullmatch(text) is not None and few


def is_version(text: str) -> bool:
    """Whether a text is the version of a library, without the name of a private build."""
    return text == "unknown" or _VERSION.fullmatch(text) is not None


def plain_version(text: str) -> str:
    """A version without the name of a private build: ``2.12.0+cu130``, and ``2.12.0`` of
    ``2.12.0+acme.7``."""
    found = _VERSION.match(text)
    return "unknown" if found is None else found[0]


def plain_platform(text: str) -> str:
    """The system and the machine's architecture; not the build of the kernel."""
    system = next((name for name in _SYSTEMS if text.startswith(name)), "")
    machine = _MACHINES.search(text)
    return "-".join(filter(None, (system, machine and machine[0]))) or "unknown"


def is_platform(text: str) -> bool:
    """Whether a text is such a platform."""
    return plain_platform(text) == text


def are_patterns(text: str) -> bool:
    """Whether what an earlier redaction was asked for is nothing but patterns of paths whose names
    look like names from code."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = [text]
    return isinstance(found, list) and all(
        isinstance(one, str)
        and _PATTERN.fullmatch(one) is not None
        and sum(map(str.isdigit, one)) <= _MOST_DIGITS
        for one in found  # pyright: ignore[reportUnknownVariableType]
    )


def is_field(name: str) -> bool:
    """Whether a class may have an attribute of this name."""
    return name.isidentifier() and is_code_name(name)


def is_enum_name(name: str) -> bool:
    """Whether a member of an enum, or of a flag, may have this name."""
    few = sum(map(str.isdigit, name)) <= _MOST_DIGITS
    return few and _ENUM_NAME.fullmatch(name) is not None


def is_default(default: Any) -> bool:
    """Whether a recorder writes such a default of a parameter: nobody passed it, it is code."""
    if type(default) is int:
        return -(2**63) <= default < 2**63
    if isinstance(default, str):
        return not default or (len(default) <= _MOST_IN_WORD and is_name(default))
    return not isinstance(default, bytes)


def plain_id(tape: bytes) -> bytes:
    """The id of a tape. One that is not random may be anything, and another one stands for it."""
    is_text = all(0x20 <= byte < 0x7F for byte in tape)
    if len(set(tape)) >= _LEAST_BYTES and not is_text:
        return tape
    made = hashlib.blake2b(b"calltape redact" + tape, digest_size=16).digest()
    return made[:-1] + b"\0"
