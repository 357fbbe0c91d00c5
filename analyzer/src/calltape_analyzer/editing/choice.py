"""Which calls of a tape are wanted.

In come a tape and what somebody asks for. Out go the places of the calls, in order. Records are
decoded only where the question needs them, and no tensor bytes are read.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field, field_validator

from calltape_analyzer.editing.expressions import Expression
from calltape_analyzer.editing.novelty import Novelty
from calltape_analyzer.editing.sized_calls import SizedCalls
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.plain_data import PlainData
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.damage import is_damage
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError
from calltape_schema.records import CallRecord

__all__ = ["Choice", "chosen"]

Finite = Annotated[float, Field(allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Choice(PlainData):
    """What is asked of each call. All of it must hold; then the last four choose among the rest, in
    this order: of ``first=10, last=3`` the last three of the first ten.

    Attributes:
        start, end: when the call began, in seconds since 1970 (UTC): from ``start`` on, before
            ``end``.
        raised: True for calls that raised, False for those that did not.
        slower, faster: the duration in seconds: at least, at most. A call whose duration is unknown
            has neither.
        threads: identifiers of threads.
        where: conditions on sizes (:class:`~calltape_analyzer.editing.expressions.Expression`).
        novel: only calls that add evidence to the ones before them, and those with the smallest
            and the largest sizes.
        every: only each n-th, from the first.
        first, last: only the first calls, and only the last ones.
    """

    start: Finite | None = None
    end: Finite | None = None
    raised: bool | None = None
    slower: Duration | None = None
    faster: Duration | None = None
    threads: tuple[int, ...] = ()
    where: tuple[str, ...] = ()
    novel: bool = False
    every: int | None = Field(default=None, ge=1)
    first: int | None = Field(default=None, ge=0)
    last: int | None = Field(default=None, ge=0)

    @field_validator("where", mode="before")
    @classmethod
    def _one_is_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """What was asked for, without what was not."""
        return self.model_dump(exclude_defaults=True)


def chosen(tape: Tape, choice: Choice) -> array[int]:
    """The places of the wanted calls on a tape. Calls that are damaged are not chosen by what their
    records would say; the tape's ``damage`` names them.

    Raises:
        UsageError: a condition names what no call has.
    """
    tape.calls.scan()  # a damaged call is none, whatever the end of its file says
    found: Iterable[int] = range(len(tape.calls))
    tests = list(_tests(tape, choice))
    if tests:
        found = _passing(tape, tests)
    if choice.novel:
        found = _novel(tape, found)
    if choice.every is not None:
        found = (place for at, place in enumerate(found) if at % choice.every == 0)
    if choice.first is not None:
        found = _first(found, choice.first)
    if choice.last is not None:
        found = deque(found, choice.last)
    return array("Q", found)


def _first(places: Iterable[int], most: int) -> Iterator[int]:
    if most:
        for at, place in enumerate(places, 1):
            yield place
            if at == most:
                return


_Test = Callable[[Call, CallRecord], bool]


def _passing(tape: Tape, tests: Sequence[_Test]) -> Iterator[int]:
    for place, call in enumerate(tape.calls):
        record = _record_of(call)
        if record is not None and all(test(call, record) for test in tests):
            yield place


def _record_of(call: Call) -> CallRecord | None:
    try:
        return call.record
    except TapeError as error:
        if not is_damage(error):
            raise
        return None  # it stands in the tape's damage


def _tests(tape: Tape, choice: Choice) -> Iterator[_Test]:
    start, end = choice.start, choice.end
    if start is not None:
        yield lambda call, record: record.time_ns / 1e9 >= start
    if end is not None:
        yield lambda call, record: record.time_ns / 1e9 < end
    if choice.raised is not None:
        yield lambda call, record: (record.error is not None) == choice.raised
    slower, faster = choice.slower, choice.faster
    if slower is not None:
        yield (
            lambda call, record: (
                record.duration_ns is not None and record.duration_ns / 1e9 >= slower
            )
        )
    if faster is not None:
        yield (
            lambda call, record: (
                record.duration_ns is not None and record.duration_ns / 1e9 <= faster
            )
        )
    if choice.threads:
        yield lambda call, record: record.thread in choice.threads
    if choice.where:
        yield _Sizes(tape, choice.where)


class _Sizes:
    """Whether the sizes of a call meet all conditions. Calls of equal inputs, which have a number,
    are looked at once."""

    def __init__(self, tape: Tape, texts: Sequence[str]) -> None:
        self._expressions = [Expression(text) for text in texts]
        self._calls = SizedCalls(tape)
        self._calls.check(self._expressions)
        self._numbers = _numbers_of(tape)
        self._known: dict[int, bool] = {}

    def __call__(self, call: Call, record: CallRecord) -> bool:
        number = self._numbers[call.index]
        found = self._known.get(number)
        if found is None:
            sizes = self._calls.of(call)
            found = all(expression.holds(sizes) for expression in self._expressions)
            if number != _ALONE:
                self._known[number] = found
        return found


_ALONE = 2**64 - 1


def _numbers_of(tape: Tape) -> array[int]:
    """A small number for each call: calls of equal inputs in one file have one."""
    known: dict[tuple[int, int], int] = {}
    return array(
        "Q",
        (
            _ALONE if found is None else known.setdefault(found, len(known))
            for found in tape.calls.inputs_numbers()
        ),
    )


def _novel(tape: Tape, places: Iterable[int]) -> list[int]:
    sorter, novelty = CallSorter.of(tape), Novelty()
    found: set[int] = set()
    for place in places:
        call = tape.calls[place]
        record = _record_of(call)
        if record is None:
            continue
        raised = None if record.error is None else record.error.type
        if novelty.is_new(sorter.sorted(record.inputs), raised, place):
            found.add(place)
    return sorted(found.union(novelty.extremes()))
