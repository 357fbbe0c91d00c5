"""What runs a recorded call: a model, a callable, or an exported model in its runtime.

In comes a call. Out goes a run of it that is prepared, so that the time which the target takes is
not that of reading the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from itertools import islice
from types import GeneratorType
from typing import Any

from calltape_analyzer.arguments.complete_inputs import CompleteInputs, complete_inputs, has_made_up
from calltape_analyzer.comparison.comparing import leaves_of
from calltape_analyzer.comparison.judging import Run, Runner
from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.input_matching import advice_for
from calltape_analyzer.programs.runtimes import opened_model
from calltape_analyzer.pytree.nodes import Returned
from calltape_analyzer.pytree.placeholder import placeholder_words, unmade_in
from calltape_analyzer.reading.call import Call
from calltape_analyzer.replaying.model_outputs import inputs_of, outputs_by_path
from calltape_analyzer.tape import Tape

__all__ = ["runner_of"]

_MAX_CHUNKS = 256
"""Of a stream, the recorder keeps so many chunks at most."""


class _CallableRunner(Runner):
    def __init__(self, tape: Tape, target: Any, stack: ExitStack) -> None:
        import torch

        from calltape_analyzer.model.calls import wanted_classes
        from calltape_analyzer.model.code import may_ask
        from calltape_analyzer.model.randomness import generators_kept

        self._device: Any = "cpu"
        if isinstance(target, torch.nn.Module):
            from calltape_analyzer.model.calls import device_of, entry_of
            from calltape_analyzer.model.state import unchanged

            # The calls run one after another, each from the state that the one before left.
            stack.enter_context(unchanged(target))
            stack.enter_context(generators_kept(target))
            self._device = device_of(target)
            self.module = target
            target = entry_of(target, tape.target)
        if not callable(target):
            raise UsageError(
                f"a {type(target).__name__} cannot be called", advice="see help(replay)"
            )
        # It computes with the strides that it was compiled for, whatever those of its inputs are.
        self._takes_contiguous = type(target).__name__ == "AOTICompiledModel"
        stack.enter_context(generators_kept())
        self._classes = wanted_classes(target, tape.class_index)
        self._asked = may_ask(target if self.module is None else self.module)
        self.function: Callable[..., Any] = target
        self.signature = tape.signature

    def prepared(self, call: Call) -> Run:
        inputs = complete_inputs(
            call.rebuilt_from(self._classes), self._device, are_contiguous=self._takes_contiguous
        )
        return _CallOf(self, inputs, self._context_of(call))

    def _context_of(self, call: Call) -> AbstractContextManager[None]:
        from calltape_analyzer.model.calls import as_called

        tree = call.record.inputs
        devices = [leaf.device for leaf in tree.facts()]
        context = Context.of(tree.spec().context, devices, self._asked)
        return as_called(context, str(self._device), self.module)

    def undisturbed(self) -> AbstractContextManager[Any]:
        from calltape_analyzer.model.randomness import generators_kept
        from calltape_analyzer.model.state import unchanged

        stack = ExitStack()
        stack.enter_context(generators_kept(self.module))
        if self.module is not None:
            stack.enter_context(unchanged(self.module))
        return stack


class _CallOf(Run):
    def __init__(
        self,
        runner: _CallableRunner,
        inputs: CompleteInputs,
        context: AbstractContextManager[None],
    ) -> None:
        self._runner, self._context = runner, context
        self._given = without_removed(inputs.args, inputs.kwargs, runner.signature)
        self.is_synthetic = inputs.made_up > 0
        self.is_contiguous = inputs.laid_out > 0
        self.unmade = unmade_in(self._given)
        self.missing = placeholder_words(self._given)

    def run(self) -> Any:
        from calltape_analyzer.model.randomness import Generators

        args, kwargs = self._given
        generators = Generators(self._runner.module)
        with self._context:
            result = self._runner.function(*args, **kwargs)
            # A stream was recorded as the list of its chunks.
            if type(result) is GeneratorType:
                result = list(islice(result, _MAX_CHUNKS + 1))
        self.draws = bool(generators.moved())
        return result

    def leaves(self, result: Any) -> Returned:
        from calltape_analyzer.model.calls import detached

        return Returned(detached(leaves_of(result)))


def without_removed(
    args: tuple[Any, ...], kwargs: dict[str, Any], signature: Signature
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as they were passed, without the ones that :meth:`Tape.remove_inputs` left out. An
    argument behind one of these is passed by name, if it can be."""
    if not signature.removed:
        return args, kwargs
    from calltape_analyzer.arguments.plan import as_passed

    names = [signature.complete.name_at(i) for i in range(len(args))]
    leading = next((i for i, n in enumerate(names) if n in signature.removed), len(names))
    named = dict(zip(names, args, strict=True)) | kwargs
    left = {name: value for name, value in named.items() if name not in signature.removed}
    return as_passed(left, leading, signature)


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
        self.is_synthetic = has_made_up(call)

    def run(self) -> Any:
        from calltape_analyzer.model.calls import with_default_dtype

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
