"""Names for keys of dicts that look like data, in the order that the keys had.

The analysis sorts the keys of a dict, and its answers follow that order. In come the structures of
a tape. Out goes a name for each such key: the plain name that it followed, and a number.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError
from calltape_schema.privacy import is_name
from calltape_schema.tree import DictNode, decode_structure, walk

__all__ = ["ordered_keys"]

_MAX_KEYS = 100_000


def ordered_keys(tape: Tape) -> dict[str, str]:
    """The name of each text that is a key and looks like data.

    Raises:
        TapeError: the tape cannot be read.
    """
    keys: dict[str, None] = {}
    for root in _structures(tape):
        for node in walk(root):
            if isinstance(node, DictNode) and len(keys) < _MAX_KEYS:
                keys.update((key, None) for key in node.keys if isinstance(key, str) and key)
    names = sorted(repr(key) for key in keys if is_name(key))
    private = sorted((key for key in keys if not is_name(key)), key=repr)
    width = len(str(len(private)))
    found: dict[str, str] = {}
    for number, key in enumerate(private):
        at = bisect.bisect_left(names, repr(key))
        before = names[at - 1][1:-1] if at else ""
        # In the order of repr, a bracket comes after the quote and before all letters of names.
        found[key] = f"{before}({number:0{width}d})"
    return found


def _structures(tape: Tape) -> Iterator[Any]:
    known: set[bytes] = set()
    for call in tape.calls:
        try:
            record = call.record
            for tree in (record.inputs, record.outputs):
                if tree is not None and tree.structure not in known:
                    known.add(tree.structure)
                    yield tree.spec().root
        except TapeError:
            continue  # it stands in the tape's damage
    for kind in tape.counters.groups:
        if kind.structure not in known:
            known.add(kind.structure)
            yield from _root(kind.structure)


def _root(structure: bytes) -> Iterator[Any]:
    try:
        yield decode_structure(structure).root
    except TapeError:
        return
