"""A program as a manifest has it, and back; and whether the parts of one that was read agree.

Nothing in it is code, and nothing is imported for it. Trees are written as in the tape format, and
are checked in the same way. Every number that is the place of something is looked up once, so that
later code finds what it expects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from calltape_analyzer.arguments.plan import FormLeaf, PlainForm, Plan, Template, derived_tensors
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.errors import TapeError
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.groups import Completion, Group, GroupKey
from calltape_analyzer.observing.layout import ArgumentLayout, Renamed, layout_of_nodes
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column, Seen, SizeTable
from calltape_analyzer.programs.manifest import (
    SavedCompletion,
    SavedForm,
    SavedLayout,
    SavedProgram,
    SavedSignature,
)
from calltape_analyzer.programs.program import Program
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import CounterIs, Fixed, VariantFacts, ZeroSizes
from calltape_schema.records import Parameter
from calltape_schema.tree import decode_structure, encode_structure

__all__ = ["check_program", "document_of", "program_parts", "signature_document", "signature_of"]


def signature_document(signature: Signature) -> SavedSignature:
    """A signature as it is saved."""
    parameters = tuple(p.model_dump() for p in signature.parameters)
    return {"parameters": parameters, "removed": tuple(sorted(signature.removed))}


def signature_of(document: SavedSignature) -> Signature:
    """The signature of :func:`signature_document`."""
    parameters = tuple(map(Parameter.model_validate, document["parameters"]))
    return Signature(parameters, frozenset(document["removed"]))


def document_of(program: Program, file: str) -> SavedProgram:
    """A program as it is saved beside its file, for :func:`program_parts`."""
    variant, group = program.variant, program.variant.group
    template, form = program.result
    return {
        "file": file,
        "name": variant.name,
        "inputs": tuple(program.plan.names),
        "made_by": program.made_by,
        "told": tuple(program.told),
        "state": program.state,
        "unwritten": program.unwritten,
        "draws": program.draws,
        "never_own": program.never_own,
        "device": program.device,
        "layout": _layout_document(group.layout),
        "scalars": tuple(program.plan.template.scalars),
        "facts": group.facts,
        "typed": group.key.constants,
        "shared": group.key.shared,
        "constants": group.constants,
        "rows": tuple(variant.rows),
        "only": None if program.only is None else tuple(program.only),
        "conditions": variant.conditions,  # type: ignore[typeddict-item]
        "demands": program.conditions,
        "dimensions": tuple(variant.dimensions.items()),
        "zeros": {
            "taken": tuple(variant.zeros.accepted),
            "rejected": tuple(variant.zeros.rejected.items()),
        },
        "returned": program.returned,
        "completions": tuple(map(_completion_document, variant.completions.values())),
        "held": tuple((i, value) for i, held in variant.constant_scalars.items() for value in held),
        "open_floats": variant.open_floats,
        "frozen": tuple((i, str(t.dtype), t.tolist()) for i, t in variant.frozen.items()),
        "result": {
            "layout": _layout_document(template.layout),
            "scalars": tuple(template.scalars),
            "counters": tuple(template.counters.items()),
            "form": _form_document(form),
        },
    }


def program_parts(
    document: SavedProgram, signature: Signature, renamed: Renamed = str
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
    variant.frozen = {place: _tensor(*rest) for place, *rest in document["frozen"]}
    plan = Plan.of(variant, Sample([], list(document["scalars"])), signature)
    result = document["result"]
    layout = _layout_of(result["layout"])
    counters = dict(result["counters"])
    template = Template(layout, tuple(result["scalars"]), counters, derived_tensors(layout))
    return variant, plan, (template, _form_of(result["form"]))


def _variant_of(document: SavedProgram, renamed: Renamed) -> VariantFacts:
    nowhere = CallRef(b"", 0)
    layout = _layout_of(document["layout"], renamed)
    key = GroupKey(layout.keys, document["facts"], document["typed"], document["shared"])
    group = Group(key, layout, tuple(document["constants"]), nowhere)
    # How many calls a row has is not saved: each row counts as one call.
    rows = SizeTable.of((row, Seen(1, nowhere)) for row in document["rows"])
    made = VariantFacts(group, rows, document["conditions"])
    made.name = document["name"]
    made.dimensions = dict(document["dimensions"])
    zeros = document["zeros"]
    made.zeros = ZeroSizes(frozenset(zeros["taken"]), dict(zeros["rejected"]))
    for place, value in document["held"]:
        made.constant_scalars[place] = (*made.constant_scalars.get(place, ()), value)
    made.open_floats = document["open_floats"]
    completions = [_completion_of(c, layout, renamed) for c in document["completions"]]
    made.completions = {completion.key: completion for completion in completions}
    return made


def _tensor(dtype: str, values: Any) -> Any:
    import torch

    found = vars(torch).get(dtype.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise TapeError("invalid", f"{dtype[:80]!r} is not a dtype")
    return torch.tensor(values, dtype=found)


def _layout_document(layout: ArgumentLayout) -> SavedLayout:
    kwargs = {
        "kind": "dict",
        "keys": list(layout.nodes),
        "children": [
            node.model_dump(exclude_none=True, warnings=False) for node in layout.nodes.values()
        ],
    }
    root = {"kind": "tuple", "children": [{"kind": "tuple", "children": []}, kwargs]}
    document = {"root": root, "leaves": len(layout.tensors), "scalars": len(layout.scalars)}
    if (context := layout.context.recorded()) is not None:
        document["context"] = context.model_dump()
    return {
        "structure": encode_structure(document),
        "positional": layout.positional,
        "asked": tuple(sorted(layout.context.modes)),
        "ordered": tuple(sorted(layout.ordered)),
    }


def _layout_of(document: SavedLayout, renamed: Renamed = str) -> ArgumentLayout:
    spec = decode_structure(document["structure"])
    root: Any = spec.root
    try:
        kwargs = root.children[1]
        nodes = dict(zip(kwargs.keys, kwargs.children, strict=True))
    except (AttributeError, IndexError):
        raise TapeError("invalid", "a saved layout is not one of arguments") from None
    context = Context.of(spec.context, (), document["asked"])
    ordered = frozenset(document["ordered"])
    return layout_of_nodes(nodes, document["positional"], renamed, context, ordered=ordered)


def _completion_document(completion: Completion) -> SavedCompletion:
    return {
        "keys": completion.key.layout,
        "facts": completion.key.facts,
        "typed": completion.key.constants,
        "shared": completion.key.shared,
        "tensors": completion.tensors,
        "scalars": completion.scalars,
        "missing": tuple(completion.missing.items()),
        "dtypes": tuple(completion.dtypes.items()),
        "constants": completion.constants,
        "kinds": tuple(path.kind for path in completion.layout.scalars),  # type: ignore[misc]
        "counters": tuple(completion.counting_ints.items()),
    }


def _completion_of(
    document: SavedCompletion, layout: ArgumentLayout, renamed: Renamed
) -> Completion:
    if document["kinds"] != tuple(path.kind for path in layout.scalars):
        raise TapeError("invalid", "its manifest contradicts itself: the scalars of a completion")
    keys = _with_names(document["keys"], renamed)
    return Completion(
        GroupKey(keys, document["facts"], document["typed"], document["shared"]),
        layout,
        document["tensors"],
        document["scalars"],
        dict(document["missing"]),
        dict(document["dtypes"]),
        tuple(document["constants"]),
        dict(document["counters"]),
    )


def _with_names(key: Any, renamed: Renamed) -> Any:
    """The key of a layout with the names that classes have in this process."""
    if isinstance(key, tuple):
        return tuple(_with_names(part, renamed) for part in key)
    return renamed(key) if isinstance(key, str) and ":" in key else key


def _form_document(form: PlainForm) -> SavedForm:
    if form.leaf is not None:
        return form.leaf.kind, form.leaf.index
    children = tuple(map(_form_document, form.children))
    return {"kind": cast("Any", form.kind), "keys": form.keys, "children": children}


def _form_of(document: SavedForm) -> PlainForm:
    if isinstance(document, tuple):
        return PlainForm("leaf", FormLeaf(*document))
    children = tuple(map(_form_of, document["children"]))
    return PlainForm(document["kind"], children=children, keys=document["keys"])


def check_program(program: Program) -> None:
    """Looks up every place that a program names.

    Raises:
        TapeError: ``invalid`` if parts of the program contradict each other.
    """
    group = program.variant.group
    _check_group(group)
    _expect(len(program.plan.template.scalars) == len(group.layout.scalars), "its scalars")
    rows = list(program.variant.rows)
    ranks = [facts.rank for facts in group.facts]
    for row in [*rows, *(program.only or ())]:
        _expect([len(shape) for shape in row.shapes] == ranks, "the ranks of a row")
        _expect(len(row.ints) == len(group.layout.ints), "the ints of a row")
    for condition in program.variant.conditions:
        if isinstance(condition, Fixed):
            _check_columns(group, [condition.column])
        elif isinstance(condition, CounterIs):
            _check_columns(group, [condition.counter, condition.keys])
    _check_columns(group, program.variant.dimensions)
    zeros = program.variant.zeros
    for columns in (*zeros.accepted, *zeros.rejected):
        _check_columns(group, columns)
    for place in (*program.variant.frozen, *program.never_own):
        _expect(place < len(group.layout.tensors), "a tensor")
    for place in program.variant.constant_scalars:
        _expect(place < len(group.layout.scalars), "a constant")
    for place in program.variant.open_floats:
        kinds = [one.kind for one in group.layout.scalars]
        _expect(place < len(kinds) and kinds[place] == "float", "a float")
    for completion in program.variant.completions.values():
        _check_completion(group, completion)
    _check_result(program)
    _expect(len(program.conditions.inputs) == len(program.plan.leaves), "its conditions")
    # The rules that decide about a call must be able to decide about a recorded one.
    program.rejects(rows[0])


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise TapeError("invalid", f"its manifest contradicts itself: {what}")


def _check_group(group: Group) -> None:
    layout = group.layout
    _expect(len(group.facts) == len(layout.tensors), "the facts of tensors")
    _expect(len(group.constants) == len(layout.others), "its constants")
    public = [place for place in layout.others if not place.private]
    _expect(len(group.key.constants) == len(public), "its constants")


def _check_columns(group: Group, columns: Iterable[Column]) -> None:
    for place, axis in columns:
        if axis is None:
            _expect(place < len(group.layout.ints), "an int")
        else:
            _expect(place < len(group.facts) and axis < group.facts[place].rank, "a dimension")


def _check_completion(group: Group, completion: Completion) -> None:
    """A completion makes a row of the group, from columns of it that the call has."""
    for parts in (completion.scalars, completion.constants):
        _expect(len(parts) == len(group.layout.scalars), "the scalars of a completion")
    _expect(len(completion.tensors) == len(group.facts), "the tensors of a completion")
    facts = completion.key.facts
    for place, at in enumerate(completion.tensors):
        if at is None:
            _expect(place in completion.missing, "a missing tensor")
            _expect(place in completion.dtypes, "the type of a missing tensor")
        else:
            _expect(at < len(facts), "a tensor of a completion")
            _expect(facts[at].rank == group.facts[place].rank, "the rank of a tensor")
    for place, sources in completion.missing.items():
        _expect(place < len(group.facts), "a missing tensor")
        _expect(completion.tensors[place] is None, "a missing tensor")
        _expect(len(sources) == group.facts[place].rank, "the rank of a missing tensor")
        columns = [c for s in sources for c in (s.column, s.less) if c is not None]
        _check_columns(group, columns)
        for column in columns:
            _expect(completion.tensors[column.index] is not None, "the size of a missing tensor")
            _expect(column.axis is not None, "the size of a missing tensor")
    for pair in completion.counting_ints.items():
        _check_columns(group, pair)


def _check_result(program: Program) -> None:
    template, form = program.result
    layout = template.layout
    _expect(len(template.scalars) == len(layout.scalars), "the scalars of its result")
    for scalar, (tensor, _) in template.counters.items():
        _expect(scalar < len(layout.scalars) and tensor < len(layout.tensors), "a counter")
    for leaf in form.leaves():
        places = layout.tensors if leaf.kind == "tensor" else layout.scalars
        _expect(leaf.index < len(places), "a leaf of its result")
