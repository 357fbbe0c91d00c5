"""Why there is no program, no better one, or none that takes a call: the result of an attempt, what
a variant lacks, which unrecorded sizes were not tried, and how a call differs from a program's.
And the strategies that attempts follow."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from calltape_analyzer.facts import Fact, Names, Rejection
from calltape_analyzer.foreign_errors import ErrorKind, Raised, inputs_in, size_in
from calltape_analyzer.programs.notes import ServesOnly


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


Taker = Literal["model", "program"]


class OtherCall(Rejection, code="other_call"):
    """A call has another structure, dtype or constant than the calls of the program."""

    difference: str


class UnknownClass(Rejection, code="unknown_class"):
    """An argument is a placeholder for an object of a class, or holds one: the class was not known
    when the programs were loaded."""

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
    """A size or an int is another one than that of an input."""

    place: str
    got: int
    wanted: int
    by: Taker = "program"


class UnequalSizes(Rejection, code="unequal_sizes"):
    """A size is another one than elsewhere in the call, and a trace took them to be equal."""

    place: str
    got: int
    wanted: int


class UnequalNames(Rejection, code="unequal_names"):
    """Two sizes differ whose dimensions have one name in an ONNX model."""

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
        return dict(zip((text for text, _ in inputs_in(self.guard)), self.names, strict=False))

    @property
    def dimension(self) -> str | None:
        found = size_in(self.guard)
        return None if found is None else f"{self.named.get(found[0], found[0])}{found[1]}"


class ByTrace(Rejection, code="by_trace"):
    """A condition of a trace does not hold: recorded calls do not say so."""

    condition: Rejection

    @property
    def dimension(self) -> str | None:
        return self.condition.dimension


class OtherValue(Rejection, code="other_value"):
    """A text, number or tensor has another value than the constant of a program, as shown; None if
    both look the same when they are cut."""

    place: str
    got: str
    wanted: str | None


class SharesMemory(Rejection, code="shares_memory"):
    """An argument is the model's own tensor, for which the model returns something else."""

    place: str
    own: str


class Unverified(Rejection, code="unverified"):
    """A program that serves only some sizes was not verified at these; nobody knows whether it
    would be right.

    Attributes:
        recorded: whether calls had them.
        only: what it serves.
    """

    recorded: bool
    only: ServesOnly | None


class RunFailed(Rejection, code="run_failed"):
    """A program took the call, and raised an error."""

    why: Fact


class NotExported(Rejection, code="not_exported"):
    """There is no program."""

    why: Fact


class NoProgram(Rejection, code="no_program"):
    """None of several programs takes a call.

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
    """The call brings a cache that is filled, and the model takes none."""

    name: str


class Strategy(Enum):
    """What an attempt tries."""

    PLAIN = "plain"
    """All dynamic sizes are open, and no value is known."""
    OPEN_LENGTHS = "open_lengths"
    """The lengths of recurrent layers are open as well."""
    GROWING_BUFFERS = "growing_buffers"
    """The model may register buffers while it is traced."""
    OPEN_SIZE_INTS = "open_size_ints"
    """Ints that the model makes of sizes are open."""
    DEFERRED = "deferred"
    """Conditions become assertions, where they can."""
    OPEN_INTS = "open_ints"
    """Ints that the model reads from tensors are open."""
    NOT_EMPTY = "not_empty"
    """Results whose size only values tell are taken not to be empty."""
    OPEN_NUMBERS = "open_numbers"
    """By the values of a call, with numbers of tensors open."""
    BY_VALUES = "by_values"
    BY_VALUES_OPEN_INTS = "by_values_open_ints"
    BY_VALUES_DEFERRED = "by_values_deferred"
    EVERY_ITEM = "every_item"
    """Loops over what is hit run for every item."""
    OPEN_FLOATS = "open_floats"
    """Floats that the model makes of sizes are open."""
    UNNOTICED = "unnoticed"
    """The model is told that there is no trace."""
    BATCHED_EXPERTS = "batched_experts"
    """Experts run in the one way that can be converted."""
    FIRST_DIMENSIONS = "first_dimensions"
    """Only first dimensions are open."""
    ONE_SIZE = "one_size"
    """No size is open."""
    MERGED = "merged"
    """One program for several variants; the model itself was asked first."""
    NOT_TRACED = "not_traced"
    """No trace can take the variant."""
    IN_A_ROW = "in_a_row"
    """The model was called several times in a row: no program keeps what a call leaves."""
    COMPARED = "compared"
    """The model was compared with what was recorded, and differs."""
    BESIDE = "beside"
    """Sizes beside wrong ones were run through a program."""


class Sampled(Fact, code="sampled"):
    """The arguments of an attempt: those of a recorded call, resized to other sizes unless these
    are empty."""

    call: int
    sizes: str = ""


class Tried(Fact, code="tried"):
    """A strategy, and the arguments that it was tried with."""

    strategy: Strategy
    sample: Sampled | None = None
