"""A decoded tree in the form of the fixtures' expected JSON."""

from __future__ import annotations

from typing import Any


def outline(node: dict[str, Any], leaves: list[dict[str, Any]], scalars: list[Any]) -> Any:
    """Nodes by kind, facts of tensors in place, scalars as text."""

    def children() -> list[Any]:
        return [outline(child, leaves, scalars) for child in node["children"]]

    kind = node["kind"]
    named = {"type": node["type"]} if "type" in node else {}
    match kind:
        case "tensor" | "ndarray":
            facts = {k: known(v) for k, v in leaves[node["leaf"]].items() if k != "future"}
            return {kind: node["leaf"], **facts}
        case "none":
            return None
        case "bool":
            return node["value"]
        case "complex":
            return {kind: repr(complex(*scalars[node["scalar"]]))} | named
        case "int" | "float" | "str" | "bytes":
            return {kind: repr(scalars[node["scalar"]])} | named
        case "dict":
            keys = [tuple(k) if isinstance(k, list) else k for k in node["keys"]]
            pairs = zip(map(repr, keys), children(), strict=True)
            return {kind: [list(pair) for pair in pairs]} | named
        case "namedtuple" | "dataclass" | "object":
            return {kind: dict(zip(node["fields"], children(), strict=True))} | named
        case "custom":
            context = outline(node["context"], leaves, scalars)
            return {kind: children(), "context": context} | named
        case _ if "children" in node:
            return {kind: children()} | named
    return {k: repr(v) for k, v in node.items() if k != "future"}


def known(value: Any) -> Any:
    """A fact of a leaf without unknown fields (a quantizer may have some)."""
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if k != "future"}
    return list(value) if isinstance(value, tuple) else value
