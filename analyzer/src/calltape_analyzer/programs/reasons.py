"""Why there is no program, no better one, or none that takes a call: the result of an attempt, what
a variant lacks, which unrecorded sizes were not tried, and how a call differs from a program's."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from calltape_analyzer.facts import Fact, Names, Rejection
from calltape_analyzer.foreign_errors import ErrorMeaning, Raised, inputs_of_guard, size_of_guard
from calltape_analyzer.programs.notes import ServesOnly
from calltape_analyzer.programs.strategies import Strategy


class Why(Enum):
    """Reasons without further facts."""

    NOTHING_COMPARED = "nothing_compared"
    """No recorded output has an element that is a number."""
    NOT_EXPORTED = "not_exported"
    NO_PROGRAM = "no_program"
    """No program takes the sizes of a variant."""
    OUT_OF_SIGHT = "out_of_sight"
    """The model keeps state where no program has it."""
    OTHER_WITHOUT_CACHE = "other_without_cache"
    """The model returns other values with an empty cache."""
    LATE = "late"
    """It does not fit into the time that unrecorded sizes get."""
    NO_TIME = "no_time"
    TOO_LARGE = "too_large"
    """Beyond the bound of sizes that are run."""
    UNMEASURED = "unmeasured"
    OTHER_STRIDES = "other_strides"
    """Tensors of such sizes have other strides."""
    MODEL_IS_NAN = "model_is_nan"
    MODEL_NOT_FINITE = "model_not_finite"
    MODEL_VARIES = "model_varies"
    """The model returns something else each time."""
    MODEL_MAY_FAIL = "model_may_fail"
    """The model does not always run."""
    INEXACT = "inexact"
    """The model is not more exact than the difference."""
    COINCIDENCE = "coincidence"
    """The program agrees with the model for other values."""
    OTHER_RESULT = "other_result"
    """The program returned something else than the model."""


class Because(Fact, code="because"):
    """One of these."""

    why: Why


class CauseKind(Enum):
    """Why a trace failed."""

    NEEDS_VALUE = "needs_value"
    """The model needs the value of a tensor."""
    NESTED_TENSOR = "nested_tensor"
    """The model makes a nested tensor."""
    ERROR = "error"
    """Any other error."""


class Advice(Enum):
    """Advice for a model that needs the value of a tensor, by the code in its line."""

    PAD = "pad"
    """Pass padded sequences instead of packed ones."""
    KEEP_TENSOR = "keep_tensor"
    """Keep a number a tensor."""
    USE_WHERE = "use_where"
    """Use ``torch.where`` instead of a branch."""
    MULTIPLY = "multiply"
    """Multiply by a mask instead of selecting."""
    LOOP_OVER_SIZE = "loop_over_size"
    """Loop over a size."""


class Cause(Fact, code="cause"):
    """Why a trace failed, and where in the model.

    Attributes:
        kind: what a user can act on.
        why: the error.
        place: the line of the model, with its file and function.
        advice: what to do; None if that is unknown.
        kinds: of the error and of the line.
    """

    kind: CauseKind
    why: Fact
    place: str
    advice: Advice | None = None
    kinds: tuple[ErrorMeaning, ...] = ()


def stopped_by(fact: Fact | None, kind: ErrorMeaning) -> bool:
    """Whether a trace failed with an error of a kind."""
    return isinstance(fact, Cause | Raised) and kind in fact.kinds


class OfCall(Fact, code="of_call"):
    """The result of a recorded call."""

    call: int
    why: Fact


class Unseen(Fact, code="unseen"):
    """The result of unrecorded sizes."""

    why: Fact


class OfModel(Fact, code="of_model"):
    """The model itself failed, possibly at recorded sizes."""

    why: Fact
    at_recorded: bool = False


class InState(Fact, code="in_state"):
    """A program does not reproduce a call, but agrees with the model in its current state."""

    names: Names


class MaybeState(Fact, code="maybe_state"):
    """A result differs, possibly because the model was in another state."""

    difference: Fact
    names: Names


class RandomAdvice(Enum):
    """What is known of a result that depends on random numbers."""

    VERIFY_AT_MODEL = "verify_at_model"
    OTHERS_DRAWN = "others_drawn"
    """The program draws other numbers."""
    CONSTANT = "constant"
    """The program has a number that was drawn at its export."""


class RandomDiffers(Fact, code="random_differs"):
    """A result that depends on random numbers differs."""

    difference: Fact
    generators: Names
    advice: RandomAdvice


class TimeUp(Fact, code="time_up"):
    """The time of the whole export was up."""

    seconds: float
    interrupted: bool = False


class NotTried(Fact, code="not_tried"):
    """Something was not tried, for a reason."""

    why: Fact


class End(Enum):
    """Why a run did not finish."""

    DIED = "died"
    """It ended its process."""
    LATE = "late"
    """It took too long, and was stopped."""
    NOT_TRIED = "not_tried"
    """No other process could be started."""


class Ended(Fact, code="ended"):
    """A run did not finish.

    Attributes:
        end: what happened.
        what: the runtime that ran; empty for the model.
        how: the signal or exit code of the process; empty if unknown.
        empty_cache: whether it ran with an empty cache.
        seconds: the limit, if it took too long.
    """

    end: End
    what: str = ""
    how: str = ""
    empty_cache: bool = False
    seconds: float = 0.0


class SyntheticHarms(Fact, code="synthetic_harms"):
    """The model does not finish with synthetic values."""

    call: int
    how: Fact


class TooSlow(Fact, code="too_slow"):
    """A run would take too long, or an earlier one did."""

    seconds: float
    was_run: bool


class TooMuchMemory(Fact, code="too_much_memory"):
    """A run may take too much memory: the bytes, and whether the caller set the limit."""

    needed: int
    allowed: int
    is_given: bool


class RecordedOnly(Fact, code="recorded_only"):
    """The caller asked for recorded sizes only."""

    probe: str


class PointsInto(Fact, code="points_into"):
    """Values of an argument index into a size that would be 0."""

    name: str


class RaisedType(Fact, code="raised_type"):
    """The model or the program raised an error at a size of 0. Its message is not kept, because it
    may quote a call."""

    is_model: bool
    error: str


class UntriedSize(Fact, code="untried_size"):
    """Unrecorded sizes were not tried."""

    sizes: str
    why: Fact


class UntraceableKind(Enum):
    """What cannot be traced."""

    DATA_KEYS = "data_keys"
    NESTED = "nested"
    SPARSE = "sparse"
    RETURNS_NESTED = "returns_nested"


class Untraceable(Fact, code="untraceable"):
    """A variant has what cannot be traced.

    Attributes:
        kind: of it.
        names: of arguments or outputs.
        layouts: of sparse tensors.
    """

    kind: UntraceableKind
    names: Names
    layouts: Names = ()


class StateNeeded(Fact, code="state_needed"):
    """Recorded calls continue from state that previous calls left, and a program does not keep it.

    Attributes:
        names: of the lost state.
        call: that is not reproduced; None if other orders of calls show the loss.
        has_state: whether runs of the program may change anything.
    """

    names: Names
    call: int | None
    has_state: bool


class DrawnByPython(Fact, code="drawn_by_python"):
    """Results depend on generators that no program has."""

    generators: Names


class Fault(Fact, code="fault"):
    """A fault of calltape."""

    why: Fact


class MostPrograms(Fact, code="most_programs"):
    """A variant has the maximum number of programs."""

    most: int


class EachAlone(Fact, code="each_alone"):
    """Each of many sizes would need its own program."""

    most: int


class ValuesLeft(Fact, code="values_left"):
    """Some calls have values without a program: how many of how many calls."""

    left: int
    calls: int
    most: int


class ConstantsLeft(Fact, code="constants_left"):
    """Some values of a tensor have no program: how many of how many."""

    left: int
    values: int
    most: int


class ValuesRejected(Fact, code="values_rejected"):
    """A call has recorded sizes, and values that no program accepts."""

    call: int


Taker = Literal["model", "program"]


class OtherCall(Rejection, code="other_call"):
    """A call has another structure, dtype or constant than the calls of the program."""

    difference: str


class UnknownClass(Rejection, code="unknown_class"):
    """An argument is, or contains, a placeholder for an object whose class was unknown when the
    programs were loaded."""

    argument: str
    type_name: str
    is_whole: bool


class LeftOut(Rejection, code="left_out"):
    """A call passes arguments that were left out at the export."""

    names: Names


class OtherDtype(Rejection, code="other_dtype"):
    """A tensor has another dtype than an input."""

    place: str
    got: str
    wanted: str
    by: Taker = "program"


class OtherRank(Rejection, code="other_rank"):
    """A tensor has more or fewer dimensions than an input."""

    place: str
    got: int
    wanted: int
    by: Taker = "program"


class OtherSize(Rejection, code="other_size"):
    """A size or an int differs from that of an input."""

    place: str
    got: int
    wanted: int
    by: Taker = "program"


class UnequalSizes(Rejection, code="unequal_sizes"):
    """A size differs from another one in the call, and the trace assumed that they are equal."""

    place: str
    got: int
    wanted: int


class UnequalNames(Rejection, code="unequal_names"):
    """Two sizes differ whose dimensions have the same name in an ONNX model."""

    place: str
    got: int
    other: str
    wanted: int
    name: str


class OutOfRange(Rejection, code="out_of_range"):
    """A size is below the least, or above the most, that a trace allows."""

    place: str
    got: int
    least: int | None = None
    most: int | None = None


class GuardFails(Rejection, code="guard_fails"):
    """A condition on sizes does not hold.

    Attributes:
        guard: in torch's notation.
        names: of the inputs in it, in their order.
    """

    guard: str
    names: Names

    @property
    def named(self) -> dict[str, str]:
        """The names of the inputs, by what torch writes."""
        return dict(
            zip((text for text, _ in inputs_of_guard(self.guard)), self.names, strict=False)
        )

    @property
    def dimension(self) -> str | None:
        found = size_of_guard(self.guard)
        return None if found is None else f"{self.named.get(found[0], found[0])}{found[1]}"


class ByTrace(Rejection, code="by_trace"):
    """A condition of the trace does not hold. Recorded calls do not imply it."""

    condition: Rejection

    @property
    def dimension(self) -> str | None:
        return self.condition.dimension


class OtherValue(Rejection, code="other_value"):
    """A text, number or tensor differs from the constant of a program. ``wanted`` is None if both
    look the same when they are shortened."""

    place: str
    got: str
    wanted: str | None


class SharesMemory(Rejection, code="shares_memory"):
    """An argument is the model's own tensor, for which the model returns something else."""

    place: str
    own: str


class Unverified(Rejection, code="unverified"):
    """A program that serves only some sizes was not verified at these, so it may be wrong there.

    Attributes:
        recorded: whether calls had them.
        only: what it serves.
    """

    recorded: bool
    only: ServesOnly | None


class RunFailed(Rejection, code="run_failed"):
    """A program accepted the call, and raised an error."""

    why: Fact


class NotExported(Rejection, code="not_exported"):
    """There is no program."""

    why: Fact


class NoProgram(Rejection, code="no_program"):
    """None of several programs accepts a call.

    Attributes:
        names, whys: of the programs, in the same order.
    """

    names: Names
    whys: tuple[Fact, ...]

    @property
    def dimension(self) -> str | None:
        known = (why.dimension for why in self.whys if isinstance(why, Rejection))
        return next(filter(None, known), None)


class FilledState(Rejection, code="filled_state"):
    """The call passes a filled cache, and the model has no such input."""

    name: str


class Sampled(Fact, code="sampled"):
    """The arguments of an attempt: those of a recorded call, resized unless ``sizes`` is empty."""

    call: int
    sizes: str = ""


class Tried(Fact, code="tried"):
    """A strategy, and the arguments that it was tried with."""

    strategy: Strategy
    sample: Sampled | None = None
