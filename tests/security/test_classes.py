"""Promise: objects are made only of classes that the person named, that calltape knows, or that
the package of the given model defines. Tried is all that ``import torch, transformers`` loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from tests.analyzer.tapes import write_tape

FIXED = {
    *(f"builtins:{name}" for name in (
        "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list",
        "mappingproxy", "object", "range", "set", "slice", "str", "tuple",
    )),
    *(f"collections:{name}" for name in (
        "Counter", "OrderedDict", "UserDict", "UserList", "defaultdict", "deque",
    )),
    "types:SimpleNamespace", "torch.nn.utils.rnn:PackedSequence",
}  # fmt: skip
"""Of these, and of some of transformers' classes, objects are made for anybody."""

FOREIGN = [
    "antigravity:Cache", "this:BCache", "no_such_module_anywhere:Thing",
    "transformers.no_such:DynamicCache", "transformers.models.bert:BertModelCache",
    "torch.utils.cpp_extension:FileBaton",
]  # fmt: skip
"""Classes that are not loaded, or not there."""

# In a process of its own, which has loaded these libraries and nothing else. An audit hook cannot
# be taken back.
PROGRAM = """
import json, sys
import torch, transformers
import transformers.models.llama.modeling_llama
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.rebuilding import rebuild
from calltape_schema.objects import module_of, mro_of, namespace_of, qualname_of
from pydantic import TypeAdapter
from calltape_schema.tree import Node
from tests.fuzz.loaded_classes import attributes_of, loaded_classes
from tests.forging.strangers import nodes_naming

nodes = TypeAdapter(Node)
scalars = ("touch FOUND", 1)
classes = loaded_classes()

class Model(torch.nn.Module):
    pass

small = transformers.LlamaConfig(
    hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8
)
never = {
    name: cls for name, cls in classes.items()
    if module_of(cls).partition(".")[0] in sys.stdlib_module_names
    or any("__del__" in namespace_of(base) for base in mro_of(cls))
}
models = (None, Model().eval(), transformers.LlamaForCausalLM(small))
plain = (str, int, float, bool, type(None))
# What a tape names, it runs. Imports, and files that are read, are the libraries' own.
seen = []
armed = False

def audit(event, args):
    if armed and event.split(".")[0] in ("os", "subprocess", "socket", "shutil", "import"):
        seen.append((event, str(args)[:100]))

sys.addaudithook(audit)
made = {}
constants = [
    {"kind": kind, "name": name}
    for kind in ("dtype", "device", "layout", "memory_format")
    for name in ("_inductor", "onnx", "os", "serialization", "load")
]
# Not even for a person who names them.
indexes = [*(ClassIndex(model=model) for model in models), ClassIndex(never)]
before = set(sys.modules)
armed = True
for name in [*classes, *sys.argv[1:], None]:
    fields = attributes_of(classes[name]) if name in classes else ("command",)
    for document in constants if name is None else nodes_naming(name, fields):
        node = nodes.validate_python(document)
        for index in indexes:
            got = rebuild(node, None, scalars, index)
            is_scalar = type(got) in plain and "scalar" in document
            if not isinstance(got, Placeholder) and not is_scalar:
                found = got if issubclass(type(got), type) else type(got)
                made.setdefault(f"{module_of(found)}:{qualname_of(found)}", name)
armed = False
new = sorted(set(sys.modules) - before)
print(json.dumps(
    {"classes": len(classes), "never": len(never), "made": made, "seen": seen, "new": new}
))
"""


_NUMBERS = [
    cls for cls in vars(numpy).values() if isinstance(cls, type) and issubclass(cls, numpy.number)
]


@pytest.mark.integration
def test_of_all_that_is_loaded_nothing_else_is_made(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *FOREIGN], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={"PYTHONPATH": str(root), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["classes"] > 5_000
    assert document["never"] > 1_000
    assert (document["seen"], document["new"]) == ([], [])
    assert not set(FOREIGN) & set(document["made"].values())
    others = {name for name in document["made"] if name not in FIXED}
    assert FIXED & set(document["made"]), "some are made"
    others.discard("argparse:Namespace")  # which the person named
    others -= {f"numpy:{cls.__name__}" for cls in _NUMBERS}
    unknown = {n for n in others if not n.startswith(("transformers.", "torch.return_types:"))}
    assert not unknown
    of_transformers = {name for name in others if name.startswith("transformers.")}
    # Caches and their layers, results, batches and configurations, by what they are named.
    words = ("Cache", "Layer", "Output", "Config", "Batch", "Mixin", "KVSharingDict")
    assert not [n for n in of_transformers if not any(word in n for word in words)]
    assert list(tmp_path.iterdir()) == []


# A whole tape, read by every means. torch and the analyzer import modules of their own meanwhile,
# so here it is the tape's names that must not appear.
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
    calls, names = [], [*FOREIGN, "os:system", "builtins:eval", "subprocess:Popen"]
    for name in names:
        module, _, qualname = name.partition(":")
        made = type("Foreign", (dict,), {"__module__": module, "__qualname__": qualname})
        cache = type("ForeignCache", (), {"__module__": module, "__qualname__": qualname})()
        cache.x = torch.ones(2)
        calls.append(((made(a=torch.ones(1)), cache, made), {}))
    path = write_tape(tmp_path / "a.tape", calls)
    command = [sys.executable, "-c", READER, str(path), *names]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.stdout.strip() == "nothing happened", result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["a.tape"]
