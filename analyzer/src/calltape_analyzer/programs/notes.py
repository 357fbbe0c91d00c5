"""What a user should know about a program, or about an export as a whole."""

from __future__ import annotations

from enum import Enum

from calltape_analyzer.facts import Fact, Names, Note


class OneSize(Note, code="one_size"):
    """It serves the sizes of one recorded call, although several were recorded."""


class ByValues(Note, code="by_values"):
    """It was traced with the values of one call, and may have conditions on them."""


class StateKept(Note, code="state_kept"):
    """A call changes state of the model, and so does the program."""

    names: Names


class StateLost(Note, code="state_lost"):
    """A call changes state of the model that is a constant of the program.

    Attributes:
        names: of the state.
        values: of the first ones at the export; empty for long values.
        has_state: whether runs of the program may change anything.
        depends: whether later calls of the model depend on it; None if that was not tried.
    """

    names: Names
    values: Names
    has_state: bool
    depends: bool | None


class Unwritten(Note, code="unwritten"):
    """The model changes an argument in place, and the program does not.

    Attributes:
        name: of the argument.
        is_returned: whether its new values are in the result, from where a call writes them back.
    """

    name: str
    is_returned: bool = False


class OtherStrides(Note, code="other_strides"):
    """An output has other strides than the recorded one."""

    output: str
    got: str | None
    wanted: str | None


class SharedMemory(Note, code="shared_memory"):
    """Outputs of the model share memory with an argument. Those of the program may not."""

    name: str
    outputs: Names


class Draws(Note, code="draws"):
    """Results depend on random numbers of these generators."""

    generators: Names


class NotDrawn(Note, code="not_drawn"):
    """The model draws random numbers with Python, and results do not depend on them."""

    generators: Names


class WhyNotOthers(Enum):
    """Why a program does not serve sizes at which it was not verified."""

    CONDITIONS = "conditions"
    """It has conditions that cannot be checked here."""
    FAILED = "failed"
    """Its runtime raised errors at sizes that it should take."""
    OTHER_MODEL = "other_model"
    """The model does not return what was recorded."""
    WRONG = "wrong"
    """It returned wrong values at recorded sizes."""
    WRONG_UNSEEN = "wrong_unseen"
    """It returned wrong values at unrecorded sizes."""


class WhyOnly(Fact, code="why_only"):
    """The same, with how many of how many tried sizes were like that, and the runtime."""

    kind: WhyNotOthers
    sizes: int = 0
    tried: int = 0
    runtime: str = ""


class ServesOnly(Note, code="serves_only"):
    """It serves only recorded sizes at which it was right."""

    sizes: int
    why: Fact


class ServesSome(Note, code="serves_some"):
    """It serves some of the recorded sizes of its variant."""

    sizes: int
    of: int


class Excluded(Note, code="excluded"):
    """It rejects a size of some dimensions, because it is wrong there.

    Attributes:
        size: that it rejects.
        names: of the dimensions.
        is_unlike: whether the model does not return what was recorded there.
    """

    size: int
    names: Names
    is_unlike: bool


class FailsAt(Note, code="fails_at"):
    """Its runtime raises an error where several sizes are 0 or 1 at once."""

    runtime: str
    sizes: Names


class NotCompared(Note, code="not_compared"):
    """A part of an output could not be compared."""

    what: Fact


class ComesAsPlaceholder(Fact, code="comes_as_placeholder"):
    """An object of a result cannot be made, although its class is known."""

    type_name: str
    reason: str


class ReturnsPlaceholders(Note, code="returns_placeholders"):
    """Results contain objects of unknown classes."""

    classes: Names


class OfProgram(Note, code="of_program"):
    """What a user should know about one of several programs."""

    program: str
    note: Note

    @property
    def is_remark(self) -> bool:
        return self.note.is_remark


class ConstantTensor(Note, code="constant_tensor"):
    """A tensor is a constant of it."""

    place: str


class ConstantTexts(Note, code="constant_texts"):
    """Varying texts or floats are constants of it, and made no difference where it was tried.

    Attributes:
        names: of the arguments.
        tried, values: how many of how many recorded values were tried.
        shortest, longest: of texts; None if there are none.
    """

    names: Names
    tried: int
    values: int
    shortest: int | None
    longest: int | None


class OpenFloats(Note, code="open_floats"):
    """Floats that vary are inputs of it.

    Attributes:
        names: of the arguments.
        tried, values: with how many of how many recorded values it was compared with the model.
    """

    names: Names
    tried: int
    values: int

    @property
    def is_remark(self) -> bool:
        return True


class UnreadInputs(Note, code="unread_inputs"):
    """It does not depend on the values of some inputs."""

    names: Names


class EmptyAgrees(Note, code="empty_agrees"):
    """If nothing is found, it continues where the model stops early, and returns the same."""


class TracedInTraining(Note, code="traced_in_training"):
    """It was exported in training mode, as it was recorded."""


class ModelInTraining(Note, code="model_in_training"):
    """The model is in training mode, and its calls were recorded in evaluation mode."""


class Probed(Note, code="probed"):
    """The result of unrecorded sizes.

    Attributes:
        sizes, agreed, wrong: at how many it was tried, agreed with the model, and did not.
        probe: which sizes were asked for.
        declined: at how many the model itself raised an error.
        varied: whether any size varied.
    """

    sizes: int
    agreed: int
    wrong: int
    probe: str
    declined: int
    varied: bool

    @property
    def is_remark(self) -> bool:
        return self.sizes == self.agreed > 0


class Untried(Note, code="untried"):
    """Unrecorded sizes that were not tried: the first, and how many more."""

    first: Fact
    more: int
    is_well: bool

    @property
    def is_remark(self) -> bool:
        return self.is_well


class _Remark(Note):
    @property
    def is_remark(self) -> bool:
        return True


class EveryItem(_Remark, code="every_item"):
    """Its loops over selected items run for every item."""


class TracedUnseen(_Remark, code="traced_unseen"):
    """It was traced at unrecorded sizes."""


class TakesZero(_Remark, code="takes_zero"):
    """It accepts sizes of 0 for dimensions, each alone or several at once.

    Attributes:
        names: of the dimensions.
        has_values: whether outputs have elements there, which were compared.
    """

    names: Names
    has_values: bool


class MergeCost(_Remark, code="merge_cost"):
    """An attempt at one program for several variants failed."""

    names: Names
    seconds: int


class MergeRejects(Note, code="merge_rejects"):
    """The one program for several variants rejects sizes that the model accepts."""

    names: Names


class OwnTensor(Note, code="own_tensor"):
    """The model returns something else if an argument is its own tensor."""

    place: str
    own: str


class SeveralLayouts(Note, code="several_layouts"):
    """Tensors came with several strides, which the model does not read."""

    names: Names


class AskedModes(Note, code="asked_modes"):
    """The model reads the mode of its caller."""

    modes: Names


class KeyOrders(Note, code="key_orders"):
    """The model reads the order of the keys of dicts."""

    names: Names


class StridesRead(Note, code="strides_read"):
    """The model reads the strides of tensors."""

    names: Names


class GradsRead(Note, code="grads_read"):
    """The model reads whether tensors require gradients, or could not be asked."""

    names: Names


class AskedFacts(Note, code="queried_facts"):
    """The model's code queries facts about tensors that no program gets."""

    asked: Names


class Question(Enum):
    """What runs of a model should find out."""

    STRIDES = "strides"
    """Whether it reads the strides of its arguments."""
    KEY_ORDER = "key_order"
    """Whether it reads the order of the keys of its dicts."""


class NotAsked(Note, code="not_asked"):
    """A question about the model has no answer, because a run did not finish.

    Attributes:
        variant: whose calls ran.
        question: the question.
        why: how the run ended.
    """

    variant: str
    question: Question
    why: Fact


class OtherModel(Note, code="other_model"):
    """The model does not return what was recorded.

    Attributes:
        calls: the numbers of the calls, as texts.
        difference: of the first of them.
        outside: what the recording names as outside of the model.
        asked: what the model's code queries, as in :class:`AskedFacts`.
    """

    calls: Names
    difference: Fact
    outside: Names = ()
    asked: Names = ()


class ValuesUnchecked(Note, code="values_unchecked"):
    """Only a run of programs checks their guards on values."""

    programs: Names
