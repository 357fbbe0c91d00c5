"""What runs a recorded call: a model, a callable, or an exported model in its runtime.

In comes a call. Out goes a run of it that is prepared, so that the time which the target takes is
not that of reading the tape.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from itertools import islice
from types import GeneratorType
from typing import Any

from calltape_analyzer.arguments.complete_inputs import CompleteInputs, complete_inputs, has_made_up
from calltape_analyzer.comparison.comparing import Tolerances, leaves_of
from calltape_analyzer.comparison.reporting import MADE_UP, without_removed
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.input_matching import advice_for
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.runtimes import opened_model
from calltape_analyzer.pytree.placeholder import placeholder_words, unmade_in
from calltape_analyzer.pytree.result_values import Returned
from calltape_analyzer.reading.call import Call
from calltape_analyzer.replaying.model_outputs import inputs_of, outputs_by_path
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import listed

__all__ = ["Run", "Runner", "UnmadeError", "runner_of"]

_MAX_CHUNKS = 256
"""Of a stream, the recorder keeps so many chunks at most."""


class UnmadeError(InferenceError):
    """A call cannot be tried, because an argument holds objects that cannot be made here.

    Attributes:
        classes: their classes, each with the reason.
    """

    def __init__(self, classes: dict[str, str]) -> None:
        some = listed([f"{name} ({reason})" for name, reason in classes.items()])
        super().__init__(f"its arguments hold objects that cannot be rebuilt: {some}")
        self.classes = classes


class Run(ABC):
    """A call that is ready to be run, once.

    Attributes:
        made_up: whether some of its arguments are not the recorded ones.
        laid_out: whether some of its tensors lie contiguous where the recorded ones did not.
        is_whole: whether all of its arguments are objects as the model knows them.
        seconds: how long it took, after it was run.
    """

    made_up: bool = False
    laid_out: bool = False
    is_whole: bool = True
    seconds: float = 0.0

    def start(self) -> Any:
        """Runs the call. What it raises is what the target raises."""
        _finished()
        began = time.perf_counter()
        try:
            result = self.run()
            _finished()
        finally:
            self.seconds = time.perf_counter() - began
        return result

    @abstractmethod
    def run(self) -> Any: ...

    @abstractmethod
    def leaves(self, result: Any) -> Returned:
        """What came out, by the paths of what was recorded."""

    @property
    def doubt(self) -> str:
        """What to know about the arguments if the run fails."""
        return MADE_UP if self.made_up else ""


def _finished() -> None:
    """Waits for a device: it computes while Python goes on."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


class Runner(ABC):
    """Runs calls through one target.

    Attributes:
        tolerances: how far its results may be off by default.
        raises_as_recorded: whether it can raise what the model raised: an exported program cannot.
    """

    tolerances: Tolerances = Tolerances()
    raises_as_recorded: bool = True

    @abstractmethod
    def prepared(self, call: Call) -> Run:
        """A run of a call, with arguments of its own.

        Raises:
            UnmadeError: an argument holds an object that cannot be made here.
        TapeError: the arguments cannot be read, or the target takes others.
        """

    def undisturbed(self) -> AbstractContextManager[Any]:
        """Within it, runs leave no trace in the target, nor in generators of random numbers."""
        from calltape_analyzer.model.randomness import generators_kept

        return generators_kept()

    @property
    def module(self) -> Any:
        """The model, if that is the target."""
        return None


class _CallableRunner(Runner):
    def __init__(self, tape: Tape, target: Any, stack: ExitStack) -> None:
        import torch

        from calltape_analyzer.model.asked_modes import may_ask
        from calltape_analyzer.model.calls import wanted_classes
        from calltape_analyzer.model.randomness import generators_kept

        self._device: Any = "cpu"
        self._module = None
        if isinstance(target, Programs):
            self.tolerances, self.raises_as_recorded = target.tolerances, False
        if isinstance(target, torch.nn.Module):
            from calltape_analyzer.model.calls import device_of, entry_of
            from calltape_analyzer.model.state import unchanged

            # The calls run one after another, each from the state that the one before left.
            stack.enter_context(unchanged(target))
            stack.enter_context(generators_kept(target))
            self._device = device_of(target)
            self._module = target
            target = entry_of(target, tape.target)
        if not callable(target):
            raise UsageError(
                f"a {type(target).__name__} cannot be called", advice="see help(replay)"
            )
        # It computes with the strides that it was compiled for, whatever those of its inputs are.
        self._takes_contiguous = type(target).__name__ == "AOTICompiledModel"
        stack.enter_context(generators_kept())
        self._classes = wanted_classes(target, tape.class_index)
        self._asked = may_ask(target if self._module is None else self._module)
        self._function: Callable[..., Any] = target
        self._signature = tape.signature

    def prepared(self, call: Call) -> Run:
        inputs = complete_inputs(
            call.rebuilt_from(self._classes), self._device, are_contiguous=self._takes_contiguous
        )
        run = _CallOf(self._function, inputs, self._signature, self._context_of(call))
        if run.unmade:
            raise UnmadeError(run.unmade)
        return run

    def _context_of(self, call: Call) -> AbstractContextManager[None]:
        from calltape_analyzer.model.contexts import as_called

        tree = call.record.inputs
        devices = [leaf.device for leaf in tree.facts()]
        context = Context.of(tree.spec().context, devices, self._asked)
        return as_called(context, str(self._device), self._module)

    def undisturbed(self) -> AbstractContextManager[Any]:
        from calltape_analyzer.model.randomness import generators_kept
        from calltape_analyzer.model.state import unchanged

        stack = ExitStack()
        stack.enter_context(generators_kept(self._module))
        if self._module is not None:
            stack.enter_context(unchanged(self._module))
        return stack

    @property
    def module(self) -> Any:
        return self._module


class _CallOf(Run):
    def __init__(
        self,
        function: Callable[..., Any],
        inputs: CompleteInputs,
        signature: Signature,
        context: AbstractContextManager[None],
    ) -> None:
        self._context = context
        self._function = function
        self._args, self._kwargs = without_removed(inputs.args, inputs.kwargs, signature)
        self.made_up = inputs.made_up > 0
        self.laid_out = inputs.laid_out > 0
        self.unmade = unmade_in((self._args, self._kwargs))
        self._missing = placeholder_words((self._args, self._kwargs))
        self.is_whole = not self._missing

    def run(self) -> Any:
        with self._context:
            result = self._function(*self._args, **self._kwargs)
            # A stream was recorded as the list of its chunks.
            if type(result) is GeneratorType:
                return list(islice(result, _MAX_CHUNKS + 1))
            return result

    def leaves(self, result: Any) -> Returned:
        from calltape_analyzer.model.contexts import detached

        return Returned(detached(leaves_of(result)))

    @property
    def doubt(self) -> str:
        return f"{super().doubt}; the call has {self._missing}" if self._missing else super().doubt


class _ModelRunner(Runner):
    raises_as_recorded = False

    def __init__(self, tape: Tape, model: ExportedModel, source: Any) -> None:
        self._model, self._source = model, source
        self._sorter = CallSorter.of(tape)
        self.tolerances = model.tolerances

    def prepared(self, call: Call) -> Run:
        return _RunOf(self._model, call, self._sorter, self._advice)

    @cached_property
    def _advice(self) -> str:
        return advice_for(self._source, "replay")


class _RunOf(Run):
    def __init__(self, model: ExportedModel, call: Call, sorter: CallSorter, advice: str) -> None:
        self._model, self._call = model, call
        self._inputs = inputs_of(model, call, sorter, advice)
        self.made_up = has_made_up(call)

    def run(self) -> Any:
        from calltape_analyzer.model.contexts import with_default_dtype

        with with_default_dtype(Context.of(self._call.record.inputs.spec().context)):
            return self._model.run(self._inputs)

    def leaves(self, result: Any) -> Returned:
        return outputs_by_path(result, self._call)


@contextmanager
def runner_of(tape: Tape, target: Any, *, trusted: bool) -> Iterator[Runner]:
    """What runs the calls of a tape through a target, which is afterwards as it was before.

    Raises:
        UsageError: the target cannot be run, or is a ``.pt2`` that is not trusted.
        TapeError: ``not_found``, or ``invalid`` if it cannot be loaded.
    """
    with opened_model(target, tape, trusted=trusted, to_run=True) as model, ExitStack() as stack:
        if model is None:
            yield _CallableRunner(tape, target, stack)
        else:
            yield _ModelRunner(tape, model, target)
