"""Whether an exported model would have accepted the traffic on a tape, without running it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from calltape_analyzer.call import Call
from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.exporting.manifest import within_manifest
from calltape_analyzer.feeding import constant_inputs, input_names_of, matched
from calltape_analyzer.gathering import Gatherer, Sorted
from calltape_analyzer.names import is_state
from calltape_analyzer.printable import printable
from calltape_analyzer.results import ABSENT, Unknown, values_in
from calltape_analyzer.trust import demand_trust, exported_program, is_pt2, onnx_model

if TYPE_CHECKING:
    from calltape_analyzer.exporting.programs import Programs
    from calltape_analyzer.tape import Tape

__all__ = ["CheckReport", "CheckRow", "Refusal", "check"]


class Refusal(NamedTuple):
    """Why a call is refused, and the declared dimension that is in the way, if it is one."""

    reason: str
    dimension: str | None = None


@dataclass(frozen=True)
class CheckRow:
    """One recorded call: whether it would be accepted, by which variant, and else why not.
    ``dimension`` names the declared dimension that is in the way (``input_ids[1]``)."""

    call: int
    accepted: bool
    variant: str | None = None
    reason: str | None = None
    dimension: str | None = None


@dataclass
class CheckReport:
    """A row per call. True in a condition where all are accepted. ``notes`` say what nobody can
    verify about the results."""

    rows: list[CheckRow]
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether every call would be accepted, and there is one."""
        return bool(self.rows) and all(row.accepted for row in self.rows)

    @property
    def summary(self) -> str:
        """One line: how many calls would be accepted, and what is most in the way."""
        accepted = sum(row.accepted for row in self.rows)
        text = f"{accepted} of {len(self.rows)} recorded calls would be accepted"
        ways = Counter(row.dimension or row.reason for row in self.rows if not row.accepted)
        if not ways:
            return text
        return f"{text}; in the way: " + ", ".join(f"{w} ({n})" for w, n in ways.most_common(5))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        rows = [asdict(row) for row in self.rows]
        return {"ok": self.ok, "summary": self.summary, "notes": list(self.notes), "rows": rows}

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.as_dict(), indent=2)

    def table(self) -> str:
        """A line per call that would be refused, and the summary."""
        refused = [row for row in self.rows if not row.accepted]
        lines = [f"call {r.call}: {r.dimension or 'refused'}: {r.reason}" for r in refused]
        return "\n".join(map(printable, [*lines, *self.notes, self.summary]))

    __str__ = table


Judge = Callable[[Call, Sorted], "tuple[str | None, Refusal | None]"]


def check(tape: Tape, exported_model: Any, *, trusted: bool = False) -> CheckReport:
    """Whether a model would have accepted the calls on a tape: its declared inputs, dimensions and
    conditions are compared with what was recorded. Nothing is run, no tensor bytes are read.

    Args:
        tape: the traffic. Calls that raised are left out.
        exported_model: an ``.onnx`` or ``.pt2`` file, an ``onnx.ModelProto``, a
            ``torch.onnx.ONNXProgram``, a ``torch.export.ExportedProgram``, :class:`Programs`, or a
            directory that they were saved in, of which only the manifest is read.
        trusted: loads a ``.pt2``, which runs code of its author.

    Returns:
        A report, true where every call would be accepted.

    Raises:
        UsageError: the model is none of these, or a ``.pt2`` that is not trusted.
        TapeError: it cannot be read.
    """
    gatherer = Gatherer.of(tape)
    judge = _judge(tape, exported_model, trusted)
    known: dict[Any, tuple[str | None, Refusal | None]] = {}
    rows: list[CheckRow] = []
    for call in tape.calls:
        if call.record.error is not None:
            continue
        inputs = call.record.inputs
        key = (inputs.structure, inputs.leaves, tuple(map(repr, inputs.scalars)))
        if key not in known:
            try:
                known[key] = judge(call, gatherer.sorted(inputs))
            except TapeError as error:
                known[key] = (None, Refusal(error.reason))
        variant, refusal = known[key]
        rows.append(
            CheckRow(call.number, refusal is None, variant, *(refusal or Refusal("")))
            if refusal is not None
            else CheckRow(call.number, True, variant)
        )
    notes = _unverifiable(tape)
    if raised := len(tape.calls) - len(rows):
        notes.append(f"{raised} calls raised and are left out")
    return CheckReport(rows, notes)


def _unverifiable(tape: Tape) -> list[str]:
    """The parts of recorded outputs that nothing can be compared with, each once."""
    found: dict[str, None] = {}
    known: set[bytes] = set()
    for call in tape.calls:
        tree = call.record.outputs
        if tree is None or tree.structure in known:
            continue
        known.add(tree.structure)
        parts = values_in(tree.spec().root, lambda _: ABSENT, tree.scalars.__getitem__)
        for path, part in parts.items():
            if not isinstance(part, Unknown) or part.is_withheld or len(found) == _MAX_NOTES:
                continue
            found[f"not verified: outputs{path} {part}"] = None
    return list(found)


_MAX_NOTES = 5


def _judge(tape: Tape, model: Any, trusted: bool) -> Judge:
    if isinstance(model, str | os.PathLike):
        return _file_judge(tape, os.fspath(model), trusted)
    if hasattr(model, "accepting"):
        return _programs_judge(model, tape)
    if hasattr(model, "graph_signature"):
        return _exported_judge(model)
    proto = getattr(model, "model_proto", model)
    if hasattr(proto, "graph"):
        return _onnx_judge(proto)
    raise UsageError(f"a {type(model).__name__} is no exported model", advice="see help(check)")


def _file_judge(tape: Tape, path: str, trusted: bool) -> Judge:
    if os.path.isdir(path):
        from calltape_analyzer.exporting.loading import declared_programs

        judge = _programs_judge(declared_programs(path, classes=tape.class_index.by_name), tape)
        return lambda call, placed: within_manifest(path, lambda: judge(call, placed))
    if not os.path.exists(path):
        raise TapeError("not_found", "no such file", path=path)
    if not is_pt2(path):
        return _onnx_judge(onnx_model(path))
    demand_trust(path, trusted)
    from calltape_analyzer.registration import register_flattening_functions

    with register_flattening_functions(tape=tape):
        return _exported_judge(exported_program(path, trusted=trusted))


def _programs_judge(programs: Programs, tape: Tape) -> Judge:
    without = tape.removed

    def judge(call: Call, _: Sorted) -> tuple[str | None, Refusal | None]:
        # They know without which arguments they were made.
        placed = programs.gatherer.sorted(call.record.inputs)
        found, reasons = programs.for_sizes(placed, without)
        if found is not None:
            return found, None
        text = "; ".join(f"{name}: {why}" for name, why in reasons.items())
        return None, Refusal(text, next(filter(None, map(dimension_in, reasons.values())), None))

    return judge


def _exported_judge(program: Any) -> Judge:
    from calltape_analyzer.exporting.conditions import Conditions, Sized

    constants = constant_inputs(program)
    names = input_names_of(program)
    conditions = Conditions.of(program, list(constants))

    def judge(_: Call, placed: Sorted) -> tuple[str | None, Refusal | None]:
        try:
            places = matched(names, placed.layout)
        except InferenceError as error:
            return None, Refusal(error.reason)
        scalars = enumerate(placed.layout.scalars)
        ints = {i: at for at, i in enumerate(i for i, p in scalars if p.kind == "int")}
        leaves: list[Any] = []
        for name, constant in constants.items():
            kind, place = places.get(name, ("constant", 0))
            if kind == "tensor":
                leaves.append(Sized(placed.facts[place].dtype, placed.row.shapes[place]))
            else:
                is_int = kind == "int"
                leaves.append(placed.row.ints[ints[place]] if is_int else constant)
        reason = conditions.refuse(leaves, _named(program, leaves)) or _unfed(placed, places)
        return None, None if reason is None else Refusal(reason, dimension_in(reason))

    return judge


def _named(program: Any, leaves: Sequence[Any]) -> dict[str, Any]:
    """The inputs in the nesting of the program's arguments, by parameter, as far as its spec names
    them."""
    from torch.utils import _pytree as pytree

    try:
        args, kwargs = pytree.tree_unflatten(list(leaves), program.call_spec.in_spec)
        import inspect

        names = list(inspect.signature(program.module().forward).parameters)
        return dict(zip(names, args, strict=False)) | dict(kwargs)
    except Exception:  # a class of its own in the spec: its conditions are not asked
        return {}


def _unfed(placed: Sorted, places: Mapping[str, tuple[str, int]]) -> str | None:
    """A state that the call brings and the model does not take: it would compute something else. Of
    other arguments an exporter leaves out those that the model does not use."""
    used = {placed.layout.tensors[at].argument for kind, at in places.values() if kind == "tensor"}
    filled = {place.argument for place in placed.layout.tensors}
    for name, node in placed.layout.nodes.items():
        if name in filled and name not in used and is_state(name, node):
            return f"the call has a filled {name}, which is not an input of the model"
    return None


# A word is taken once and as a whole: one expression for all of it would begin at every dot of
# ``a.a.a`` and read to the end each time.
_WORD = re.compile(r"[\w.]+")
_INDICES = re.compile(r"(?:\[\d+\])+")


def dimension_in(reason: str) -> str | None:
    """The dimension that a condition is about, as ``input_ids[1]``."""
    for word in _WORD.finditer(reason):
        indices = _INDICES.match(reason, word.end())
        named = _NAME_IN.search(word[0]) if indices is not None else None
        if named is not None and indices is not None:
            return named[0] + indices[0]
    return None


# From the first letter that begins a word: ``3.x`` is no name, and ``x`` in it is one.
_NAME_IN = re.compile(r"\b[A-Za-z_][\w.]*")


def _onnx_judge(proto: Any) -> Judge:
    initial = {one.name for one in proto.graph.initializer}
    inputs = [one for one in proto.graph.input if one.name not in initial]
    names = [one.name for one in inputs]

    def judge(_: Call, placed: Sorted) -> tuple[str | None, Refusal | None]:
        try:
            places = matched(names, placed.layout)
        except InferenceError as error:
            return None, Refusal(error.reason)
        bound: dict[str, tuple[int, str]] = {}
        for one in inputs:
            kind, place = places[one.name]
            shape = placed.row.shapes[place] if kind == "tensor" else ()
            dtype = placed.facts[place].dtype if kind == "tensor" else "int64"
            refusal = _declared(one, dtype, shape, bound)
            if refusal is not None:
                return None, refusal
        unfed = _unfed(placed, places)
        return None, None if unfed is None else Refusal(unfed)

    return judge


def _declared(
    value: Any, dtype: str, shape: Sequence[int], bound: dict[str, tuple[int, str]]
) -> Refusal | None:
    """What an input's declaration says against a tensor. ``bound`` keeps the sizes that named
    dimensions have in this call; ONNX Runtime wants them to be one."""
    declared = value.type.tensor_type
    wanted = _onnx_dtype(declared.elem_type)
    if wanted is not None and wanted != dtype:
        return Refusal(f"{value.name} is {dtype}; the model takes {wanted}")
    if not declared.HasField("shape"):
        return None
    dims = list(declared.shape.dim)
    if len(dims) != len(shape):
        return Refusal(f"{value.name} has rank {len(shape)}; the model takes {len(dims)}")
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        where = f"{value.name}[{axis}]"
        if dim.HasField("dim_value") and dim.dim_value != size:
            return Refusal(f"{where} is {size}; the model takes {dim.dim_value}", where)
        if dim.dim_param and dim.dim_param.isidentifier():
            known = bound.setdefault(dim.dim_param, (size, where))
            if known[0] != size:
                reason = f"{where} is {size} and {known[1]} is {known[0]}, both {dim.dim_param}"
                return Refusal(reason, where)
    return None


def _onnx_dtype(elem_type: int) -> str | None:
    import onnx

    try:
        name = onnx.TensorProto.DataType.Name(elem_type).lower()
    except ValueError:
        return None
    names = {"float": "float32", "double": "float64", "undefined": None}
    return names.get(name, name)
