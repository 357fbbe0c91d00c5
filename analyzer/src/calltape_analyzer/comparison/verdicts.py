"""What came of recorded calls, as facts: what differs, what could not be compared or tried, and
what a reader of a report should know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, computed_field
from typing_extensions import Self

from calltape_analyzer.facts import Fact, Names, Note
from calltape_analyzer.pytree.nodes import Unknown
from calltape_analyzer.pytree.placeholder import Placeholder

__all__ = [
    "Against",
    "ArgumentsUnmade",
    "CallsKind",
    "CallsUnmade",
    "CorruptedTape",
    "Doubted",
    "ElementDifference",
    "Incomparable",
    "JsonFloat",
    "JsonText",
    "LeafDifference",
    "NoOutputs",
    "NotVerified",
    "NothingCompared",
    "OtherException",
    "OtherOutputs",
    "PartsUncompared",
    "SlowCall",
    "SomeCalls",
    "Unsteady",
    "Verdict",
    "shown_path",
]


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _encodable(text: object) -> object:
    return text.encode(errors="backslashreplace").decode() if isinstance(text, str) else text


def _number(value: object) -> object:
    return float(value) if value in ("inf", "-inf", "nan") and isinstance(value, str) else value


JsonFloat = Annotated[float, BeforeValidator(_number), PlainSerializer(_finite, when_used="json")]
"""A float that is text in JSON if it is not finite, because JSON has no such numbers."""
JsonText = Annotated[
    str, BeforeValidator(_encodable), PlainSerializer(_encodable, return_type=str, when_used="json")
]
"""Text with lone surrogates as escapes: names and messages may have them, and UTF-8 has none."""


_MAX_PARTS = 5

Against = Literal["tape", "module", "part", "shapes", "exception", "success", "declared", "nothing"]
"""What a result was compared with, as :class:`Verdict` has it."""


class ElementDifference(Fact, code="element_difference"):
    """An element of a tensor that differs.

    Attributes:
        index: where it is, one number per axis.
        recorded, got: both values as text, with as many digits as tell them apart.
    """

    index: tuple[int, ...]
    recorded: str
    got: str


class LeafDifference(Fact, code="leaf_difference"):
    """A leaf of the outputs that differs.

    Attributes:
        path: where it is: ``outputs.logits``.
        recorded, got: what differs: the values, or dtypes with shapes. Empty if elements differ.
        differing, total: how many elements of how many differ.
        max_abs, max_rel: by how much at most.
        elements: the first elements that differ.
    """

    path: str
    recorded: str = ""
    got: str = ""
    differing: int = 0
    total: int = 0
    max_abs: JsonFloat = 0.0
    max_rel: JsonFloat = 0.0
    elements: tuple[ElementDifference, ...] = ()


class OtherOutputs(Fact, code="other_outputs"):
    """Leaves are missing, or are there and were not recorded: the first of them."""

    missing: Names
    unexpected: Names


class Incomparable(Fact, code="incomparable"):
    """A leaf of the outputs that nothing can be compared with.

    Attributes:
        path: where it is: ``outputs.logits``.
        type_name, reason: of a value that cannot be described, as of :class:`Unknown`; empty for a
            tensor whose values are not on the tape.
    """

    path: str
    type_name: str = ""
    reason: str = ""

    @classmethod
    def of(cls, path: str, value: Unknown | Placeholder) -> Self:
        """That of a leaf by its path within the outputs."""
        return cls(shown_path(path), value.type_name, value.reason)


class NotVerified(Fact, code="not_verified"):
    """Nothing differs, but not all was compared.

    Attributes:
        first: the first things that were not compared.
        total: how many there are.
        is_any: whether anything was compared.
        is_omitted: whether the model does not return all of what was recorded.
    """

    first: tuple[Fact, ...]
    total: int
    is_any: bool = True
    is_omitted: bool = False

    @classmethod
    def of(cls, parts: Sequence[Fact], *, is_any: bool = True, is_omitted: bool = False) -> Self:
        """That of all such parts."""
        return cls(tuple(parts[:_MAX_PARTS]), len(parts), is_any, is_omitted)


class NothingCompared(Fact, code="nothing_compared"):
    """No value was compared in any call: any model would give this."""


class OtherException(Fact, code="other_exception"):
    """A call did not raise what it raised when it was recorded.

    Attributes:
        recorded: the class of the recorded exception.
        raised: what it raised; None if it returned.
        is_known: whether the class is loaded here.
    """

    recorded: str
    raised: Fact | None = None
    is_known: bool = True


class NoOutputs(Fact, code="no_outputs"):
    """The outputs of a call are not on the tape."""

    why: str | None


class ArgumentsUnmade(Fact, code="arguments_unmade"):
    """A call was not tried, because its arguments hold objects that cannot be made here.

    Attributes:
        classes, reasons: of the objects, in the same order.
    """

    classes: Names
    reasons: Names


class SlowCall(Fact, code="slow_call"):
    """A call was too slow in the fastest of several runs.

    Attributes:
        seconds, runs: how long it took, in how many runs.
        most: how long it may take.
        times: how many times its recorded duration that is; None if it is not.
    """

    seconds: float
    runs: int
    most: float
    times: float | None


class Doubted(Fact, code="doubted"):
    """A call is not as it should be, which may have another reason than the target.

    Attributes:
        why: what is wrong.
        is_synthetic: whether arguments are not the recorded ones.
        missing: an object among the arguments that was not rebuilt; empty if there is none.
        draws: whether the call draws random numbers.
    """

    why: Fact
    is_synthetic: bool
    missing: str
    draws: bool


class Verdict(BaseModel):
    """What came of a comparison.

    Attributes:
        error: why the result is not what it should be: what differs, or was not compared. None if
            it is.
        against: what the result was compared with. ``"tape"``: all of what was recorded, within the
            tolerance of its dtype. ``"module"``: the tape has no values, or random ones, and the
            module was called instead. ``"part"``: the recorded values, and dtypes and shapes where
            the tape has no value. ``"shapes"``: structure, dtypes and shapes only.
            ``"exception"``: the exception that the call raised. ``"success"``: nothing, the call
            only had to return. ``"declared"``: what the model declares of its inputs.
            ``"nothing"``: the call could not be tried, or has no outputs on the tape.
        max_abs, max_rel: the largest absolute and relative difference of any element
            (``|a - b| / |b|`` if ``b`` is not 0).
        compared: how many elements of tensors and other values were compared. An element that is
            NaN on both sides is the same, and proves nothing: it is not counted.
        differences: the first leaves that differ, with their first elements that do.
    """

    model_config = ConfigDict(frozen=True)

    error: Fact | None = None
    against: Against = "tape"
    max_abs: JsonFloat = 0.0
    max_rel: JsonFloat = 0.0
    compared: int = 0
    differences: tuple[LeafDifference, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether the result is what it should be."""
        return self.error is None

    @property
    def agrees(self) -> bool:
        """Whether nothing that was compared differs, and there was something."""
        return self.error is None or (isinstance(self.error, NotVerified) and self.error.is_any)

    @property
    def unverified(self) -> tuple[Fact, ...]:
        """The first parts that could not be compared, if nothing differs."""
        return self.error.first if isinstance(self.error, NotVerified) else ()

    def but(self, error: Fact) -> Self:
        """It with another error."""
        return self.model_copy(update={"error": error})

    def without(self, parts: Sequence[Fact]) -> Self:
        """It with more parts that should be the same, and could not be compared."""
        if not parts or not self.agrees:
            return self
        known = self.error if isinstance(self.error, NotVerified) else NotVerified((), 0)
        every = NotVerified.of((*known.first, *parts))
        return self.but(replace(every, total=known.total + len(parts)))


class CallsKind(Enum):
    """What is said of some calls of a report."""

    RAISED = "raised"
    UNDER_WAY = "under_way"
    """They had not ended when their process died."""
    INTERRUPTED = "interrupted"
    UNWRITTEN = "unwritten"
    """They fail, and could not be written to a tape because they are corrupted."""
    SYNTHETIC = "synthetic"
    """Arguments of them are not on the tape."""
    CONTIGUOUS = "contiguous"
    """They got contiguous copies of tensors that lay in memory in another way."""
    UNTIMED = "untimed"
    """Their durations are not on the tape."""
    CLASS_ONLY = "class_only"
    """Their exceptions have no message on the tape."""
    IN_ORDER = "in_order"
    """They are reproduced if each begins with the state that the call before left."""


class SomeCalls(Note, code="some_calls"):
    """What is said of some calls, and of how many."""

    kind: CallsKind
    count: int


class CallsUnmade(Note, code="calls_unmade"):
    """Calls were not tried, as of :class:`ArgumentsUnmade`."""

    count: int
    classes: Names
    reasons: Names


class PartsUncompared(Note, code="parts_uncompared"):
    """Outputs that were not compared, because the model does not return them, or only in dtype and
    shape, because their values are not on the tape."""

    paths: Names
    is_omitted: bool


class Unsteady(Note, code="unsteady"):
    """A call gives other values each time it is run, with these generators if they are known."""

    call: int
    generators: Names


class CorruptedTape(Note, code="corrupted_tape"):
    """The tape is corrupted in so many places."""

    places: int


def shown_path(path: str) -> str:
    """Where a leaf is, by the name that the other reports and ``redact`` have for it."""
    return f"outputs{path}"
