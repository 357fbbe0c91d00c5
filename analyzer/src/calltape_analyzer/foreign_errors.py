"""What others say in their errors: torch, torch.onnx (onnxscript) and ONNX Runtime.

Their texts are read here and nowhere else. Takes an error, or a text of one; returns what it means,
as an enum or a fact. Each text is noted with the version in which it was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from calltape_analyzer.facts import Fact, Rejection
from calltape_schema.errors import TapeError

__all__ = [
    "ASKS", "AssertionFailed", "ErrorMeaning", "OtherAssertion", "Raised", "failure_of",
    "is_of_inputs", "meanings_of", "means", "text_of",
]  # fmt: skip

ASKS = "the model asks at "
"""Begins what calltape itself adds to an assertion of torch: where in the model it comes from."""
NOTHING_FOUND = "nothing is found, and the model asks about that at "
"""Begins the assertion that calltape itself puts in the place of one of torch's that a result is
not empty."""


class ErrorMeaning(Enum):
    """What an error means."""

    NEEDS_VALUE = "needs_value"
    """A trace needed the value of a tensor."""
    SIZES_OF_TENSOR = "sizes_of_tensor"
    """A tensor was given for sizes, which no other way of tracing helps."""
    NESTED_TENSOR = "nested_tensor"
    """The model makes a nested tensor."""
    ROUNDED_BOUND = "rounded_bound"
    """torch rounded the bound of a size up by one, and its own assertion fails."""
    NO_SUCH_INDEX = "no_such_index"
    """An ``IndexError``."""
    OF_CALLTAPE = "of_calltape"
    """The tape does not say how the model is called (``InferenceError``)."""
    BEYOND_MEMORY = "beyond_memory"
    """A view begins or ends outside of the memory that it is one of."""
    OF_TAPE = "of_tape"
    """A tape cannot be read, which says nothing of a model."""
    OF_DAMAGE = "of_damage"
    """That, because it is damaged or of another version."""


_SIGNS = {
    # torch 2.12 to 2.15, torch.fx.experimental.symbolic_shapes and torch.export
    ErrorMeaning.NEEDS_VALUE: re.compile(
        r"data-dependent|DataDependent|specialized integer|Could not guard|unbacked|\bu\d+\b"
        r"|\.item\(\)|without concrete values|symbolically traced variables|non-nested SymInt"
        r"|nothing is found, and the model asks"
    ),
    # torch 2.15, arguments of operators
    ErrorMeaning.SIZES_OF_TENSOR: re.compile(r"must be tuple of ints,but got FakeTensor"),
    # torch 2.15, torch.nested
    ErrorMeaning.NESTED_TENSOR: re.compile(r"cast NotImplemented to Tensor|nested_tensor_from"),
    # torch 2.15, ShapeEnv._set_replacement
    ErrorMeaning.ROUNDED_BOUND: re.compile(r"not a subset of"),
    ErrorMeaning.BEYOND_MEMORY: re.compile(
        r"are out of bounds for storage of size"  # torch 2.15, as_strided
    ),
}
_TYPES = {"IndexError": ErrorMeaning.NO_SUCH_INDEX, "InferenceError": ErrorMeaning.OF_CALLTAPE}
_OF_INPUTS = re.compile(
    r"Guard failed|Runtime assertion failed"  # torch 2.12 to 2.15, a program that is run
    r"|Invalid argument|INVALID_ARGUMENT"  # ONNX Runtime 1.21 to 1.26
)
_OF_DAMAGE = ("damaged", "invalid", "unsupported")
_OF_TAPE = (*_OF_DAMAGE, "limit", "io", "closed")
_ASSERTION = re.compile(  # torch 2.12 to 2.15, torch.fx.passes.runtime_assert
    r"Runtime assertion failed for expression (?P<condition>.+?) on node '[^']*'"
    r"(?:: (?P<place>.+))?",
    re.DOTALL,
)
_FAILED = "Runtime assertion failed"
_NOT_EMPTY = re.compile(
    r"expression (?:Ne\((.+), 0\)|(.+) > 0|0 < (.+)|(.+) >= 1|1 <= (.+)) on node"
)
_NOT_NEGATIVE = re.compile(r"expression (?:u\d+ >= 0|0 <= u\d+) on node")
_INPUT = r"L(?:\['[^']*'\]|\[\d{1,9}\])+"
_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]")
"""``L['past'][0]``, and the keys in it (torch 2.12 to 2.15, guards of an exported program)."""
INPUT = re.compile(rf"{_INPUT}(?![\w\[])")
_SIZE = re.compile(rf"({_INPUT})\.size\(\)((?:\[\d+\])+)")
UNBACKED = re.compile(r"\bz?u[f]?\d+\b")
"""A number that torch does not know before it has the values."""
_OF_ONE = re.compile(
    r"(?:Eq|Ne)\((z?uf?\d+), [^u]*\)|(z?uf?\d+) [<>]=? [^u]*|[-\d.]+ [<>]=? (z?uf?\d+)"
)


class Raised(Fact, code="raised"):
    """A model, torch or a runtime raised an error.

    Attributes:
        error: its type.
        said: the first lines of its text.
        kinds: what it means.
    """

    error: str
    said: str
    kinds: tuple[ErrorMeaning, ...] = ()

    @property
    def sentence(self) -> str:
        """The first sentence of it, without what torch says of hints and of its own functions."""
        return _END_OF_SENTENCE.split(self.said, maxsplit=1)[0].rstrip(".")


_END_OF_SENTENCE = re.compile(r"\s+\((?:unhinted|Size-like)|\s+consider using|\. |\n")


class AssertionFailed(Rejection, code="assertion_failed"):
    """What a trace asserted about values does not hold.

    Attributes:
        condition: in torch's notation.
        place: where in the model it comes from; empty if that is unknown.
        kinds: as of :class:`Raised`.
    """

    condition: str
    place: str = ""
    kinds: tuple[ErrorMeaning, ...] = ()


class OtherAssertion(Rejection, code="other_assertion"):
    """An assertion failed that says what it is about in its own words."""

    said: str
    kinds: tuple[ErrorMeaning, ...] = ()


def failure_of(error: BaseException) -> Raised | AssertionFailed | OtherAssertion:
    """What an error is. Of its text, the first lines say what happened: errors of torch go on with
    tracebacks."""
    # torch.onnx 2.12 to 2.15: the cause of a ConversionError says what went wrong.
    while error.__cause__ is not None and type(error).__name__.endswith("ConversionError"):
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", text_of(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = " ".join(lines[:3])[:400]
    if match := _ASSERTION.search(shown):
        condition, place = match["condition"], match["place"] or ""
        # One number that is compared has a place of its own; more of them follow from values.
        assertion = place if _OF_ONE.fullmatch(condition) else f"{condition} {place}"
        return AssertionFailed(condition, place, meanings_of(assertion))
    if shown.startswith(f"{_FAILED}: "):
        said = shown.removeprefix(f"{_FAILED}: ")
        return OtherAssertion(said, meanings_of(said))
    name = type(error).__name__
    of_type = [kind for start, kind in _TYPES.items() if name.startswith(start)]
    if isinstance(error, TapeError):
        of_type += [ErrorMeaning.OF_TAPE] if error.kind in _OF_TAPE else []
        of_type += [ErrorMeaning.OF_DAMAGE] if error.kind in _OF_DAMAGE else []
    return Raised(name, shown, (*of_type, *meanings_of(f"{name}: {shown}")))


def text_of(error: BaseException) -> str:
    """The text of an exception, whatever its class does."""
    try:
        return str(error)
    except Exception as broken:  # code of its class
        return f"(its text raised {type(broken).__name__})"


def means(fact: Fact | None, kind: ErrorMeaning) -> bool:
    """Whether an error is of a kind, in whatever came of it."""
    return fact is not None and any(kind in getattr(part, "kinds", ()) for part in fact.parts)


def meanings_of(text: str) -> tuple[ErrorMeaning, ...]:
    """What the text of an error means, or the line of code that raised it."""
    return tuple(kind for kind, sign in _SIGNS.items() if sign.search(text))


def is_of_inputs(error: Exception) -> bool:
    """Whether a program rejected its inputs, rather than failing with the model's own error. The
    conditions of an exported program are assertions; ONNX Runtime names its own errors."""
    if isinstance(error, AssertionError) or _OF_INPUTS.search(str(error)):
        return True
    return type(error).__module__.startswith("onnxruntime")


def asserted_condition(text: str) -> str | None:
    """The condition that an assertion of torch is about; None for other texts."""
    match = _ASSERTION.match(text)
    return None if match is None else match["condition"]


def asserted_size(text: str) -> str | None:
    """The size that an assertion wants to be more than 0; None for other assertions."""
    match = _NOT_EMPTY.search(text)
    return None if match is None else next(filter(None, match.groups()))


def says_not_negative(text: str) -> bool:
    """Whether an assertion always holds: that a size is not negative."""
    return _NOT_NEGATIVE.search(text) is not None


def place_in_model(text: str) -> str:
    """Where in the model an assertion comes from; empty if it does not say."""
    return text.partition(ASKS)[2]


def says_where(text: str) -> bool:
    """Whether an assertion of torch, or one of a program's own, says where it comes from."""
    return " at " in text


def failed_text(text: str) -> str:
    """The text of an assertion as torch's errors begin with it."""
    return text if text.startswith(_FAILED) else f"{_FAILED}: {text}"


def inputs_of_guard(guard: str) -> Iterator[tuple[str, list[str | int]]]:
    """The inputs that a guard is about, in torch's words, with the keys that lead to each."""
    for match in INPUT.finditer(guard):
        yield match[0], [key or int(position) for key, position in _KEY.findall(match[0])]


def size_of_guard(guard: str) -> tuple[str, str] | None:
    """The first dimension that a guard is about: its input in torch's words, and ``[1]``."""
    match = _SIZE.search(guard)
    return None if match is None else (match[1], match[2])
