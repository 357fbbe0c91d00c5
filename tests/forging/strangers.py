"""Tapes of a stranger: nodes that name classes, and calls that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from calltape_schema.packing import pack, unpack
from tests.forging.call import TENSOR, Forged, inputs_of

__all__ = ["ESCAPE", "ESCAPES", "TEXT", "commanding", "escaping", "forged_failure", "nodes_naming"]

TEXT = {"kind": "str", "scalar": 0}
"""The node of the first scalar, a text."""

ESCAPE = "\x1b[31mred\u202e"
ESCAPES = "\x1b]0;owned\x07\x1b[31m\u202e"
"""What a terminal would obey: a color, and a title besides."""


def nodes_naming(name: str, fields: Sequence[str] = ("command",)) -> list[dict[str, Any]]:
    """A node of every kind that can name a class.

    Args:
        name: of the class.
        fields: of what is like an object; each holds the first scalar.
    """
    held = (TEXT,) * len(fields)
    like_object = {"type": name, "fields": tuple(fields), "children": held}
    return [
        {"kind": "namedtuple", **like_object},
        {"kind": "dataclass", **like_object},
        {"kind": "object", **like_object},
        *(
            {"kind": kind, "type": name, "children": held}
            for kind in ("list", "tuple", "set", "frozenset")
        ),
        {"kind": "dict", "type": name, "keys": tuple(fields), "children": held},
        {"kind": "str", "scalar": 0, "type": name},
        {"kind": "int", "scalar": 1, "type": name},
        {"kind": "enum", "type": name, "name": "NO_MEMBER", "value": "touch FOUND"},
        {"kind": "class", "type": name},
        {"kind": "custom", "type": name, "context": TEXT, "children": held},
    ]


def forged_failure(
    path: Path,
    nodes: Iterable[Any],
    scalars: Sequence[Any] = ("touch FOUND", 1),
    *,
    context: dict[str, Any] | None = None,
    has_values: bool = False,
    **record: Any,
) -> Path:
    """A tape of one call, ``forward(x, *nodes)``, which raised.

    Args:
        path: where it is written.
        nodes: of the arguments after the tensor.
        scalars: what the nodes refer to.
        context: that the call ran in.
        has_values: whether ``x`` has its values.
        record: other facts of the call.
    """
    call = Forged(path, (torch.zeros(2, 3),))
    call.set_root(inputs_of(TENSOR, *nodes), scalars=len(scalars))
    if context is not None:
        structure = dict(unpack(call.inputs["structure"]))
        call.inputs["structure"] = pack({**structure, "context": context})
    call.inputs["scalars"] = list(scalars)
    if not has_values:
        call.set_leaf(key=None, missing="policy")
    call.record.pop("outputs", None)
    call.record |= {"error": {"type": "builtins:ValueError", "message": "boom"}, **record}
    return call.write()


def commanding(path: Path, *words: str) -> Path:
    """A tape whose objects run a command when they go away: ``URLopener.__del__`` calls what stands
    in its ``__unlink`` with each of its ``__tempfiles``.

    Args:
        path: where it is written.
        words: of the command.
    """
    command = [{"kind": "str", "scalar": at} for at in range(len(words))]
    opener = {
        "kind": "object",
        "type": "urllib.request:URLopener",
        "fields": ["_URLopener__tempfiles", "_URLopener__unlink", "tempcache"],
        "children": [
            {"kind": "list", "children": [{"kind": "list", "children": command}]},
            {"kind": "class", "type": "subprocess:Popen"},
            {"kind": "none"},
        ],
    }
    # So that a script that asks for the classes of objects finds the one that is called, too.
    asked = {
        "kind": "object", "type": "subprocess:Popen", "fields": ["args"],
        "children": [{"kind": "none"}],
    }  # fmt: skip
    return forged_failure(path, [asked, opener], scalars=words)


def escaping(path: Path) -> Path:
    """A tape with characters that a terminal obeys wherever a tape has text."""
    fields = [f"a{ESCAPES}", "b"]
    nodes = [
        TEXT,
        {"kind": "dict", "keys": [ESCAPES], "children": [TEXT]},
        {"kind": "object", "type": f"app:{ESCAPES}", "fields": fields, "children": [TEXT, TEXT]},
        {"kind": "dataclass", "type": f"app:D{ESCAPES}", "fields": ["b"], "children": [TEXT]},
        {"kind": "enum", "type": f"app:E{ESCAPES}", "name": ESCAPES, "value": ESCAPES},
        {"kind": "class", "type": f"app:{ESCAPES}"},
        {"kind": "opaque", "type": f"app:{ESCAPES}", "reason": ESCAPES},
        {"kind": "dtype", "name": ESCAPES},
    ]
    error = {"type": f"app:{ESCAPES}E", "message": f"boom{ESCAPES}"}
    return forged_failure(path, nodes, scalars=(ESCAPES,), error=error)
