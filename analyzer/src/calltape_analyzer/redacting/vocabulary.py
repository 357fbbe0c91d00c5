"""The allowlist of text on a redacted tape, other than ordinals and what the user keeps.

A recorder writes only a few sentences, and names in code have the form of names. Any other text may
be data. Both the redaction and the check of its result use these functions.
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

_MAX_DIGITS = 8
"""Of a part of a name in code: fewer than the number of a card, a phone or an account has."""
_MAX_DIGITS_IN_ALL = 12

_NAME = re.compile(r"[\w.<>\-]{1,512}")
_CLASS = re.compile(r"[\w.<>\-\[\]|,'\"*]{1,512}")  # a class may be generic: Page[int]
_HASH = re.compile(r"(?=[0-9]*[a-f])[0-9a-f]{32,64}")
"""The commit in the name of a module that transformers downloaded."""
_TORCH_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}(\[\w{1,8}\]|:\d{1,3})?", re.ASCII)
_MAX_DIGITS_OF_TORCH = 6

_PATTERN = re.compile(r"[\w.*?\[\]\-]{0,256}")
_ENUM_NAME = re.compile(r"[\w .|+/\-]{1,128}")
_MAX_WORD = 32
_LEAST_DISTINCT_BYTES = 8
"""An id of 16 random bytes has more."""

_VERSION = re.compile(
    r"\d{1,4}(\.\d{1,3}){0,3}((a|b|rc|\.post|\.dev)\d{1,8})?(\+(cpu|xpu|cu\d{2,3}|rocm\d(\.\d){0,2}))?(?![\w.])",
    re.ASCII,
)
_SYSTEMS = ("Linux", "Windows", "macOS", "Darwin", "FreeBSD")
_MACHINES = re.compile(r"x86_64|AMD64|aarch64|arm64|ppc64le|s390x|riscv64|i686")

VERBS = frozenset(
    {"filter", "merge", "recover", "redact", "minimise", "replay", "survey", "update"}
)
"""The verbs of steps in the history."""

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
"""The recorder's reasons why a value is missing, and since when it sees calls. ``#`` is a number,
``@`` a class, ``~`` a word of torch or NumPy, and ``%`` why a stream was cut."""

_HOLES = {
    "#": r"\d{1,8}", "@": r"(?P<class>\S+)", "~": r"[a-z][a-z0-9_]{0,31}(\[\w{1,8}\])?",
    "%": r"(queue_full|internal|more than one call can hold|more than \d{1,8} chunks)",
}  # fmt: skip


def _forms() -> list[re.Pattern[str]]:
    lines = "|".join(_REASONS.split("\n")).strip("|")
    depth, forms = 0, [""]
    for character in lines:  # a bar in parentheses does not end a sentence
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and not depth:
            forms.append("")
        else:
            forms[-1] += _HOLES.get(character, character)
    return [re.compile(form, re.ASCII) for form in forms]


_FORMS = _forms()


def plain_reason(text: str) -> str:
    """A reason that a recorder writes; for any other text, its length in words."""
    if is_without_text(text):
        return text
    for form in _FORMS:
        match = form.fullmatch(text)
        if match is not None:
            name = match.groupdict().get("class")
            return text if name is None or is_class_name(name) else length_of_text(text)
    return length_of_text(text)


def is_code_name(text: str) -> bool:
    """Whether a text has the form of a name in code, such as ``layers.0.forward``."""
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
    return max(counts, default=0) <= _MAX_DIGITS and sum(counts) <= _MAX_DIGITS_IN_ALL


def is_torch_name(text: str) -> bool:
    """Whether a text has the form of a name of torch or NumPy: ``float32``, ``cuda:0``."""
    has_few_digits = sum(map(str.isdigit, text)) <= _MAX_DIGITS_OF_TORCH
    return _TORCH_NAME.fullmatch(text) is not None and has_few_digits


def is_version(text: str) -> bool:
    """Whether a text is the version of a public build."""
    return text == "unknown" or _VERSION.fullmatch(text) is not None


def plain_version(text: str) -> str:
    """A version without the name of a private build: ``2.12.0+acme.7`` becomes ``2.12.0``, and
    ``2.12.0+cu130`` stays."""
    match = _VERSION.match(text)
    return "unknown" if match is None else match[0]


def plain_platform(text: str) -> str:
    """The operating system and the architecture, without the build of the kernel."""
    system = next((name for name in _SYSTEMS if text.startswith(name)), "")
    machine = _MACHINES.search(text)
    return "-".join(filter(None, (system, machine and machine[0]))) or "unknown"


def is_platform(text: str) -> bool:
    """Whether a text is a platform without the build of the kernel."""
    return plain_platform(text) == text


def are_patterns(text: str) -> bool:
    """Whether the option of an earlier redaction contains only path patterns whose names look like
    names in code."""
    try:
        patterns = json.loads(text)
    except (ValueError, RecursionError):
        patterns = [text]
    return isinstance(patterns, list) and all(
        isinstance(pattern, str)
        and _PATTERN.fullmatch(pattern) is not None
        and sum(map(str.isdigit, pattern)) <= _MAX_DIGITS
        for pattern in patterns  # pyright: ignore[reportUnknownVariableType]
    )


def is_field(name: str) -> bool:
    """Whether a class may have an attribute of this name."""
    return name.isidentifier() and is_code_name(name)


def is_enum_name(name: str) -> bool:
    """Whether a member of an enum, or of a flag, may have this name."""
    has_few_digits = sum(map(str.isdigit, name)) <= _MAX_DIGITS
    return has_few_digits and _ENUM_NAME.fullmatch(name) is not None


def is_default(default: Any) -> bool:
    """Whether a recorder writes such a default of a parameter. A default is code, not data."""
    if type(default) is int:
        return -(2**63) <= default < 2**63
    if isinstance(default, str):
        return not default or (len(default) <= _MAX_WORD and is_name(default))
    return not isinstance(default, bytes)


def plain_id(tape: bytes) -> bytes:
    """The id of a tape. An id that does not look random may be data, and is replaced by a hash."""
    is_text = all(0x20 <= byte < 0x7F for byte in tape)
    if len(set(tape)) >= _LEAST_DISTINCT_BYTES and not is_text:
        return tape
    digest = hashlib.blake2b(b"calltape redact" + tape, digest_size=16).digest()
    return digest[:-1] + b"\0"
