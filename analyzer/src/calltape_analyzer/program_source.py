"""What a `Tape` and a `Variant` both offer: their calls as one program.

Takes recorded calls, and what the caller declares of them: batch dimensions, and names of
dimensions; returns the two things that an exporter asks for: dynamic shapes, and arguments to trace
with. Parameters, forms of the results and errors are documented here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeAlias, overload

from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.pytree.rendering import Inputs

__all__ = [
    "BatchFor",
    "DimKind",
    "DimNames",
    "GivenArguments",
    "MemoryLayout",
    "ProgramSource",
    "as_one",
    "check_arguments",
    "check_batch",
    "check_dim_names",
    "check_form_of_dim_names",
    "is_declared_batch",
]


BatchFor: TypeAlias = "set[int | str] | bool | None"
"""The arguments (names, positions, or True for all) whose dimension 0 is declared dynamic."""

DimNames: TypeAlias = "Mapping[int | str, Mapping[int, str]] | bool | None"
"""None for Dim.DYNAMIC, True for readable shared names, or names by argument and axis."""


def check_arguments(what: str, names: Any) -> None:
    """Raises UsageError if ``names`` is not a collection of names and positions of arguments;
    ``what`` says to which parameter it was passed."""
    is_collection = isinstance(names, Collection) and not isinstance(names, str | bytes)
    if not is_collection or not all(_is_key(name) for name in names):
        example = names if _is_key(names) else "x"
        raise UsageError(
            f"{what} takes names or positions of arguments, not {names!r}",
            advice=f"pass a list, such as [{example!r}]",
        )


def check_batch(declared: Any, arguments: Collection[Key] | None = None) -> None:
    """Raises UsageError if this is not None, a bool or a collection of names and positions, or
    names an argument that is not among ``arguments``, if these are given."""
    if declared is None or isinstance(declared, bool):
        return
    check_arguments("set_batch_dimension_for", declared)
    for key in declared if arguments is not None else ():
        if isinstance(key, str):
            _check_known("set_batch_dimension_for", key, arguments or ())


def _check_known(what: str, key: Key, arguments: Collection[Key]) -> None:
    if key not in arguments:
        shown = ", ".join(name for name in sorted(map(str, arguments)) if not name.isdigit())
        raise UsageError(
            f"{what} has {key!r}, which is not an argument", advice=f"name one of {shown}"
        )


def is_declared_batch(key: Key, declared: BatchFor, signature: Signature) -> bool:
    """Whether dimension 0 of an argument was declared dynamic: by its name, or, if it was passed by
    position, by the position too (the rule of ``torch.onnx.InputObserver``)."""
    if not declared:
        return False
    check_batch(declared)
    if isinstance(declared, bool) or key in declared:
        return True
    return isinstance(key, int) and signature.parameter(key) in declared


def check_dim_names(names: Any, arguments: Collection[Key]) -> None:
    """Raises UsageError if this is not None, a bool or ``{argument: {axis: name}}``, or names an
    argument that is not among ``arguments``."""
    check_form_of_dim_names(names)
    for key in names if isinstance(names, Mapping) else ():
        _check_known("dim_names", key, arguments)


def check_form_of_dim_names(names: Any) -> None:
    """Raises UsageError if this is not None, a bool or ``{argument: {axis: name}}``."""
    if names is None or isinstance(names, bool):
        return
    if not isinstance(names, Mapping) or not all(_is_axis_names(n) for n in names.values()):
        raise UsageError(
            f"dim_names is {names!r}, which does not name dimensions",
            advice="pass True, or names by argument and axis, such as {'x': {0: 'batch'}}",
        )


def _is_key(name: Any) -> bool:
    return isinstance(name, int | str) and not isinstance(name, bool)


def _is_axis_names(names: Any) -> bool:
    return isinstance(names, Mapping) and all(
        isinstance(axis, int) and isinstance(name, str) for axis, name in names.items()
    )


DimKind: TypeAlias = "Literal['auto', 'dynamic', 'names']"
"""What stands for a dynamic dimension: ``Dim.AUTO``, ``Dim.DYNAMIC``, or a name."""

MemoryLayout: TypeAlias = "Literal['recorded', 'contiguous']"
"""How the tensors of arguments lie in memory."""

GivenArguments: TypeAlias = "int | tuple[Any, ...] | Mapping[str, Any] | None"
"""The position of a call, or arguments of the caller's own; None for representative ones."""


class ProgramSource(ABC):
    """Calls that are to become one program: all calls of a tape, or those of one variant."""

    @bounded()
    def infer_dynamic_shapes(
        self,
        set_batch_dimension_for: BatchFor = None,
        dim_names: DimNames = None,
        *,
        dim: DimKind | None = None,
    ) -> tuple[Any, ...] | dict[str, Any]:
        """What ``torch.export.export(dynamic_shapes=...)`` takes. Reads no tensor bytes.

        Args:
            set_batch_dimension_for: names or positions of arguments whose dimension 0 is declared
                dynamic although it never varied; True for all.
            dim_names: True for readable names, which dimensions share that were always equal; or
                a mapping from argument (name or position) to ``{axis: name}``.
            dim: what stands for a dynamic dimension that has no name. ``"auto"`` is
                ``torch.export.Dim.AUTO``, with which most exports succeed (rule 3 of
                docs/decisions/export-strategies.md); ``"dynamic"`` is ``Dim.DYNAMIC``, with which
                an export fails that would make a dimension constant that varied; ``"names"`` is
                the same as ``dim_names=True``. By default a tape gives ``"dynamic"``, as
                ``torch.onnx.InputObserver`` does, and a variant ``"auto"``
                (docs/decisions/variants-and-shapes.md).

        Returns:
            A tuple if all arguments are positional, else a dict in the order of the signature, in
            the nesting of the arguments. Per tensor ``{axis: dim}`` with its dynamic axes, per int
            that varied ``Dim.DYNAMIC`` or ``Dim.AUTO``, and None for what is constant.

        Raises:
            InferenceError: there are no calls, or they cannot be one program; says which differ in
                what, and which :meth:`Tape.variants` can be asked instead.
            UsageError: for a name, a position or a ``dim`` that does not fit the calls.
        """
        if dim not in (None, "auto", "dynamic", "names"):
            raise UsageError(f"dim={dim!r}", advice='pass "auto", "dynamic" or "names"')
        return self._dynamic_shapes(set_batch_dimension_for, dim_names, dim)

    @overload
    def infer_arguments(
        self,
        index: GivenArguments = None,
        *,
        as_args_kwargs: Literal[True] = True,
        device: Any = None,
        layout: MemoryLayout | None = None,
    ) -> Inputs: ...

    @overload
    def infer_arguments(
        self,
        index: GivenArguments = None,
        *,
        as_args_kwargs: bool,
        device: Any = None,
        layout: MemoryLayout | None = None,
    ) -> Inputs | tuple[Any, ...] | dict[str, Any]: ...

    @bounded()
    def infer_arguments(
        self,
        index: GivenArguments = None,
        *,
        as_args_kwargs: bool = True,
        device: Any = None,
        layout: MemoryLayout | None = None,
    ) -> Inputs | tuple[Any, ...] | dict[str, Any]:
        """Arguments to trace a program with.

        They are of a recorded call whose dynamic sizes are all at least 2 and pairwise different,
        else of one that is resized to be so by cyclic tiling; dimensions that were always equal,
        and sums that always held, stay so (rule 4 of docs/decisions/export-strategies.md). Values
        that are not on the tape are made up within their recorded ranges. Those of a tape with
        several variants are of a recorded call that has all arguments, with its sizes.

        Args:
            index: None for representative arguments; a position among the calls (of the tape, or of
                the variant) for the arguments of that call, in which a tensor that only other
                calls of the tape have is zeros, or empty; or arguments of the caller's own, a tuple
                or a dict by name, to be completed by the constants that all calls pass.
            as_args_kwargs: False gives the form of ``torch.onnx.InputObserver``: a tuple if all
                arguments are positional, else a dict by parameter name.
            device: where the tensors are made; the CPU by default.
            layout: how the tensors lie in memory: ``"recorded"`` as they lay, with their strides
                and what shares memory; ``"contiguous"`` without gaps, in the order of their axes. A
                backend that compiles for one layout and does not look at that of its inputs
                (AOTInductor) needs the same for all calls. By default the arguments of a recorded
                call are as recorded, and representative ones contiguous.

        Returns:
            ``(args, kwargs)``, also by these names: ``model(*found.args, **found.kwargs)``. It is
            the form of :attr:`Call.inputs <calltape_analyzer.Call.inputs>`.

        Raises:
            InferenceError: there are no calls, or they cannot be one program; there is no such
                call; an argument holds an object of a class that is not known here; or ``*args``
                leaves no form but ``(args, kwargs)``.
            UsageError: for an ``index`` or a value that does not fit the calls.
        """
        if layout not in (None, "recorded", "contiguous"):
            raise UsageError(f"layout={layout!r}", advice='pass "recorded" or "contiguous"')
        inputs = self._arguments(index, device, layout)
        return inputs if as_args_kwargs else as_one(*inputs, self._signature())

    @abstractmethod
    def _dynamic_shapes(
        self, declared: BatchFor, names: DimNames, dim: DimKind | None
    ) -> tuple[Any, ...] | dict[str, Any]: ...

    @abstractmethod
    def _arguments(
        self, index: GivenArguments, device: Any, layout: MemoryLayout | None
    ) -> Inputs: ...

    @abstractmethod
    def _signature(self) -> Signature: ...


def as_one(
    args: tuple[Any, ...], kwargs: dict[str, Any], signature: Signature
) -> tuple[Any, ...] | dict[str, Any]:
    """The arguments in the form of ``torch.onnx.InputObserver``: a tuple if all are positional, a
    dict by parameter name otherwise.

    Raises:
        InferenceError: members of ``*args`` have no name.
    """
    if not args or not kwargs:
        return kwargs or args
    if signature.variadic_positional is not None:
        raise InferenceError(
            "Arguments of a method with *args are neither a tuple nor a dict alone",
            advice="set as_args_kwargs=True",
        )
    return {**{signature.name_at(i): value for i, value in enumerate(args)}, **kwargs}
