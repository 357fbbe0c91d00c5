"""A generated script that runs what a tape says: what must never be written."""

from __future__ import annotations

VULNERABLE = """
import collections, sys
import torch
import model
from calltape_analyzer import open_tape

NAMES = ["subprocess:Popen", "urllib.request:URLopener"]

def loaded(name):
    module, _, qualname = name.partition(":")
    return vars(sys.modules[module])[qualname]

def rebuilt(node, tape):
    cls = loaded(node.type)
    made = cls.__new__(cls)
    for field, child in zip(node.fields, node.children):
        vars(made)[field] = value(child, tape)
    return made

def value(node, tape):
    if node.kind == "list":
        return [value(child, tape) for child in node.children]
    if node.kind == "str":
        return tape[0].record.inputs.scalars[node.scalar]
    return loaded(node.type) if node.kind == "class" else None

with open_tape("a.tape") as tape:
    args = tape[0].record.inputs.spec().root.children[0].children
    rebuilt(args[2], tape)
    print("made")
"""
