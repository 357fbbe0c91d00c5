"""Whether it matters to a model that an argument is one of its own tensors.

A model may compare an argument with one of its buffers by ``is``, or write to one and read the
other. So a call runs with part of a buffer, and with a copy of that part. If the results differ,
programs reject arguments that share memory with the model. No tape says whose memory an argument
was, so recorded calls are checked as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from calltape_analyzer.arguments.plan import ArgumentPlan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.comparing import compared, recorded_leaves
from calltape_analyzer.errors import TapeError
from calltape_analyzer.exporting.session.sandbox import may_fork
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.unseen_runs import doubt_of
from calltape_analyzer.pytree.memory import is_strided
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["ModelAliases", "aliases_read"]

_MAX_VARIANTS = 2
_MAX_PAIRS = 6
"""How many pairs of an argument and a tensor of the model are tried."""
_MAX_CALLS = 16
"""How many recorded calls are checked."""


class ModelAliases(NamedTuple):
    """Arguments for which it matters whether they are the model's own tensors.

    Attributes:
        matter: by the path of such an argument, the name of the tensor of the model that was tried.
        recorded: by the path of an argument, the number of a recorded call that the model
            reproduces only if it gets its own tensor, and the name of that tensor.
    """

    matter: dict[str, str]
    recorded: dict[str, tuple[int, str]]


class _AliasPair(NamedTuple):
    """The number of an argument, and the name of a tensor of the model."""

    number: int
    name: str


def aliases_read(
    session: Session, variants: Sequence[VariantFacts], seconds: float
) -> ModelAliases:
    """For which arguments it matters whether they are the model's own tensors.

    Args:
        session: has the model.
        variants: whose recorded calls run. Of many, only the first ones.
        seconds: how long the runs of one variant may take.
    """
    aliases = ModelAliases({}, {})
    # A buffer may hold values that are invalid as the argument: a kernel may end the process.
    for variant in variants[:_MAX_VARIANTS] if may_fork(session.device) else ():
        probe = _AliasProbe.of(session, variant, session.find(variant.rows.first))
        if probe is None or next(probe.pairs(), None) is None:
            continue  # a sandbox takes as long as some runs
        matter, recorded = session.answer(
            partial(_aliases_in, session, variant, probe), seconds
        ) or ({}, {})
        aliases.matter.update(matter)
        aliases.recorded.update(recorded)
    return aliases


def _aliases_in(session: Session, variant: VariantFacts, first: _AliasProbe) -> ModelAliases:
    tried = islice(first.pairs(), _MAX_PAIRS)
    pairs = list(dict.fromkeys(pair for pair, own in tried if first.matters(pair, own)))
    places = variant.group.layout.tensors
    aliases = ModelAliases({str(places[pair.number]): pair.name for pair in pairs}, {})
    for _, seen in variant.rows.items()[:_MAX_CALLS] if pairs else ():
        call = session.find(seen.first)
        probe = _AliasProbe.of(session, variant, call)
        for pair in pairs if probe is not None else ():
            if probe is not None and probe.is_recorded(pair, call):
                aliases.recorded.setdefault(str(places[pair.number]), (call.number, pair.name))
    return aliases


class _AliasProbe:
    """One recorded call, to be run with tensors of the model as arguments."""

    def __init__(self, session: Session, plan: ArgumentPlan, sample: Sample) -> None:
        self._session, self._plan, self._sample = session, plan, sample
        named = (*session.module.named_buffers(), *session.module.named_parameters())
        self._model_tensors: dict[str, Any] = dict(named)
        self._buffers = {name for name, _ in session.module.named_buffers()}

    @classmethod
    def of(cls, session: Session, variant: VariantFacts, call: Call) -> _AliasProbe | None:
        """For a call of a variant; None if it cannot be read, which the export will report."""
        try:
            return cls(session, *session.planned(variant, call))
        except TapeError:
            return None

    def pairs(self) -> Iterator[tuple[_AliasPair, Any]]:
        """The arguments that could be tensors of the model, each with what to pass: a buffer as it
        is, a part of it in the shape of the argument, or a parameter of that shape."""
        for number, tensor in enumerate(self._sample.tensors):
            for name, model_tensor in self._model_tensors.items():
                if (
                    name in self._buffers
                    and model_tensor.dim() == tensor.dim()
                    and _is_alike(model_tensor, tensor)
                ):
                    yield _AliasPair(number, name), model_tensor
                part = self._part(tensor, name)
                if part is not None and not (part is model_tensor and name in self._buffers):
                    yield _AliasPair(number, name), part

    def _part(self, tensor: Any, name: str) -> Any:
        """The model's own tensor if it has the shape of another one, or the beginning of a buffer
        in that shape; None otherwise."""
        model_tensor = self._model_tensors[name]
        if not _is_alike(model_tensor, tensor):
            return None
        if model_tensor.shape == tensor.shape:
            return model_tensor
        is_larger = model_tensor.numel() >= tensor.numel() and model_tensor.is_contiguous()
        if name not in self._buffers or not is_larger or not tensor.dim():
            return None
        return model_tensor.detach().flatten()[: math.prod(tensor.shape)].view(tensor.shape)

    def matters(self, pair: _AliasPair, model_tensor: Any) -> bool:
        """Whether the model returns something else for its own tensor than for a copy of it."""

        def copied(_: Any) -> Any:
            return model_tensor.detach().clone()

        expected = self._run({pair.number: copied})
        got = self._run({pair.number: lambda _: model_tensor})
        if expected is None or got is None:
            return False
        verdict = compared(expected, got, self._session.tolerances)
        if verdict.agrees or not verdict.compared:
            return False
        changes = {pair.number: copied}
        return doubt_of(self._session, self._plan, self._sample, expected, got, changes) is None

    def is_recorded(self, pair: _AliasPair, call: Call) -> bool:
        """Whether the model returns what was recorded only if it gets its own tensor."""
        model_tensor = self._part(self._sample.tensors[pair.number], pair.name)
        recorded = recorded_leaves(call)
        if model_tensor is None or recorded is None:
            return False

        def filled(tensor: Any) -> Any:
            model_tensor.detach().copy_(tensor)
            return model_tensor

        with_copy, with_own = self._run({}), self._run({pair.number: filled})
        if with_copy is None or with_own is None:
            return False
        tolerances = self._session.tolerances
        is_reproduced = compared(recorded, with_own, tolerances).agrees
        return is_reproduced and not compared(recorded, with_copy, tolerances).agrees

    def _run(self, changes: Mapping[int, Any]) -> Mapping[str, Any] | None:
        state = self._session.state
        before = dict(state)
        try:
            return self._session.eager(self._plan, self._sample, changes=changes)
        except Exception:  # models raise errors of any type
            return None
        finally:
            # A write to an argument is no state of the model, even if it is the model's tensor.
            for name in state.keys() - before.keys():
                del state[name]


def _is_alike(model_tensor: Any, tensor: Any) -> bool:
    """Whether a tensor of a model could be passed in place of another one, apart from its shape."""
    are_strided = is_strided(model_tensor) and is_strided(tensor)
    return are_strided and bool(
        model_tensor.dtype == tensor.dtype
        and model_tensor.device == tensor.device
        and model_tensor.numel()
        and tensor.numel()
    )
