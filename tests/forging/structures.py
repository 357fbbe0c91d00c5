"""Structures that a test forges, as they stand on a tape."""

from __future__ import annotations

from typing import Any

from calltape_schema.neutral_nodes import neutral
from calltape_schema.packing import pack

__all__ = ["raw_structure"]


def raw_structure(document: dict[str, Any]) -> bytes:
    """The bytes of a structure whose nodes have Python's words. What a writer would leave out, such
    as fields that no reader knows, stays."""
    return pack({**document, "root": _raw(document["root"])})


def _raw(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    known = neutral({"root": node})["root"]
    made = {**known, **node, **known}
    made["kind"] = made["kind"] or node.get("kind")  # of a later version
    if isinstance(node.get("children"), (list, tuple)):
        made["children"] = [_raw(child) for child in node["children"]]
    if "context" in node:
        made["context"] = _raw(node["context"])
    return made
