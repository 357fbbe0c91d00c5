"""A ``torch.export.ExportedProgram``, run and checked by the names of its inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calltape_analyzer.facts import Rejection
from calltape_analyzer.model.calls import without_autocast
from calltape_analyzer.programs.conditions import Conditions, Sized
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.torch_version import demand_torch
from calltape_analyzer.programs.untrusted_files import demand_trust, is_pt2, load_exported_program

if TYPE_CHECKING:
    from typing_extensions import Self

    from calltape_analyzer.tape import Tape

__all__ = ["TorchModel"]


class TorchModel(ExportedModel):
    """Runs a ``torch.export.ExportedProgram``, which has the buffers of the model that it was made
    of, may write to them and to its inputs, and checks its own conditions."""

    runtime = "torch"
    suffix = ".pt2"
    is_code = True
    has_state = True
    checks_conditions = True

    def __init__(self, exported: Any, names: Sequence[str] | None = None) -> None:
        super().__init__(exported, names)
        self._names = names
        self._module: Any = None

    @classmethod
    def takes(cls, source: Any) -> bool:
        """Whether it is a ``.pt2`` file, or a program."""
        if isinstance(source, str | os.PathLike):
            return is_pt2(source)
        return hasattr(source, "graph_signature")

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        names: Sequence[str] | None = None,
        *,
        trusted: bool = False,
    ) -> Self:
        demand_trust(path, trusted)
        return cls(load_exported_program(path, trusted=trusted), names)

    @classmethod
    @contextmanager
    def opened(cls, source: Any, tape: Tape, *, trusted: bool, to_run: bool) -> Iterator[Self]:
        demand_torch()
        is_path = isinstance(source, str | os.PathLike)
        if is_path:
            demand_trust(source, trusted)
        with ExitStack() as stack:
            if is_path or to_run:
                # A program of classes needs these registered to be loaded and called.
                from calltape_analyzer.pytree.registration import register_flattening_functions

                stack.enter_context(register_flattening_functions(tape=tape))
            yield cls.from_file(source, trusted=trusted) if is_path else cls(source)

    @property
    def module(self) -> Any:
        """What is called, made when it is first needed. It has the program's buffers."""
        if self._module is None:
            self._module = self.exported.module()
        return self._module

    @cached_property
    def _inputs(self) -> dict[str, Any]:
        """All inputs by name, each with the arguments of the graph that it is."""
        specs = [
            spec.arg
            for spec in self.exported.graph_signature.input_specs
            if spec.kind.name == "USER_INPUT"
        ]
        names = self._names or [arg.name for arg in specs]
        return dict(zip(names, specs, strict=True))

    @cached_property
    def _nesting(self) -> Any:
        """torch's spec of ``(args, kwargs)``, which it makes anew whenever it is asked for."""
        return self.exported.call_spec.in_spec

    @cached_property
    def _conditions(self) -> Conditions:
        return Conditions.of(self.exported, list(self._inputs))

    @property
    def input_names(self) -> Sequence[str]:
        return [
            name
            for name, arg in self._inputs.items()
            if type(arg).__name__ != "ConstantArgument"
        ]  # fmt: skip

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        import torch
        from torch.utils import _pytree as pytree

        flat = self._flat(inputs)
        args, kwargs = pytree.tree_unflatten(flat, self._nesting)
        with without_autocast(), torch.no_grad():
            returned = self.module(*args, **kwargs)
        leaves = pytree.tree_leaves(returned)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor | int | float)]

    def _flat(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The inputs in order, with the program's own value for a constant that is not given."""
        return [
            inputs[name] if name in inputs else getattr(arg, "value", None)
            for name, arg in self._inputs.items()
        ]

    def rejects(self, sizes: Mapping[str, Sized | int]) -> Rejection | None:
        values = self._flat(sizes)
        return self._conditions.reject(values, self._arguments(values))

    def _arguments(self, values: Sequence[Any]) -> dict[str, Any]:
        """The inputs by parameter, nested as the program takes them, as far as its spec names
        them."""
        import inspect

        from torch.utils import _pytree as pytree

        try:
            args, kwargs = pytree.tree_unflatten(list(values), self._nesting)
            names = list(inspect.signature(self.module.forward).parameters)
            return dict(zip(names, args, strict=False)) | dict(kwargs)
        except Exception:  # a class of its own in the spec: conditions on it are not evaluated
            return {}

    def save(self, path: Path) -> None:
        """Writes a ``.pt2``, without the values that it was traced with: they come from recorded
        calls, which may be private."""
        import torch

        from calltape_analyzer.programs.written_numbers import write_numbers

        write_numbers(self.exported.graph)
        inputs, self.exported._example_inputs = self.exported._example_inputs, None
        try:
            torch.export.save(self.exported, str(path))
        finally:
            self.exported._example_inputs = inputs
