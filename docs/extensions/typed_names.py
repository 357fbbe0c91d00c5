"""Names in documentation and signatures lead to where a class is documented.

A signature names ``calltape_analyzer.tape.Tape``, users import ``calltape_analyzer.Tape``, and the
reference has the second. What a role names has to exist; if it is of torch or of the standard
library, it is shown as code, because the site leads to no other one that it had to ask.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment

_LISTS = (
    "calltape_analyzer.testing",
    "calltape_analyzer.converting",
    "calltape_analyzer.targets",
    "calltape_analyzer",
    "calltape_recorder",
    "calltape_schema",
)


__all__ = ["public_name"]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True}


def _public_names() -> dict[str, str]:
    """By where something is defined, where users import it from."""
    found = {}
    for module in map(importlib.import_module, _LISTS):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                found[f"{value.__module__}.{value.__qualname__}"] = f"{module.__name__}.{name}"
    return found


_PUBLIC = _public_names()


def public_name(value: Any) -> str:
    """Where users import a listed class or function from: the package, if it lists it."""
    return _PUBLIC[f"{value.__module__}.{value.__qualname__}"]


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: Any, shown: nodes.TextElement
) -> nodes.Node | None:
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    domain = env.domains["py"]
    assert isinstance(domain, PythonDomain)
    for public in _candidates(target, node):
        if public in domain.objects:
            page = node["refdoc"]
            return domain.resolve_xref(env, page, app.builder, "obj", public, node, shown)
    if owner := _owner_of_field(target, node):
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", owner, node, shown)
    # A role is a link that an author wrote; the rest are annotations, which may be of anybody.
    is_role = isinstance(shown, nodes.literal)
    return shown if not is_role or _exists(target) or _exists(f"builtins.{target}") else None


def _candidates(target: str, node: Any) -> list[str]:
    """What a name may be called in the reference: of itself, or of a member of a class."""
    owner, _, member = target.rpartition(".")
    found = [_PUBLIC.get(target, ""), f"{_PUBLIC.get(owner, '')}.{member}"]
    found += [f"{module}.{target}" for module in _LISTS]
    if cls := node.get("py:class"):
        found.append(f"{node.get('py:module')}.{cls}.{target}")
    return found


def _owner_of_field(target: str, node: Any) -> str | None:
    """The class whose section ``Attributes:`` has this name; the section has no places of its
    own."""
    named, _, field = target.rpartition(".")
    module, cls = node.get("py:module"), named or node.get("py:class")
    for name in (f"{module}.{cls}", cls):
        value = _value_of(name) if name else None
        if re.search(rf"^    {re.escape(field)}: ", inspect.getdoc(value) or "", re.MULTILINE):
            return name
    return None


def _exists(name: str) -> bool:
    return _value_of(name) is not None


def _value_of(name: str) -> Any:
    """A module, or something in one; None if there is none of this name."""
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for part in parts[split:]:
            value = getattr(value, part, None)
        return value
    return None
