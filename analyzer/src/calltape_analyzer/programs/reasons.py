"""Why there is no program, or no better one: what came of an attempt, what a variant lacks, and why
sizes that no call had were not tried."""

from __future__ import annotations

from enum import Enum

from calltape_analyzer.facts import Fact, Names
from calltape_analyzer.foreign_errors import ErrorKind, Raised


class Why(Enum):
    """Reasons that say all by themselves."""

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
    """It does not fit into the part of the export's time that other sizes get."""
    NO_TIME = "no_time"
    TOO_LARGE = "too_large"
    """Beyond the bound of sizes that are run."""
    UNMEASURED = "unmeasured"
    OTHER_STRIDES = "other_strides"
    """Tensors of such sizes lie in memory in another way."""
    MODEL_IS_NAN = "model_is_nan"
    MODEL_NOT_FINITE = "model_not_finite"
    MODEL_VARIES = "model_varies"
    """The model returns something else each time."""
    MODEL_MAY_FAIL = "model_may_fail"
    """The model does not always run."""
    INEXACT = "inexact"
    """The model is not more exact than the difference."""
    COINCIDENCE = "coincidence"
    """The program is the same as the model with other values."""
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
    """What helps a model that needs the value of a tensor, by what stands in its line."""

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
        kind: as a person can act on it.
        why: the error.
        place: the line of the model, with its file and function.
        advice: what helps; None if nothing is known.
        kinds: what the error and the line mean.
    """

    kind: CauseKind
    why: Fact
    place: str
    advice: Advice | None = None
    kinds: tuple[ErrorKind, ...] = ()


def stopped_by(fact: Fact | None, kind: ErrorKind) -> bool:
    """Whether a trace failed with an error of a kind."""
    return isinstance(fact, Cause | Raised) and kind in fact.kinds


class OfCall(Fact, code="of_call"):
    """What came of a recorded call."""

    call: int
    why: Fact


class Unseen(Fact, code="unseen"):
    """What came of sizes that no call had."""

    why: Fact


class OfModel(Fact, code="of_model"):
    """The model itself failed, maybe at recorded sizes."""

    why: Fact
    at_recorded: bool = False


class InState(Fact, code="in_state"):
    """A call is not reproduced by a program that does what the model does from its state now."""

    names: Names


class MaybeState(Fact, code="maybe_state"):
    """A result differs, maybe because the model was in another state."""

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
    """How a run did not come to its end."""

    DIED = "died"
    """It ended its process."""
    LATE = "late"
    """It took too long, and was ended."""
    NOT_TRIED = "not_tried"
    """There is no other process here."""


class Ended(Fact, code="ended"):
    """A run did not come to its end.

    Attributes:
        end: what happened.
        what: a runtime, if that ran; empty for the model.
        how: by which signal or exit code the process ended; empty if nobody knows.
        empty_cache: whether it ran with an empty cache.
        seconds: how long it might take, if it took longer.
    """

    end: End
    what: str = ""
    how: str = ""
    empty_cache: bool = False
    seconds: float = 0.0


class SyntheticHarms(Fact, code="synthetic_harms"):
    """With values that are made up, the model does not come to its end."""

    call: int
    how: Fact


class TooSlow(Fact, code="too_slow"):
    """A run would take too long, or one before it did."""

    seconds: float
    was_run: bool


class TooMuchMemory(Fact, code="too_much_memory"):
    """A run may take too much memory: bytes, and whether the caller set the limit."""

    needed: int
    allowed: int
    is_given: bool


class RecordedOnly(Fact, code="recorded_only"):
    """Only recorded sizes were asked for."""

    probe: str


class PointsInto(Fact, code="points_into"):
    """Values of an argument point into a size that would be 0."""

    name: str


class RaisedType(Fact, code="raised_type"):
    """The model, or the program, raised an error at a size of 0. Its message may quote a call, and
    is not kept."""

    is_model: bool
    error: str


class UntriedSize(Fact, code="untried_size"):
    """Sizes that no call had were not tried."""

    sizes: str
    why: Fact


class UntraceableKind(Enum):
    """What no trace can take."""

    DATA_KEYS = "data_keys"
    NESTED = "nested"
    SPARSE = "sparse"
    RETURNS_NESTED = "returns_nested"


class Untraceable(Fact, code="untraceable"):
    """A variant has what no trace can take.

    Attributes:
        kind: of it.
        names: of arguments or outputs.
        layouts: of sparse tensors.
    """

    kind: UntraceableKind
    names: Names
    layouts: Names = ()


class StateNeeded(Fact, code="state_needed"):
    """Recorded calls go on from what the ones before left, and a program does not keep that.

    Attributes:
        names: of what it loses.
        call: that is not reproduced; None if other orders of calls show it.
        has_state: whether runs of the program may change anything.
    """

    names: Names
    call: int | None
    has_state: bool


class DrawnByPython(Fact, code="drawn_by_python"):
    """Results depend on numbers of generators that no program has."""

    generators: Names


class Fault(Fact, code="fault"):
    """A fault of calltape."""

    why: Fact


class MostPrograms(Fact, code="most_programs"):
    """A variant gets so many programs, and no more."""

    most: int


class EachAlone(Fact, code="each_alone"):
    """Each of many sizes would need a program of its own."""

    most: int


class ValuesLeft(Fact, code="values_left"):
    """Calls have values that got no program: how many calls of how many."""

    left: int
    calls: int
    most: int


class ConstantsLeft(Fact, code="constants_left"):
    """Values of a tensor got no program: how many of how many."""

    left: int
    values: int
    most: int


class ValuesRejected(Fact, code="values_rejected"):
    """A call has recorded sizes, and values that no program takes."""

    call: int
