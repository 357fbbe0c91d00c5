"""What users import is a curated list; this is the list."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "calltape_schema": {"Kind", "Problem", "TapeError"},
    "calltape_recorder": {
        "Every",
        "First",
        "FlightRecorder",
        "Keep",
        "Novelty",
        "Options",
        "PerSecond",
        "PerStructure",
        "Rate",
        "Recorder",
        "Stats",
        "TapeError",
        "When",
        "record",
    },
    "calltape_analyzer": {
        "Call",
        "ExportError",
        "InferenceError",
        "InputObserver",
        "NoVariant",
        "Placeholder",
        "Programs",
        "Report",
        "Tape",
        "TapeError",
        "Tolerances",
        "Variant",
        "check",
        "diff",
        "dynamic_axes",
        "export",
        "granted",
        "load_programs",
        "open_tape",
        "register_flattening_functions",
        "render",
        "replay",
    },
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) == PUBLIC[package] | {"__version__"}
    for name in module.__all__:
        value = getattr(module, name)
        assert value is getattr(module, name)
        assert name == "__version__" or name == "Kind" or value.__doc__, name


def test_there_is_one_tape_error() -> None:
    errors = {importlib.import_module(package).TapeError for package in PUBLIC}
    assert len(errors) == 1
