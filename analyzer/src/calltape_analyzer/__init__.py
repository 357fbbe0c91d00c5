"""Reads tapes: dynamic shapes and representative arguments for torch.export and torch.onnx.export.

Every function, class and error that users meet is importable from here, those for single tools from
:mod:`calltape_analyzer.targets`; every other module is internal. Importing this package, reading
records and inferring shapes as plain data do not import torch: the names below are imported when
they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calltape_analyzer.arguments.sizings import Sizing
    from calltape_analyzer.bundling import Bundle, BundledFile, bundle
    from calltape_analyzer.comparison.comparing import Tolerances
    from calltape_analyzer.comparison.reports import (
        ElementDifference,
        LeafDifference,
        Report,
        ReportRow,
    )
    from calltape_analyzer.differences import Change, TapeDifference, diff
    from calltape_analyzer.editing.choice import Choice
    from calltape_analyzer.editing.diagnosis import Diagnosis, Symptom, diagnose
    from calltape_analyzer.editing.edits import filter_tape, merge_tapes, recover_tape
    from calltape_analyzer.editing.rewriting import EditReport
    from calltape_analyzer.errors import (
        ExportError,
        InferenceError,
        KeyTypeError,
        NoVariant,
        RedactionError,
        TapeError,
        UnsupportedError,
        UsageError,
    )
    from calltape_analyzer.explanation import (
        DimensionExplanation,
        Explanation,
        PartExplanation,
        Sighting,
    )
    from calltape_analyzer.exporting.export import ExportOptions, export
    from calltape_analyzer.facts import Fact, Note, Rejection
    from calltape_analyzer.limits import Limits
    from calltape_analyzer.minimising.minimising import MinimiseReport, minimise
    from calltape_analyzer.observer.input_observer import InputObserver
    from calltape_analyzer.observer.stored_calls import InputCandidate, ObserverInfo
    from calltape_analyzer.observing.memory_layout import LayoutSeen
    from calltape_analyzer.observing.signature import Signature
    from calltape_analyzer.observing.size_table import Column, Seen, SizeRow, Span
    from calltape_analyzer.observing.traffic_counters import (
        CountedGroup,
        CountedKind,
        TrafficCounters,
        Values,
    )
    from calltape_analyzer.opening import Recording, Recordings, open_tape, recordings
    from calltape_analyzer.programs.attempts import Attempt, VariantVerdict
    from calltape_analyzer.programs.loading import load_programs
    from calltape_analyzer.programs.program import Program
    from calltape_analyzer.programs.programs import Programs
    from calltape_analyzer.programs.reasons import Sampled, UntriedSize
    from calltape_analyzer.programs.strategies import Strategy
    from calltape_analyzer.pytree.classes import ClassIndex
    from calltape_analyzer.pytree.placeholder import Placeholder
    from calltape_analyzer.pytree.registration import register_flattening_functions
    from calltape_analyzer.pytree.rendering import Inputs, render
    from calltape_analyzer.reading.call import Call
    from calltape_analyzer.reading.call_ref import CallRef, SeenInputs
    from calltape_analyzer.reading.calls import Calls
    from calltape_analyzer.redacting.private_data import PrivateData, PrivateFinding, private_data
    from calltape_analyzer.redacting.redaction import redact
    from calltape_analyzer.replaying.checking import check
    from calltape_analyzer.replaying.replaying import replay
    from calltape_analyzer.scripting import script
    from calltape_analyzer.surveying.survey import Survey, survey
    from calltape_analyzer.surveying.target_survey import TargetSurvey
    from calltape_analyzer.tape import Tape
    from calltape_analyzer.targets.exporters import DynamicAxes, dynamic_axes
    from calltape_analyzer.text import printable
    from calltape_analyzer.variant import Acceptance, Variant, VariantList
    from calltape_analyzer.variants.facts import CountedRange
    from calltape_analyzer.variants.variant_findings import (
        DimensionFinding,
        IntFinding,
        SizeSeen,
        SymbolFinding,
        TensorFinding,
        VariantFindings,
    )

__all__ = [
    "Acceptance",
    "Attempt",
    "Bundle",
    "BundledFile",
    "Call",
    "CallRef",
    "Calls",
    "Change",
    "Choice",
    "ClassIndex",
    "Column",
    "CountedGroup",
    "CountedKind",
    "CountedRange",
    "Diagnosis",
    "DimensionExplanation",
    "DimensionFinding",
    "DynamicAxes",
    "EditReport",
    "ElementDifference",
    "Explanation",
    "ExportError",
    "ExportOptions",
    "Fact",
    "InferenceError",
    "InputCandidate",
    "InputObserver",
    "Inputs",
    "IntFinding",
    "KeyTypeError",
    "LayoutSeen",
    "LeafDifference",
    "Limits",
    "MinimiseReport",
    "NoVariant",
    "Note",
    "ObserverInfo",
    "PartExplanation",
    "Placeholder",
    "PrivateData",
    "PrivateFinding",
    "Program",
    "Programs",
    "Recording",
    "Recordings",
    "RedactionError",
    "Rejection",
    "Report",
    "ReportRow",
    "Sampled",
    "Seen",
    "SeenInputs",
    "Sighting",
    "Signature",
    "SizeRow",
    "SizeSeen",
    "Sizing",
    "Span",
    "Strategy",
    "Survey",
    "SymbolFinding",
    "Symptom",
    "Tape",
    "TapeDifference",
    "TapeError",
    "TargetSurvey",
    "TensorFinding",
    "Tolerances",
    "TrafficCounters",
    "UnsupportedError",
    "UntriedSize",
    "UsageError",
    "Values",
    "Variant",
    "VariantFindings",
    "VariantList",
    "VariantVerdict",
    "__version__",
    "bundle",
    "check",
    "diagnose",
    "diff",
    "dynamic_axes",
    "export",
    "filter_tape",
    "load_programs",
    "merge_tapes",
    "minimise",
    "open_tape",
    "printable",
    "private_data",
    "recordings",
    "recover_tape",
    "redact",
    "register_flattening_functions",
    "render",
    "replay",
    "script",
    "survey",
]

__version__ = "0.1.0"

_NAMES = {
    "arguments.sizings": ("Sizing",),
    "bundling": ("Bundle", "BundledFile", "bundle"),
    "comparison.comparing": ("Tolerances",),
    "comparison.reports": ("ElementDifference", "LeafDifference", "Report", "ReportRow"),
    "differences": ("Change", "TapeDifference", "diff"),
    "editing.choice": ("Choice",),
    "editing.diagnosis": ("Diagnosis", "Symptom", "diagnose"),
    "editing.rewriting": ("EditReport",),
    "editing.edits": ("filter_tape", "merge_tapes", "recover_tape"),
    "errors": (
        "ExportError",
        "InferenceError",
        "KeyTypeError",
        "NoVariant",
        "RedactionError",
        "TapeError",
        "UnsupportedError",
        "UsageError",
    ),
    "explanation": (
        "DimensionExplanation",
        "Explanation",
        "PartExplanation",
        "Sighting",
    ),
    "exporting.export": ("ExportOptions", "export"),
    "facts": ("Fact", "Note", "Rejection"),
    "limits": ("Limits",),
    "minimising.minimising": ("MinimiseReport", "minimise"),
    "observing.size_table": ("Column", "Seen", "SizeRow", "Span"),
    "observer.stored_calls": ("InputCandidate", "ObserverInfo"),
    "observer.input_observer": ("InputObserver",),
    "observing.signature": ("Signature",),
    "observing.memory_layout": ("LayoutSeen",),
    "observing.traffic_counters": ("CountedGroup", "CountedKind", "TrafficCounters", "Values"),
    "opening": ("Recording", "Recordings", "open_tape", "recordings"),
    "programs.loading": ("load_programs",),
    "programs.program": ("Program",),
    "programs.programs": ("Programs",),
    "pytree.classes": ("ClassIndex",),
    "programs.attempts": ("Attempt", "VariantVerdict"),
    "programs.reasons": ("Sampled", "UntriedSize"),
    "programs.strategies": ("Strategy",),
    "pytree.placeholder": ("Placeholder",),
    "pytree.registration": ("register_flattening_functions",),
    "pytree.rendering": ("Inputs", "render"),
    "reading.call": ("Call",),
    "reading.call_ref": ("CallRef", "SeenInputs"),
    "reading.calls": ("Calls",),
    "redacting.private_data": ("PrivateData", "PrivateFinding", "private_data"),
    "redacting.redaction": ("redact",),
    "replaying.checking": ("check",),
    "replaying.replaying": ("replay",),
    "scripting": ("script",),
    "surveying.survey": ("Survey", "survey"),
    "surveying.target_survey": ("TargetSurvey",),
    "tape": ("Tape",),
    "targets.exporters": ("DynamicAxes", "dynamic_axes"),
    "text": ("printable",),
    "variant": ("Acceptance", "Variant", "VariantList"),
    "variants.variant_findings": (
        "DimensionFinding",
        "IntFinding",
        "SizeSeen",
        "SymbolFinding",
        "TensorFinding",
        "VariantFindings",
    ),
    "variants.facts": ("CountedRange",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
