"""Warns at ``attach()`` of calls of a module that will not be seen, as far as that can be known,
and says how to see them."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from calltape_recorder.host.target import names_in
from calltape_schema.objects import class_attribute, module_of, mro_of, namespace_of

_C: Any = torch._C
_RUN_HOOKS = {"__call__", "_call_impl", "_wrapped_call_impl"}
_BEFORE = "the calls in that graph are not seen. Attach before it is compiled"


def blind_spots(module: Any, via: str) -> Iterator[str]:
    """Warnings about a module that a recorder was attached to, ``via`` a hook or its method."""
    try:
        if isinstance(module, torch.nn.Module):
            if _is_in_artifact(module):
                yield (
                    f"a graph was compiled ahead of time. If it contains the module, {_BEFORE}"
                    + (". It may fail to run with a replaced method" if via == "method" else "")
                )
            if via == "hook" and _may_be_inlined(module):
                yield (
                    "graphs were compiled before attach(): if one of them contains the recorded"
                    f' module, {_BEFORE}, or pass via="method"'
                )
            if via == "hook" and _passes_by_hooks(type(module)):
                yield (
                    f"{type(module).__name__} overrides __call__ without calling torch's, which"
                    " runs hooks: its calls are not seen. If it calls forward(), pass"
                    ' via="method"; or record the modules within it'
                )
            if via == "hook" and isinstance(module, torch.nn.TransformerEncoderLayer):
                yield (
                    "torch computes a TransformerEncoderLayer on another path while it has hooks:"
                    " results may differ in the last digits. To avoid that, pass"
                    ' via="method"'
                )
            if (
                via == "method"
                and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
                and torch.cuda.device_count() > 1
                and any(isinstance(owner, torch.nn.DataParallel) for owner in _around(module))
            ):
                yield (
                    "the replicas of DataParallel would call the method of the first device: pass"
                    ' via="hook"'
                )
    except Exception:  # other versions of torch are different inside
        return


def _passes_by_hooks(cls: type) -> bool:
    """Whether the ``__call__`` of a class does not call torch's, judging by its code."""
    method = class_attribute(cls, "__call__")
    owner = next(base for base in mro_of(cls) if "__call__" in namespace_of(base))
    code = getattr(method, "__code__", None)
    if module_of(owner).partition(".")[0] == "torch" or type(code) is not CodeType:
        return False
    return _RUN_HOOKS.isdisjoint(names_in(code))


def _may_be_inlined(module: torch.nn.Module) -> bool:
    """Whether Dynamo may have compiled this module already, as a part of a larger graph.

    Such a graph does not run hooks that are added later, because by default Dynamo has no guards
    for them (``torch._dynamo.config.skip_nnmodule_hook_guards``). A module that was compiled by
    itself runs its hooks, so the answer for it is False.
    """
    convert: Any = sys.modules.get("torch._dynamo.convert_frame")
    frames: Any = getattr(_C._dynamo, "eval_frame", None)
    entries = getattr(frames, "_debug_get_cache_entry_list", None)
    config = sys.modules.get("torch._dynamo.config")
    are_skipped = getattr(config, "skip_nnmodule_hook_guards", True)
    if convert is None or entries is None or not are_skipped:
        return False
    if getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules:
        return False
    codes = [reference() for reference in list(convert.input_codes.seen)]
    compiled = {code: entries(code) for code in codes if code is not None}
    if compiled.get(_code_of(module)):
        return False
    around: list[torch.nn.Module] | None = None
    is_of_class = rf"___check_type_id\((.*), {id(type(module))}\)"
    for code, entries_of_code in compiled.items():
        guards = [guard for entry in entries_of_code for guard in entry.guard_manager.code_parts]
        # Where a graph found an object of the class, such as L['self']._modules['a'].
        places = [match[1] for guard in guards if (match := re.match(is_of_class, guard))]
        if not places:
            continue
        around = _around(module) if around is None else around
        if any(_begins_at(around, code, place) for place in places):
            return True
    return False


def _begins_at(around: list[torch.nn.Module], code: CodeType, place: str) -> bool:
    """Whether a place in a graph of this code may begin at one of these modules: if their class has
    this method, or a function has one as a global or in its closure. Of an argument, only the path
    from the module to the part is known."""
    parts = re.match(r"([LG])\['(\w+)'\](.*)", place)
    if parts is None:
        return False
    scope, name, path = parts.groups()
    if name == "self":
        return any(_code_of(module) is code for module in around)
    if scope == "L" and name not in code.co_freevars:
        return _may_lead(around, path)
    functions = [value for value in gc.get_referrers(code) if type(value) is FunctionType]
    values: list[Any] = [
        function.__globals__.get(name)
        if scope == "G"
        else (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
        for function in functions
    ]
    for value in tuple(values):
        if type(value) in (dict, list, tuple):
            values += value.values() if type(value) is dict else value
    return any(value is module for value in values for module in around)


def _may_lead(around: list[torch.nn.Module], path: str) -> bool:
    """Whether ``path``, as ``._modules['a']``, may lead from one of these modules to the first,
    which the others contain."""
    names = re.findall(r"\._modules\['([^']*)'\]", path)
    if path != "".join(f"._modules['{name}']" for name in names):
        return True  # a path of another form, which is not followed here
    for module in around:
        part: Any = module
        for name in names:
            parts = vars(part).get("_modules") if isinstance(part, torch.nn.Module) else None
            part = parts.get(name) if isinstance(parts, dict) else None
        if part is around[0]:
            return True
    return False


def _code_of(module: torch.nn.Module) -> Any:
    return getattr(type(module).forward, "__code__", None)


def _around(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that contain a module, at any depth, and itself."""
    owners: dict[int, list[torch.nn.Module]] = {}
    for candidate in gc.get_objects():
        if issubclass(type(candidate), torch.nn.Module):
            for part in list((vars(candidate).get("_modules") or {}).values()):
                owners.setdefault(id(part), []).append(candidate)
    around = [module]
    for inner in around:
        around += [
            owner
            for owner in owners.get(id(inner), ())
            if all(owner is not other for other in around)
        ]
    return around


def _is_in_artifact(module: torch.nn.Module) -> bool:
    """Whether this module is in a graph that was compiled ahead of time, as far as can be known.
    Such a graph is not in Dynamo's caches, but it names the function that it was made of."""
    ahead: Any = sys.modules.get("torch._dynamo.aot_compile")
    kind = getattr(ahead, "AOTCompiledFunction", None)
    if kind is None:
        return False
    made_of = [graph._artifacts.original_code for graph in gc.get_objects() if type(graph) is kind]
    return bool(made_of) and any(_code_of(other) in made_of for other in _around(module))
