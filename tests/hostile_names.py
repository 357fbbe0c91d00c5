"""Names that try to be something else than text: markup, terminal commands, reversed text."""

from __future__ import annotations

from pathlib import Path

from tests.fixture_files import FIXTURES  # makes the next import possible

from tape_writing import Call, Fields, TapeBytes, target  # isort: skip
from tensors import tensor  # isort: skip

__all__ = ["HIDDEN", "NAMES", "hostile_tape"]

assert FIXTURES

NAMES = {
    "script": "<script>window.owned = 1</script>",
    "image": "<img src=x onerror='window.owned = 1'>",
    "quotes": "\"'`><b onclick=owned()>",
    "bidi": "a\u202egpj.exe\u2066\u200f",
    "ansi": "\x1b[2J\x1b[31mred\x07\r\n\t",
    "invisible": "pass\u200bword\u00ad\ufeff",
    "template": "${window.owned = 1}{{owned}}",
}


HIDDEN = "\u202e\u2066\u200f\x1b\x07\u200b\u00ad\ufeff"
"""Characters of the names that nobody sees, and that a page must not have."""


def hostile_tape(path: Path) -> Path:
    """A tape on which every name, type and message is one of these."""
    tape = TapeBytes(target(*NAMES.values()))
    parts = {name: tensor("float32", 2) for name in NAMES.values()}
    inner = Fields("object", "m:<script>", parts)
    names = dict(zip(NAMES.values(), NAMES, strict=True))
    error = {"type": "m:<img/src=x>", "message": "\n".join(NAMES.values())}
    tape.call(
        Call(args=(inner,), kwargs={**names, NAMES["script"]: inner}, record={"error": error})
    )
    tape.seal()
    path.write_bytes(bytes(tape.data))
    return path
