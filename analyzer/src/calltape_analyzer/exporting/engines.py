"""What runs a program: flat inputs in, flat outputs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.forms import Form
from calltape_analyzer.exporting.plan import Plan

__all__ = ["Engine", "OnnxEngine", "TorchEngine", "UnloadedEngine"]


class Engine(Protocol):
    """Runs one program."""

    program: Any

    def run(self, plan: Plan, values: Sequence[Any], result: Form) -> list[Any]:
        """The outputs, in the order of the leaves of ``result``.

        Args:
            plan: how the program was exported.
            values: its inputs in order: tensors and ints.
            result: the form of what it returns.
        """
        ...


class UnloadedEngine:
    """Stands for a program that was not loaded: of it only the conditions are known."""

    def __init__(self, file: str) -> None:
        self.program = file

    def run(self, plan: Plan, values: Sequence[Any], result: Form) -> list[Any]:
        """Raises UsageError."""
        raise UsageError(f"{self.program} was not loaded", advice="see load_programs")


class TorchEngine:
    """Runs a ``torch.export.ExportedProgram``."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self._module: Any = None

    @property
    def module(self) -> Any:
        """What is called, made when it is first needed. Its buffers are those of the program."""
        if self._module is None:
            self._module = self.program.module()
        return self._module

    def run(self, plan: Plan, values: Sequence[Any], result: Form) -> list[Any]:
        import torch

        args, kwargs = plan.arguments(values)
        with torch.no_grad():
            returned = self.module(*args, **kwargs)
        return [value for _, value in result.read(returned)]


class OnnxEngine:
    """Runs an ONNX model in ONNX Runtime, fed by name (rule 13 of docs/decisions/0012: by position
    feeds shift where the exporter drops inputs that the program does not use)."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self._opened: Any = None

    def session(self) -> Any:
        """The session, opened when it is first needed."""
        if self._opened is None:
            from calltape_analyzer.discrepancies import open_session

            self._opened = open_session(self.program, None)
        return self._opened[0]

    def run(self, plan: Plan, values: Sequence[Any], result: Form) -> list[Any]:
        import torch

        from calltape_analyzer.discrepancies import run

        session = self.session()
        given = dict(zip(plan.names, values, strict=True))
        feeds: dict[str, Any] = {}
        for known in session.get_inputs():
            value = given[known.name if known.name in given else known.name.removesuffix("_orig")]
            feeds[known.name] = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        returned = run(session, feeds)
        leaves = list(result.leaves())
        if len(returned) != len(leaves):
            raise RuntimeError(f"the model has {len(returned)} outputs instead of {len(leaves)}")
        return [
            int(value) if leaf.kind == "int" else value
            for leaf, value in zip(leaves, returned, strict=True)
        ]

    def __del__(self) -> None:
        if self._opened is not None:
            self._opened[1]()
