"""What users import: the lists of the packages, and that nothing users meet is missing from them.

The second half finds by itself what users meet: from every listed name it follows the members that
are not named as internal, the classes that they return or have as fields, and the errors that
their documentation says they raise.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from functools import cached_property
from types import ModuleType
from typing import Any

import pytest

PACKAGES = ("calltape_schema", "calltape_recorder", "calltape_analyzer")
LISTS = (
    *PACKAGES,
    "calltape_analyzer.targets",
    "calltape_analyzer.observer",
    "calltape_analyzer.converting",
    "calltape_analyzer.testing",
)

EXPECTED = {
    "calltape_schema": {"ErrorKind", "Problem", "TapeError", "CallRecord", "Coverage", "Manifest"},
    "calltape_recorder": {"Every", "First", "FlightRecorder", "Keep", "Novelty", "Options"}
    | {"PerSecond", "PerStructure", "Rate", "Recorder", "Stats", "TapeError", "When", "record"},
    "calltape_analyzer": {"Acceptance", "Call", "ExportError", "Explanation"}
    | {"InferenceError", "InputObserver", "Inputs", "KeyTypeError", "NoVariant"}
    | {"Placeholder", "Programs", "Report", "Tape", "TapeDifference", "TapeError"}
    | {"Tolerances", "UnsupportedError", "UsageError", "Variant", "VariantFindings", "check"}
    | {"diff", "dynamic_axes", "export", "load_programs", "open_tape", "render"}
    | {"register_flattening_functions", "replay", "script"},
    "calltape_analyzer.targets": {"additional_inputs", "dynamic_axes"}
    | {"optimization_profile", "partial_shapes", "shapes_collection"},
    "calltape_analyzer.converting": {"read_safetensors_folder", "write_safetensors_folder"},
    "calltape_analyzer.observer": {"InputObserver", "InputCandidate", "ObserverInfo"},
    "calltape_analyzer.testing": {"assert_replays", "call", "write_tape"},
}

# What only other modules of the package use, although it has no underscore.
INTERNAL = {
    "Program.conditions",
    "Program.model",
    "Program.plan",
    "Program.result",
    "Program.variant",
    "CountedGroup.layout",
    "Call.raw_record",
    "Call.stored",
    "Call.is_same",
    "Call.raw_blob",
    "Call.references",
    "Call.segment",
    "Call.stated",
    "Call.blob_facts",
    "Tape.observations",
    "Tape.segments",
    "TrafficCounters.by_counter_key",
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_is_sorted_and_true(name: str) -> None:
    module = importlib.import_module(name)
    assert EXPECTED[name] <= set(module.__all__)
    assert len(module.__all__) == len(set(module.__all__))
    for public in module.__all__:
        value = getattr(module, public)
        assert value is getattr(module, public)
        assert public in dir(module)
        # The nodes of a spec are one table of FORMAT.md.
        is_plain = public in ("__version__", "ErrorKind") or isinstance(value, ModuleType)
        is_plain |= public.endswith("Node")
        assert is_plain or value.__doc__, public


def test_there_is_one_tape_error() -> None:
    errors = {importlib.import_module(package).TapeError for package in PACKAGES}
    assert len(errors) == 1


class Member(typing.NamedTuple):
    name: str
    function: Any


def importable() -> dict[int, str]:
    """By the id of everything that is listed, its name."""
    modules = [importlib.import_module(name) for name in LISTS]
    return {id(getattr(m, name)): f"{m.__name__}.{name}" for m in modules for name in m.__all__}


def is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("calltape_")


def members_of(value: Any) -> Iterator[Member]:
    """The functions that a listed function or class offers."""
    if inspect.isfunction(value):
        yield Member(value.__name__, value)
    if not inspect.isclass(value):
        return
    for name in dir(value):
        found = inspect.getattr_static(value, name)
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        elif isinstance(found, cached_property):
            found = found.func
        full = f"{value.__name__}.{name}"
        if inspect.isfunction(found) and is_ours(found) and full not in INTERNAL:
            is_hidden = name.startswith("_") and name not in ("__init__", "__call__", "__getitem__")
            if not is_hidden:
                yield Member(full, found)


def names_in(module: ModuleType) -> dict[str, Any]:
    """What annotations of a module can name, also what it imports for types only."""
    found = dict(vars(module))
    for where, names in re.findall(
        r"^ +from (calltape[\w.]*) import (\([^)]*\)|[\w, ]+)$", inspect.getsource(module), re.M
    ):
        source = importlib.import_module(where)
        for name in re.findall(r"\w+", names):
            found.setdefault(name, getattr(source, name, None))
    return found


def classes_of(annotation: Any, module: ModuleType) -> Iterator[type]:
    """The classes of ours that an annotation names."""
    if isinstance(annotation, str):
        known = names_in(module)
        for name in re.findall(r"[A-Za-z_]\w*", annotation):
            yield from classes_of(known.get(name), module)
    elif inspect.isclass(annotation) and is_ours(annotation):
        yield annotation
    for part in typing.get_args(annotation):
        yield from classes_of(part, module)


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The documented data of a class: fields of models, dataclasses and named tuples."""
    if hasattr(value, "model_fields"):
        yield from ((name, field.annotation) for name, field in value.model_fields.items())
    elif hasattr(value, "__dataclass_fields__") or hasattr(value, "_fields"):
        for name, annotation in vars(value).get("__annotations__", {}).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                yield name, annotation


def listed() -> list[Any]:
    modules = [importlib.import_module(name) for name in LISTS]
    every = {id(v): v for m in modules for v in (getattr(m, name) for name in m.__all__)}
    return [value for value in every.values() if is_ours(value)]


LISTED = listed()


def test_members_are_found() -> None:
    names = {member.name for value in LISTED for member in members_of(value)}
    assert {"Tape.infer_arguments", "Variant.findings", "Call.outputs", "export"} <= names
    assert len(names) > 250
    classes = [value for value in LISTED if inspect.isclass(value)]
    every = {f"{cls.__name__}.{name}" for cls in classes for name in dir(cls)}
    every |= {f"{cls.__name__}.{name}" for cls in classes for name, _ in fields_of(cls)}
    assert every >= INTERNAL


@pytest.mark.parametrize("value", LISTED, ids=lambda value: value.__name__)
def test_what_is_returned_is_importable(value: Any) -> None:
    known = importable()
    missing = set()
    for member in members_of(value):
        module = sys.modules[member.function.__module__]
        for cls in classes_of(member.function.__annotations__.get("return"), module):
            if id(cls) not in known and cls is not typing.Any:
                missing.add(f"{member.name} -> {cls.__module__}.{cls.__name__}")
    if inspect.isclass(value):
        for name, annotation in fields_of(value):
            full = f"{value.__name__}.{name}"
            for cls in classes_of(annotation, sys.modules[value.__module__]):
                if id(cls) not in known and full not in INTERNAL:
                    missing.add(f"{full}: {cls.__module__}.{cls.__name__}")
    assert missing == set()


def raised_by(function: Any) -> Iterator[str]:
    """The names before the colons of a section ``Raises:``."""
    match = re.search(r"^Raises:\n((?:(?:    .*)?\n?)*)", inspect.getdoc(function) or "", re.M)
    for line in match[1].splitlines() if match else ():
        named = re.match(r"    (\w+(?:, \w+)*): ", line)
        yield from named[1].split(", ") if named else ()


def test_errors_are_found() -> None:
    raised = {
        name for v in LISTED for member in members_of(v) for name in raised_by(member.function)
    }
    assert {"TapeError", "UsageError", "InferenceError", "KeyTypeError", "ExportError"} <= raised


@pytest.mark.parametrize("value", LISTED, ids=lambda value: value.__name__)
def test_what_is_raised_is_importable(value: Any) -> None:
    missing = set()
    for member in members_of(value):
        package = importlib.import_module(member.function.__module__.partition(".")[0])
        for name in raised_by(member.function):
            error = getattr(package, name, None) or getattr(builtins, name, None)
            if not (inspect.isclass(error) and issubclass(error, BaseException)):
                missing.add(f"{member.name} raises {name}")
    assert missing == set()
