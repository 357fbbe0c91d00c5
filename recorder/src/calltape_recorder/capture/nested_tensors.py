"""Notes nested tensors as objects whose parts are plain tensors.

Those in the jagged layout have a class of their own, by which a walk finds them. Those in the
strided layout, which torch no longer develops, look like plain tensors that have no shape: neither
shape nor bytes are on the tape.
"""

from __future__ import annotations

from typing import Any

import torch

from calltape_recorder.capture.scalars import Walk, boolean, integer, tensor
from calltape_schema.nested_tensors import jagged_parts

__all__ = ["jagged"]


def jagged(walk: Walk, value: Any) -> None:
    """Notes a nested tensor in the jagged layout. If its parts are not those that we know, it is
    noted as a tensor, of which the tape will have neither bytes nor shape."""
    parts = None if walk.context else _parts(value, of_input=walk.nested is None)
    if parts is None or len(walk.tokens) + len(walk.scalars) + len(parts) > walk.limit:
        tensor(walk, value)
        return
    walk.tokens.append(("nested", tuple(parts)))
    for part in parts.values():
        if type(part) is bool:
            boolean(walk, part)
        elif type(part) is int:
            integer(walk, part)
        else:
            tensor(walk, part)


def _parts(value: Any, *, of_input: bool) -> dict[str, Any] | None:
    try:
        # Neither a mode of the host nor the class itself sees what is read.
        with torch._C.DisableTorchFunction():
            return jagged_parts(value, of_input=of_input)
    except Exception:  # another torch may have it otherwise
        return None
