"""What an observer shows of each call (``observer.info``), in the terms of its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from calltape_analyzer.comparison.comparing import recorded_leaves
from calltape_analyzer.comparison.verdicts import Incomparable
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.facts import Fact
from calltape_analyzer.observer.stored_calls import Argument, StoredCall
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.flattening import Flattener
from calltape_analyzer.pytree.nodes import Unknown
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.rendering import render
from calltape_analyzer.reading.call import Call

__all__ = ["InputCandidate", "ObserverInfo"]


class InputCandidate:
    """The arguments of one call.

    Attributes:
        args, kwargs: as passed, without None and scalars passed by keyword, with
            ``value_if_missing``.
        cst_kwargs: the scalars passed by keyword that differ from their default.
        flat_list: the tensors in flattening order; None if there is none.
        aligned_flat_list: the same in the order of all calls, None for those that this call lacks.
            None in place of the list for arguments that do not belong to an observer, or to calls
            that cannot be one program.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        clone: bool,
        cst_kwargs: dict[str, Any],
        *,
        aligned: Callable[[], list[Any]] | None = None,
    ) -> None:
        import torch
        from torch.utils import _pytree as pytree

        if clone:
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, lambda tensor: tensor.detach().clone(), (args, kwargs)
            )
        self.args = args
        self.kwargs = kwargs
        self.cst_kwargs = dict(cst_kwargs)
        self._aligned = aligned
        self.flat_list = [
            None
            if slot.leaf is None or argument.given is None
            else argument.given.tensors[slot.leaf]
            for argument in (
                *(Argument.of_value(i, value) for i, value in enumerate(args)),
                *(Argument.of_value(name, value) for name, value in kwargs.items()),
            )
            for slot in argument.slots
        ]

    def __len__(self) -> int:
        return len(self.flat_list)

    def __str__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.args)} args, {len(self.kwargs)} kwargs, "
            f"{len(self)} tensors)"
        )

    def str_obs(self) -> str:
        """The arguments on one line."""
        return (
            f"{type(self).__name__}(args={render(self.args)}, kwargs={render(self.kwargs)}, "
            f"cst_kwargs={self.cst_kwargs})"
        )

    @property
    def aligned_flat_list(self) -> list[Any] | None:
        if self._aligned is None:
            return None
        try:
            return self._aligned()
        except InferenceError:
            return None

    @property
    def n_aligned_tensors(self) -> int:
        """Number of leaves of all calls together."""
        aligned = self.aligned_flat_list
        if aligned is None:
            raise InferenceError("This input was not aligned with the others.")
        return len(aligned)


class ObserverInfo:
    """What an observer has seen so far, read from its tapes.

    Args:
        calls: in order.
        stored: gives the arguments of a call by its position.
        aligned: gives its tensors in the order of all calls.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        stored: Callable[[int], StoredCall],
        aligned: Callable[[int], list[Any]],
    ) -> None:
        self._calls = calls
        self._stored = stored
        self._aligned = aligned

    def __len__(self) -> int:
        return len(self._calls)

    @cached_property
    def inputs(self) -> list[InputCandidate]:
        """The arguments of each call."""
        return [self._candidate(i) for i in range(len(self._calls))]

    @property
    def flat_outputs(self) -> list[list[Any]]:
        """The tensors that each call returned, flattened; None if there is none."""
        return [self.outputs(index) for index in self.returned]

    @property
    def returned(self) -> list[int]:
        """Positions of the calls that did not raise."""
        return [i for i, call in enumerate(self._calls) if call.record.outputs is not None]

    @property
    def latencies(self) -> list[float]:
        """Seconds that each call took."""
        return [self.latency(index) for index in self.returned]

    def outputs(self, index: int) -> list[Any]:
        """The tensors that one call returned, detached and in flattening order; None where there is
        none."""
        call = self._calls[index]
        tree = call.record.outputs
        if tree is None:
            return []
        form = Flattener(tree.facts(), tree.scalars, ClassIndex()).flatten(tree.spec().root)
        leaves = (slot.leaf for slot in form.slots())
        found: list[Any] = [
            None if leaf is None else call.tensor("outputs", leaf) for leaf in leaves
        ]
        return [one.detach() if hasattr(one, "detach") else one for one in found]

    def call(self, index: int) -> Call:
        """One call."""
        return self._calls[index]

    def unknown(self, index: int) -> list[Fact]:
        """The parts of what one call returned that nothing can be compared with, and why."""
        leaves = recorded_leaves(self._calls[index]) or {}
        return [
            Incomparable.of(path, leaf)
            for path, leaf in leaves.items()
            if isinstance(leaf, Unknown | Placeholder)
        ]

    def latency(self, index: int) -> float:
        """Seconds that one call took."""
        return self._calls[index].duration or 0.0

    def _candidate(self, index: int) -> InputCandidate:
        stored, shared = self._stored(index), dict[int, Any]()
        args = tuple(one.value(shared) for one in stored.args)
        kwargs = {name: one.value(shared) for name, one in stored.kwargs.items()}
        constants = dict(stored.constants)
        return InputCandidate(args, kwargs, False, constants, aligned=lambda: self._aligned(index))
