"""An exported model in its runtime: the interface that every runtime implements, and torch's own.

Code that checks, replays or verifies calls knows only this interface. It takes the inputs of a call
by name and returns the outputs, or the reason why the model would reject them.

Before torch 2.12 a verified program can silently return wrong results: it serves the other side of
``if mask.all()`` (2.9 to 2.11), or a size is wrong (2.6, 2.7). Recording and reading tapes work
with older versions.

``torch.export.save`` (2.15) cannot write ``math.floor``, ``math.ceil``, ``round`` and ``abs``,
which occur in conditions on floats and in returned numbers. Equivalent operators that it can write
replace them.
"""

from __future__ import annotations

import math
import operator
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.errors import UsageError
from calltape_analyzer.facts import Rejection
from calltape_analyzer.model.calls import without_autocast
from calltape_analyzer.programs.conditions import Conditions, Sized
from calltape_analyzer.programs.reasons import End
from calltape_analyzer.programs.untrusted_files import is_pt2, load_exported_program, require_trust

if TYPE_CHECKING:
    from torch.fx import Graph, Node
    from typing_extensions import Self

    from calltape_analyzer.tape import Tape

__all__ = [
    "NEEDED",
    "ConditionError",
    "ExportedModel",
    "TorchModel",
    "UnloadedModel",
    "require_torch",
    "write_numbers",
]


class ConditionError(RuntimeError):
    """A condition that a program has on the values of its inputs does not hold: it rejects them."""


class ExportedModel(ABC):
    """A model in one runtime. A new runtime is a subclass, and a line in ``loading.py``.

    Args:
        exported: the exporter's own object, or the path of its file.
        names: how :meth:`run` calls the inputs, in their order; by default as the exporter named
            them.

    Attributes:
        runtime: its name, for messages.
        suffix: of its files.
        is_code: whether loading a file of it runs code of the author.
        tolerances: how far its results may be from the recorded ones, if nobody asks for others.
        has_state: whether a run may change tensors that the next run sees: buffers of the model,
            and the inputs themselves.
        checks_conditions: whether it raises if a condition of its trace does not hold. A runtime
            that does not would compute something else instead.
    """

    runtime: ClassVar[str]
    suffix: ClassVar[str]
    is_code: ClassVar[bool] = False
    tolerances: ClassVar[Tolerances] = Tolerances()
    has_state: ClassVar[bool] = False
    checks_conditions: ClassVar[bool] = False

    def __init__(self, exported: Any, names: Sequence[str] | None = None) -> None:
        self.exported = exported

    @classmethod
    @abstractmethod
    def takes(cls, source: Any) -> bool:
        """Whether a path or an object is a model of this runtime. Nothing is read."""

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        names: Sequence[str] | None = None,
        *,
        trusted: bool = False,
    ) -> Self:
        """The model of a file that exists.

        Args:
            path: the file.
            names: as above.
            trusted: allows to run code of its author.

        Raises:
            UsageError: loading it runs code, and it is not trusted.
            TapeError: ``invalid`` if it is no such model.
        """
        return cls(os.fspath(path), names)

    @classmethod
    @contextmanager
    def opened(cls, source: Any, tape: Tape, *, trusted: bool, to_run: bool) -> Iterator[Self]:
        """The model of a path or an object, which is closed at the end.

        Args:
            source: a path or an object that :meth:`takes` accepts.
            tape: the calls that it is for.
            trusted: allows to run code of the author of a file.
            to_run: whether it will be run. Otherwise no more is loaded than :meth:`rejects` needs.

        Raises:
            UsageError, TapeError: as :meth:`from_file`, and of :meth:`open`.
        """
        is_path = isinstance(source, str | os.PathLike)
        model = cls.from_file(source, trusted=trusted) if is_path else cls(source)
        try:
            # What cannot be read is an error now, and not of the first call.
            if to_run:
                model.open()
            else:
                _ = model.input_names
            yield model
        finally:
            model.close()

    def open(self) -> None:  # noqa: B027 - many runtimes have nothing to load
        """Loads what :meth:`run` needs, so that an error of loading is not one of the first run.

        Raises:
            TapeError: ``invalid`` if the runtime cannot load the file.
        """

    def after_fork(self) -> None:  # noqa: B027
        """Forgets what does not outlive a fork, in which it is called: threads of a runtime."""

    def close(self) -> None:  # noqa: B027
        """Gives back what :meth:`open` took, such as temporary files."""

    @property
    def module(self) -> Any:
        """The ``torch.nn.Module`` whose buffers a run may change; None if a run changes nothing."""
        return None

    @property
    @abstractmethod
    def input_names(self) -> Sequence[str]:
        """The inputs that a call must bring: tensors and ints."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs, in their order: tensors and numbers.

        Args:
            inputs: tensors and ints by name. A name that is no input of the model is ignored,
                because exporters leave out what a program does not use.
        """

    def named(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What the file takes, by its own names and in its order.

        Args:
            inputs: as :meth:`run` takes them.
        """
        return {name: inputs[name] for name in self.input_names}

    def crash(self, inputs: Mapping[str, Any], seconds: float) -> End | None:
        """How a run would end the process that it is in; None if it would not. A runtime that
        raises errors in its place never does.

        Args:
            inputs: as :meth:`run` takes them.
            seconds: how long it may take to find out.
        """
        return None

    def rejects(self, sizes: Mapping[str, Sized | int]) -> Rejection | None:
        """Why the model would not take inputs; None if it would, as far as it declares. Nothing is
        run.

        Args:
            sizes: per input name the dtype and shape of a tensor, or an int.
        """
        return None

    def save(self, path: Path) -> None:
        """Writes the model into a file that does not exist.

        Raises:
            UsageError: models of this runtime cannot be saved.
        """
        raise UsageError(f"a model for {self.runtime} cannot be saved")


class UnloadedModel(ExportedModel):
    """A program that was not loaded: only what its manifest says of it is known."""

    runtime = "nothing"
    suffix = ""

    @classmethod
    def takes(cls, source: Any) -> bool:
        return False

    @property
    def input_names(self) -> Sequence[str]:
        raise UsageError(f"{self.exported} was not loaded", advice="see load_programs")

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        raise UsageError(f"{self.exported} was not loaded", advice="see load_programs")


NEEDED = (2, 12)
"""What exports are tested with, and newer (docs/versions.md)."""


def require_torch() -> None:
    """Rejects a torch that is too old for programs. A build between two releases
    (``2.12.0a0+git1234``) counts as the later release.

    Raises:
        UsageError: it is too old; says what is installed, and what is needed.
    """
    import torch

    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version is not None and (int(version[1]), int(version[2])) < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise UsageError(
            f"torch {torch.__version__} is installed, and exported programs need {needed} or "
            "newer: with an older one they can give wrong results with no word",
            advice=f"install torch {needed} or newer here, or export on another machine; "
            "recording and reading tapes work with this one",
        )


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
        require_trust(path, trusted)
        return cls(load_exported_program(path, trusted=trusted), names)

    @classmethod
    @contextmanager
    def opened(cls, source: Any, tape: Tape, *, trusted: bool, to_run: bool) -> Iterator[Self]:
        require_torch()
        is_path = isinstance(source, str | os.PathLike)
        if is_path:
            require_trust(source, trusted)
        with ExitStack() as stack:
            if is_path or to_run:
                # A program of classes needs these registered to be loaded and called.
                from calltape_analyzer.pytree.registration import register_flattening_functions

                stack.enter_context(register_flattening_functions(tape=tape))
            yield cls.from_file(source, trusted=trusted) if is_path else cls(source)

    @property
    def module(self) -> Any:
        """What is called, made when it is first needed. It has the program's buffers."""
        return self._module

    @cached_property
    def _module(self) -> Any:
        return self.exported.module()

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
    def conditions(self) -> Conditions:
        """The guards of the program."""
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
        return self.conditions.reject(values, self._arguments(values))

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

        write_numbers(self.exported.graph)
        inputs, self.exported._example_inputs = self.exported._example_inputs, None
        try:
            torch.export.save(self.exported, str(path))
        finally:
            self.exported._example_inputs = inputs


def write_numbers(graph: Graph) -> None:
    """Replaces the functions in a graph that torch cannot save by others with the same results."""
    for node in list(graph.nodes):
        replacement = _REPLACEMENTS.get(node.target) if node.op == "call_function" else None
        if replacement is None or any(arg is not None for arg in node.args[1:]) or node.kwargs:
            continue  # round(x, 2) is correct to the last bit, which nothing else gives
        with graph.inserting_before(node):
            new = replacement(_GraphWriter(graph), node.args[0])
        # torch cannot read the bounds of what is rounded, if that is a symbol alone.
        new.meta["val"] = node.target(1.0 * node.args[0].meta["val"])
        node.replace_all_uses_with(new)
        _update_values(graph, new)
        graph.erase_node(node)
        new.name = node.name  # it may be an output, which the program knows by its name


def _update_values(graph: Graph, changed: Node) -> None:
    """Computes the values of all nodes that depend on a changed one again."""
    from torch._ops import OpOverload

    updated = {changed}
    for node in graph.nodes:
        of_python = node.op == "call_function" and not isinstance(node.target, OpOverload)
        if of_python and not updated.isdisjoint(node.all_input_nodes):
            updated.add(node)
            node.meta["val"] = node.target(*_values(node.args))


def _values(args: Iterable[Any]) -> list[Any]:
    from torch.fx import Node

    return [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]


class _GraphWriter:
    """Adds calls of functions to a graph, at its insertion point."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        node = self._graph.call_function(function, args)
        node.meta["val"] = function(*_values(args))
        return node

    def either(self, condition: Node, one: Any, other: Any) -> Node:
        import torch

        return self(torch.sym_ite, condition, one, other)  # type: ignore[no-any-return]


def _floor(write: _GraphWriter, x: Node) -> Node:
    whole = write(math.trunc, x)
    return write.either(write(operator.gt, whole, x), write(operator.sub, whole, 1), whole)


def _ceil(write: _GraphWriter, x: Node) -> Node:
    whole = write(math.trunc, x)
    return write.either(write(operator.lt, whole, x), write(operator.add, whole, 1), whole)


def _round(write: _GraphWriter, x: Node) -> Node:
    """To the nearest int; to an even one if two are as near."""
    below = _floor(write, x)
    above = write(operator.add, below, 1)
    even = write(operator.add, below, write(operator.mod, below, 2))
    rest = write(operator.sub, x, below)  # exact
    near = write.either(write(operator.gt, rest, 0.5), above, even)
    return write.either(write(operator.lt, rest, 0.5), below, near)


def _abs(write: _GraphWriter, x: Node) -> Node:
    return write.either(write(operator.lt, x, 0), write(operator.neg, x), x)


_REPLACEMENTS: dict[Any, Callable[[_GraphWriter, Node], Node]] = {
    math.floor: _floor, math.ceil: _ceil, round: _round, abs: _abs, operator.abs: _abs,
}  # fmt: skip
