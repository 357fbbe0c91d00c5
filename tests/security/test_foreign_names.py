"""Promise: class names on a tape import nothing and call nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.analyzer.tapes import write_tape

NAMES = [
    "os:system",
    "builtins:eval",
    "builtins:exec",
    "builtins:open",
    "builtins:type",
    "no_such_module_anywhere:Thing",
    "antigravity:Cache",
    "this:BCache",
    "transformers.no_such:DynamicCache",
    "transformers.cache_utils:DynamicCache",
    "transformers.models.bert:BertModelCache",
    "subprocess:Popen",
    "torch.utils.cpp_extension:FileBaton",
    "torch.nn.modules.linear:Linear",
]


# Runs in a process of its own: an audit hook cannot be taken back.
PROGRAM = """
import sys
import torch
from calltape_analyzer.pytree.inputs import Inputs
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.rebuilding import rebuild
from calltape_analyzer.pytree.rendering import render
from calltape_schema.tree import *

text = ScalarNode(kind="str", scalar=0)

def nodes_of(name):
    return [
        SequenceNode(kind="list", children=(text,), type=name),
        SequenceNode(kind="tuple", children=(text,), type=name),
        DictNode(kind="dict", keys=("a",), children=(text,), type=name),
        FieldsNode(kind="object", type=name, fields=("command",), children=(text,)),
        FieldsNode(kind="namedtuple", type=name, fields=("command",), children=(text,)),
        FieldsNode(kind="dataclass", type=name, fields=("command",), children=(text,)),
        CustomNode(kind="custom", type=name, context=text, children=(text,)),
        EnumNode(kind="enum", type=name, name="x", value="touch here"),
        ClassNode(kind="class", type=name),
        OpaqueNode(kind="opaque", type=name, reason="x"),
    ]

names = sys.argv[1:]
nodes = [node for name in names for node in nodes_of(name)]
for kind in ("dtype", "device", "layout", "memory_format"):
    for name in ("_inductor", "onnx", "os", "serialization", "load"):
        nodes.append(ConstantNode(kind=kind, name=name))
scalars = [ScalarNode(kind="str", scalar=0, type=name) for name in names]
before = set(sys.modules)
seen = []
armed = True

def audit(event, args):
    if armed and event.split(".")[0] in ("import", "exec", "compile", "open", "os", "subprocess"):
        seen.append((event, str(args)[:100]))

sys.addaudithook(audit)
for node in nodes:
    got = rebuild(node, None, ("touch here",), ClassIndex())
    assert isinstance(got, Placeholder), node
    repr(got)
for node in scalars:
    assert type(rebuild(node, None, ("touch here",), ClassIndex())) is str
armed = False
assert not seen, seen
assert set(sys.modules) == before, set(sys.modules) - before
print("nothing happened")
"""


@pytest.mark.integration
def test_names_import_and_call_nothing(tmp_path: Path) -> None:
    """Every kind of node names every kind of class."""
    command = [sys.executable, "-c", PROGRAM, *NAMES]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.stdout.strip() == "nothing happened", result.stderr
    assert list(tmp_path.iterdir()) == []


# The same for a whole tape, read by every means. torch and the analyzer import modules of their
# own meanwhile, so here it is the tape's names that must not appear.
READER = """
import sys
path, *names = sys.argv[1:]
foreign = ("antigravity", "this", "no_such_module_anywhere", "transformers")
seen = []

def audit(event, args):
    if event in ("os.system", "os.exec", "subprocess.Popen", "os.posix_spawn"):
        seen.append((event, args))
    elif event == "import" and args[0].split(".")[0] in foreign:
        seen.append((event, args))

import torch
sys.addaudithook(audit)
from calltape_analyzer import Placeholder, open_tape, render
with open_tape(path, verify=True) as tape:
    assert len(tape) == len(names), tape.damage
    for call in tape:
        args, kwargs = call.inputs
        assert all(isinstance(value, Placeholder) for value in args), args
        render(call.inputs), render(call.record.inputs)
assert not seen, seen
print("nothing happened")
"""


@pytest.mark.integration
def test_a_tape_of_names_imports_nothing(tmp_path: Path) -> None:
    calls = []
    for name in NAMES:
        module, _, qualname = name.partition(":")
        made = type("Foreign", (dict,), {"__module__": module, "__qualname__": qualname})
        cache = type("ForeignCache", (), {"__module__": module, "__qualname__": qualname})()
        cache.x = torch.ones(2)
        calls.append(((made(a=torch.ones(1)), cache, made), {}))
    path = write_tape(tmp_path / "a.tape", calls)
    command = [sys.executable, "-c", READER, str(path), *NAMES]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.stdout.strip() == "nothing happened", result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["a.tape"]
