"""A model that was exported, as its runtime takes it: one class for each runtime.

Whoever checks, replays or verifies calls knows this interface only. It takes the inputs of a call
by name, and returns the outputs, or the reason why the model would not take them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.errors import UsageError
from calltape_analyzer.facts import Rejection
from calltape_analyzer.programs.conditions import Sized
from calltape_analyzer.programs.reasons import End

if TYPE_CHECKING:
    from typing_extensions import Self

    from calltape_analyzer.tape import Tape

__all__ = ["ConditionError", "ExportedModel", "UnloadedModel"]


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

    def renew(self) -> None:  # noqa: B027
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

    def death(self, inputs: Mapping[str, Any], seconds: float) -> End | None:
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
