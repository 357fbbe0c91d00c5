"""Recorded calls as the flat inputs of an exported model, by the names of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calltape_analyzer.call import Call
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.layout import Layout
from calltape_analyzer.results import Returned, Unknown, values_in
from calltape_analyzer.samples import recorded_sample

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["ExportedRunner", "OnnxRunner", "constant_inputs", "input_names_of", "matched"]


def matched(names: Sequence[str], layout: Layout) -> dict[str, tuple[str, int]]:
    """Which tensor or int of a layout is which input of a model.

    By name where the names tell it (``past_key_values_layers_0_keys``, or an argument and the
    number of the tensor in it), because an exporter leaves out what the program does not use; by
    order otherwise, where the numbers are the same.

    Returns:
        Per input ``("tensor" or "int", place)``.

    Raises:
        InferenceError: neither is possible.
    """
    from calltape_analyzer.exporting.plan import identifier

    known: dict[str, tuple[str, int]] = {}
    counts: dict[str, int] = {}
    every = [("tensor", i, place) for i, place in enumerate(layout.tensors)]
    every += [("int", i, p) for i, p in enumerate(layout.scalars) if p.kind == "int"]
    for kind, i, place in every:
        at = counts[place.argument] = counts.get(place.argument, -1) + 1
        for name in (identifier(str(place)), f"{identifier(place.argument)}_{at}"):
            known.setdefault(name, (kind, i))
    found = {name: known.get(name) or known.get(name.removesuffix("_orig")) for name in names}
    if all(found.values()):
        return {name: value for name, value in found.items() if value is not None}
    if len(names) != len(layout.tensors):
        missing = [name for name, value in found.items() if value is None]
        raise InferenceError(
            f"the model's inputs {', '.join(missing[:5])} are not in the call, which has "
            f"{len(layout.tensors)} tensors for {len(names)} inputs",
            advice="export with the arguments and shapes of these calls",
        )
    return {name: ("tensor", i) for i, name in enumerate(names)}


class OnnxRunner:
    """Runs recorded calls in ONNX Runtime."""

    def __init__(self, tape: Tape, model: Any) -> None:
        from calltape_analyzer.discrepancies import open_session

        self._gatherer = Gatherer.of(tape)
        if hasattr(model, "run_with_ort_values"):
            self._session, self._release = model, _nothing
        else:
            self._session, self._release = open_session(model, None)
        self._names = [known.name for known in self._session.get_inputs()]

    def close(self) -> None:
        """Lets go of temporary files."""
        self._release()

    def __call__(self, call: Call) -> Returned:
        """The outputs by the paths that the recorded ones have, in their order.

        Raises:
            InferenceError: the model has other inputs or outputs than the call.
        """
        import torch

        from calltape_analyzer.discrepancies import run

        layout = self._gatherer.sorted(call.record.inputs).layout
        sample = recorded_sample(call, self._gatherer)
        feeds: dict[str, Any] = {}
        for name, (kind, place) in matched(self._names, layout).items():
            value = (sample.tensors if kind == "tensor" else sample.scalars)[place]
            feeds[name] = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        return _by_path(run(self._session, feeds), call)


class ExportedRunner:
    """Runs recorded calls in a ``torch.export.ExportedProgram``, whose inputs may be nested in
    another way than the call's."""

    def __init__(self, tape: Tape, program: Any) -> None:
        self._gatherer = Gatherer.of(tape)
        self._program = program
        self._module = program.module()

    def __call__(self, call: Call) -> Returned:
        """The outputs by the paths that the recorded ones have, in their order.

        Raises:
            InferenceError: the program has other inputs or outputs than the call.
        """
        import torch
        from torch.utils import _pytree as pytree

        layout = self._gatherer.sorted(call.record.inputs).layout
        sample = recorded_sample(call, self._gatherer)
        places = matched(input_names_of(self._program), layout)
        constants = constant_inputs(self._program)
        flat = []
        for name, constant in constants.items():
            kind, place = places.get(name, ("constant", 0))
            values = sample.tensors if kind == "tensor" else sample.scalars
            flat.append(constant if kind == "constant" else values[place])
        args, kwargs = pytree.tree_unflatten(flat, self._program.call_spec.in_spec)
        with torch.no_grad():
            returned = self._module(*args, **kwargs)
        leaves = [leaf for leaf in pytree.tree_leaves(returned) if leaf is not None]
        return _by_path([x for x in leaves if isinstance(x, torch.Tensor | int | float)], call)


def constant_inputs(program: Any) -> dict[str, Any]:
    """The inputs of an exported program by name, with their value where it is a constant."""
    found: dict[str, Any] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            found[spec.arg.name] = getattr(spec.arg, "value", None)
    return found


def input_names_of(program: Any) -> list[str]:
    """The names of the inputs that are tensors or ints."""
    return [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind.name == "USER_INPUT" and type(spec.arg).__name__ != "ConstantArgument"
    ]


def _nothing() -> None:
    pass


def _by_path(outputs: Sequence[Any], call: Call) -> Returned:
    """Flat outputs by the paths of what was recorded: all its tensors, its tensors and ints, or its
    tensors and numbers, whichever are as many. What else was recorded is not returned by the model:
    it is not taken for granted, but left out of the comparison."""
    tree = call.record.outputs
    if tree is None:
        raise InferenceError("the outputs of the call are not on the tape")
    every = values_in(tree.spec().root, lambda _: _TENSOR, tree.scalars.__getitem__)
    for kinds in ((), (int,), (int, float, bool)):
        paths = [path for path, one in every.items() if one is _TENSOR or type(one) in kinds]
        if len(paths) == len(outputs):
            fed = dict(zip(paths, outputs, strict=True))
            rest = [p for p, v in every.items() if p not in fed and not isinstance(v, Unknown)]
            return Returned(fed, frozenset(rest))
    tensors = sum(one is _TENSOR for one in every.values())
    raise InferenceError(
        f"the model has {len(outputs)} outputs, and the call returned {tensors} tensors"
    )


_TENSOR = object()
