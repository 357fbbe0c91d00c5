"""Programs as JSON documents, and back: what a saved program needs besides its file.

Nothing in a document is code, and nothing is imported for it. Trees are written as in the tape
format, and are checked in the same way.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from calltape_analyzer.arguments.forms import FormLeaf, PlainForm
from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.templates import Template, derived_tensors
from calltape_analyzer.errors import TapeError
from calltape_analyzer.observing.columns import Column, SizeRow
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.groups import Group, GroupKey, TensorFacts
from calltape_analyzer.observing.layout import ArgumentLayout, Renamed, layout_of_arguments
from calltape_analyzer.observing.memory_facts import Shared
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import SizeTable
from calltape_analyzer.observing.tallies import Seen
from calltape_analyzer.programs.program import Program
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.completion import Completion, Source
from calltape_analyzer.variants.facts import DimensionDecision, VariantFacts
from calltape_analyzer.variants.row_conditions import CounterIs, Fixed
from calltape_analyzer.variants.zero_sizes import ZeroSizes
from calltape_schema.packing import pack, unpack
from calltape_schema.records import Parameter
from calltape_schema.tree import Node, decode_structure, encode_structure

__all__ = ["document_of", "program_parts", "signature_document", "signature_of"]


def signature_document(signature: Signature) -> dict[str, Any]:
    """A signature as plain data."""
    return {
        "parameters": [
            {**p.model_dump(exclude={"default"}), "default": _packed(p.default)}
            for p in signature.parameters
        ],
        "removed": sorted(signature.removed),
    }


def signature_of(document: Mapping[str, Any]) -> Signature:
    """The signature of :func:`signature_document`."""
    parameters = tuple(
        Parameter.model_validate({**p, "default": _unpacked(p["default"])})
        for p in document["parameters"]
    )
    return Signature(parameters, frozenset(document["removed"]))


def document_of(program: Program) -> dict[str, Any]:
    """A program as JSON, for :func:`program_parts`."""
    variant, group = program.variant, program.variant.group
    template, form = program.result
    return {
        "name": variant.name,
        "inputs": list(program.plan.names),
        "made_by": program.made_by,
        "told": program.told,
        "state": list(program.state),
        "unwritten": list(program.unwritten),
        "draws": list(program.draws),
        "never_own": sorted(program.never_own),
        "device": program.device,
        "layout": _layout_document(group.layout),
        "scalars": _packed(list(program.plan.template.scalars)),
        "facts": [list(facts) for facts in group.facts],
        "typed": _packed(group.key.constants),
        "shared": [list(pair) for pair in group.key.shared],
        "constants": _packed(list(group.constants)),
        "rows": [_row_document(row) for row in variant.rows],
        "only": None if program.only is None else [_row_document(row) for row in program.only],
        "conditions": [_condition_document(c) for c in variant.conditions],
        "demands": program.conditions.document(),
        "dimensions": [
            [c.index, c.axis, found.dynamic, found.reason]
            for c, found in variant.dimensions.items()
        ],
        "zeros": {
            "taken": [_columns_document(columns) for columns in variant.zeros.taken],
            "rejected": [
                [_columns_document(columns), why] for columns, why in variant.zeros.rejected.items()
            ],
        },
        "returned": program.returned,
        "completions": [_completion_document(c) for c in variant.completions.values()],
        "held": [[i, _packed(value)] for i, value in variant.held.items()],
        "frozen": [[i, str(t.dtype), t.tolist()] for i, t in variant.frozen.items()],
        "result": {
            "layout": _layout_document(template.layout),
            "scalars": _packed(list(template.scalars)),
            "counters": [[i, *counted] for i, counted in template.counters.items()],
            "form": _form_document(form),
        },
    }


def program_parts(
    document: Mapping[str, Any],
    signature: Signature,
    renamed: Renamed = str,
) -> tuple[VariantFacts, Plan, tuple[Template, PlainForm]]:
    """Variant, plan and result of a saved program.

    Args:
        document: as :func:`document_of` made it.
        signature: of the recorded method.
        renamed: gives the names that classes of arguments have in this process.

    Raises:
        TapeError: the document is damaged.
    """
    variant = _variant_of(document, renamed)
    for place, *rest in document["frozen"]:
        variant.frozen[place] = _tensor(*rest)
    scalars = tuple(_unpacked(document["scalars"]))
    plan = Plan.of(variant, Sample([], list(scalars)), signature)
    result = document["result"]
    layout = _layout_of(result["layout"])
    template = Template(
        layout,
        tuple(_unpacked(result["scalars"])),
        {i: (tensor, axis) for i, tensor, axis in result["counters"]},
        derived_tensors(layout),
    )
    return variant, plan, (template, _form_of(result["form"]))


def rows_of(document: Any) -> frozenset[SizeRow] | None:
    """The only rows that a program may serve; None if it may serve others as well."""
    return None if document is None else frozenset(map(_row_of, document))


def _variant_of(document: Mapping[str, Any], renamed: Renamed) -> VariantFacts:
    nowhere = CallRef(b"", 0)
    layout = _layout_of(document["layout"], renamed)
    facts = tuple(TensorFacts(*one) for one in document["facts"])
    group = Group(
        GroupKey(layout.keys, facts, _unpacked(document["typed"]), _shared_of(document["shared"])),
        layout,
        facts,
        tuple(_unpacked(document["constants"])),
        nowhere,
    )
    # How many calls a row has is not saved: each row counts as one call.
    rows = SizeTable.of((_row_of(row), Seen(1, nowhere)) for row in document["rows"])
    made = VariantFacts(group, rows, tuple(_condition_of(c) for c in document["conditions"]))
    made.name = str(document["name"])
    made.dimensions = {
        Column(place, axis): DimensionDecision(dynamic, reason)
        for place, axis, dynamic, reason in document["dimensions"]
    }
    made.zeros = ZeroSizes(
        frozenset(map(_columns_of, document["zeros"]["taken"])),
        {_columns_of(columns): why for columns, why in document["zeros"]["rejected"]},
    )
    made.held = {place: _unpacked(value) for place, value in document["held"]}
    completions = [_completion_of(c, layout, renamed) for c in document["completions"]]
    made.completions = {completion.key: completion for completion in completions}
    return made


def _tensor(dtype: str, values: Any) -> Any:
    import torch

    found = vars(torch).get(dtype.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise TapeError("invalid", f"{dtype[:80]!r} is not a dtype")
    return torch.tensor(values, dtype=found)


def _packed(value: Any) -> str:
    return base64.b64encode(pack(value)).decode()


def _unpacked(text: str) -> Any:
    return unpack(base64.b64decode(text, validate=True))


def _layout_document(layout: ArgumentLayout) -> dict[str, Any]:
    kwargs = {
        "kind": "dict",
        "keys": list(layout.nodes),
        "children": [_node_document(node) for node in layout.nodes.values()],
    }
    root = {"kind": "tuple", "children": [{"kind": "tuple", "children": []}, kwargs]}
    document = {"root": root, "leaves": len(layout.tensors), "scalars": len(layout.scalars)}
    if (context := layout.context.recorded()) is not None:
        document["context"] = context.model_dump()
    structure = encode_structure(document)
    text = base64.b64encode(structure).decode()
    asked = sorted(layout.context.asked)
    ordered = sorted(layout.ordered)
    made = {"structure": text, "positional": layout.positional, "asked": asked}
    return {**made, "ordered": ordered}


def _node_document(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.model_dump(exclude_none=True, warnings=False)
    return found


def _layout_of(document: Mapping[str, Any], renamed: Renamed = str) -> ArgumentLayout:
    spec = decode_structure(base64.b64decode(document["structure"], validate=True))
    root: Any = spec.root
    try:
        kwargs = root.children[1]
        nodes = dict(zip(kwargs.keys, kwargs.children, strict=True))
    except (AttributeError, IndexError):
        raise TapeError("invalid", "a saved layout is not one of arguments") from None
    context = Context.of(spec.context, (), document["asked"])
    ordered = frozenset(document["ordered"])
    return layout_of_arguments(nodes, document["positional"], renamed, context, ordered)


def _row_document(row: SizeRow) -> list[Any]:
    return [[list(shape) for shape in row.shapes], list(row.ints)]


def _row_of(document: Any) -> SizeRow:
    shapes, ints = document
    return SizeRow(tuple(tuple(shape) for shape in shapes), tuple(ints))


def _condition_document(condition: Any) -> list[Any]:
    if isinstance(condition, Fixed):
        return ["fixed", *condition.column, condition.value, condition.negated]
    assert isinstance(condition, CounterIs)
    return ["counter", *condition.keys, condition.counter.index, condition.open]


def _condition_of(document: Any) -> Fixed | CounterIs:
    kind, place, axis, value, flag = document
    column = Column(place, axis)
    if kind == "fixed":
        return Fixed(column, value, flag)
    return CounterIs(Column(value, None), column, flag)


def _completion_document(completion: Completion) -> dict[str, Any]:
    return {
        "key": _packed(completion.key),
        "tensors": list(completion.tensors),
        "scalars": list(completion.scalars),
        "missing": [
            [place, [[s.constant, _column(s.column), _column(s.less)] for s in sources]]
            for place, sources in completion.missing.items()
        ],
        "dtypes": list(completion.dtypes.items()),
        "constants": _packed(list(completion.constants)),
        "kinds": [path.kind for path in completion.layout.scalars],
        "counters": [[i.index, *column] for i, column in completion.counting_ints.items()],
    }


def _completion_of(
    document: Mapping[str, Any], layout: ArgumentLayout, renamed: Renamed
) -> Completion:
    keys, facts, constants, shared = _unpacked(document["key"])
    if tuple(document["kinds"]) != tuple(path.kind for path in layout.scalars):
        raise TapeError("invalid", "its manifest contradicts itself: the scalars of a completion")
    return Completion(
        GroupKey(
            _with_names(keys, renamed),
            tuple(TensorFacts(*one) for one in facts),
            constants,
            _shared_of(shared),
        ),
        layout,
        tuple(document["tensors"]),
        tuple(document["scalars"]),
        {
            place: tuple(Source(c, _column_of(one), _column_of(less)) for c, one, less in sources)
            for place, sources in document["missing"]
        },
        dict(document["dtypes"]),
        tuple(_unpacked(document["constants"])),
        {Column(i, None): Column(*dimension) for i, *dimension in document["counters"]},
    )


def _shared_of(document: Any) -> tuple[Shared, ...]:
    return tuple(Shared(*pair) for pair in document)


def _with_names(key: Any, renamed: Renamed) -> Any:
    """The key of a layout with the names that classes have in this process."""
    if isinstance(key, tuple):
        return tuple(_with_names(part, renamed) for part in key)
    return renamed(key) if isinstance(key, str) and ":" in key else key


def _columns_document(columns: frozenset[Column]) -> list[list[Any]]:
    return [list(column) for column in sorted(columns)]


def _columns_of(document: Any) -> frozenset[Column]:
    return frozenset(Column(*column) for column in document)


def _column(column: Column | None) -> list[Any] | None:
    return None if column is None else list(column)


def _column_of(document: Any) -> Column | None:
    return None if document is None else Column(*document)


def _form_document(form: PlainForm) -> Any:
    if form.leaf is not None:
        return [form.leaf.kind, form.leaf.index]
    children = [_form_document(child) for child in form.children]
    return {"kind": form.kind, "keys": list(form.keys), "children": children}


def _form_of(document: Any) -> PlainForm:
    if not isinstance(document, Mapping):
        kind, index = document
        return PlainForm("leaf", FormLeaf(kind, index))
    children = tuple(_form_of(child) for child in document["children"])
    return PlainForm(document["kind"], children=children, keys=tuple(document["keys"]))
