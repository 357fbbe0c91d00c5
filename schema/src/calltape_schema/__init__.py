"""The tape format: records, limits and framing, without torch or NumPy.

``FORMAT.md``, beside the sources of this package, is the specification. This package is its Python
form: the recorder writes with it, and the analyzer reads with it. The models are imported when they
are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from calltape_schema.errors import ErrorKind, Problem, TapeError

if TYPE_CHECKING:
    from calltape_schema.drop_reasons import DropReason
    from calltape_schema.end import Coverage, Dump
    from calltape_schema.records import (
        BlobFacts,
        CallRecord,
        FlightPolicy,
        Manifest,
        ModelError,
        Observed,
        Parameter,
        Policy,
        Producer,
        Range,
        Rank,
        Segment,
        Source,
        Step,
        Target,
        Tree,
    )
    from calltape_schema.tree import (
        Autocast,
        BoolNode,
        CallContext,
        ClassNode,
        ConstantNode,
        CustomNode,
        DictNode,
        EnumNode,
        FieldsNode,
        Leaf,
        NoneNode,
        OpaqueNode,
        Quantizer,
        ScalarNode,
        SequenceNode,
        Structure,
        TensorNode,
    )

__all__ = [
    "Autocast",
    "BlobFacts",
    "BoolNode",
    "CallContext",
    "CallRecord",
    "ClassNode",
    "ConstantNode",
    "Coverage",
    "CustomNode",
    "DictNode",
    "DropReason",
    "Dump",
    "EnumNode",
    "ErrorKind",
    "FieldsNode",
    "FlightPolicy",
    "Leaf",
    "Manifest",
    "ModelError",
    "NoneNode",
    "Observed",
    "OpaqueNode",
    "Parameter",
    "Policy",
    "Problem",
    "Producer",
    "Quantizer",
    "Range",
    "Rank",
    "ScalarNode",
    "Segment",
    "SequenceNode",
    "Source",
    "Step",
    "Structure",
    "TapeError",
    "Target",
    "TensorNode",
    "Tree",
    "__version__",
]

__version__ = "0.1.0"

_HOMES = ("records", "tree", "end", "drop_reasons")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = (importlib.import_module(f"{__name__}.{home}") for home in _HOMES)
    value = next(getattr(home, name) for home in homes if hasattr(home, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
