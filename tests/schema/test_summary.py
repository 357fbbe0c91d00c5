"""The summary of a tape: it says what the records say, within its limits, and trusts nobody."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from calltape_schema import summary as summaries
from calltape_schema import summing
from calltape_schema.endings import Coverage, Trailer
from calltape_schema.errors import TapeError
from calltape_schema.framing import END, SUMMARY, TRAILER, member_header, padding
from calltape_schema.locator import Locator, locator_of, summary_member, with_locator
from calltape_schema.packing import pack
from calltape_schema.summary import InputsRow, Summary, decode_summary, encode_summary
from calltape_schema.summing import CallFacts, SummaryBuilder

TAPE = bytes(16)


def trailer(calls: int) -> Trailer:
    return Trailer(
        tape=TAPE, closed_ns=9, coverage=Coverage(seen=calls, kept=calls), index=bytes(16 * calls)
    )


def some_calls(seed: int, count: int) -> list[CallFacts]:
    rng = random.Random(seed)
    numbers = rng.sample(range(10 * count), count)
    scalars: list[list[Any]] = [[], [3], [3.0], [0.0], [-0.0], ["a", 2**70], ["\ud800"], [b"\0"]]
    return [
        CallFacts(
            number,
            time := rng.randrange(1000),
            time + rng.randrange(50),
            rng.random() < 0.2,
            rng.randrange(100),
            rng.choice([b"s", b"structure" * 50]),
            rng.choice([b"", b"leaves", b"other leaves"]),
            pack(rng.choice(scalars)),
            tuple(
                (leaf, rng.randrange(-9, 0), rng.randrange(9)) for leaf in range(rng.choice([0, 2]))
            ),
        )
        for number in numbers
    ]


def plainly(calls: list[CallFacts]) -> dict[Any, tuple[int, int, int, dict[int, tuple[int, int]]]]:
    """The rows, found the long way."""
    found: dict[Any, list[CallFacts]] = {}
    for call in calls:
        key = (call.structure, call.leaves, call.scalars, call.raised)
        found.setdefault(key, []).append(call)
    rows = {}
    for key, same in found.items():
        ranges: dict[int, tuple[int, int]] = {}
        for call in same:
            for leaf, low, high in call.ranges:
                known = ranges.get(leaf, (low, high))
                ranges[leaf] = min(known[0], low), max(known[1], high)
        numbers = [call.number for call in same]
        rows[key] = (len(same), min(numbers), max(numbers), ranges)
    return rows


def told(row: InputsRow) -> tuple[Any, Any]:
    key = (row.structure, row.leaves, pack(row.scalars), row.raised)
    return key, (row.calls, row.first, row.last, row.ranges)


def summed(calls: list[CallFacts]) -> Summary:
    made = SummaryBuilder()
    for call in calls:
        made.add(call)
    found = made.summary(trailer(len(calls)))
    assert found is not None
    return decode_summary(encode_summary(found))


@pytest.mark.parametrize("seed", range(20))
def test_it_says_what_the_records_say(seed: int) -> None:
    calls = some_calls(seed, 1 + 7 * seed)
    found = summed(calls)
    assert found.inputs is not None
    assert dict(map(told, found.inputs.rows())) == plainly(calls)
    assert (found.first_ns, found.last_ns) == (
        min(c.time_ns for c in calls),
        max(c.end_ns for c in calls),
    )
    assert found.raised == sum(c.raised for c in calls)
    assert found.tensor_bytes == sum(c.tensor_bytes for c in calls)
    assert found.first_call == min(c.number for c in calls)
    assert found.last_call == max(c.number for c in calls)


def test_without_calls() -> None:
    found = summed([])
    assert found.inputs is not None
    assert list(found.inputs.rows()) == []
    assert (found.first_call, found.last_ns) == (None, None)


def test_a_trailer_of_other_calls_has_no_summary() -> None:
    made = SummaryBuilder()
    made.add(some_calls(0, 1)[0])
    assert made.summary(trailer(2)) is None


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MAX_INPUTS", 2), ("MAX_INPUT_BYTES", 500), ("MAX_COST", 900), ("MAX_RANGES", 1)],
)
def test_beyond_a_limit_only_calls_are_counted(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summing, limit, value)
    calls = some_calls(3, 60)
    found = summed(calls)
    assert found.inputs is None
    assert found.raised == sum(c.raised for c in calls)
    assert found.last_call == max(c.number for c in calls)


def test_memory_does_not_grow_with_calls() -> None:
    made = SummaryBuilder()
    (call,) = some_calls(5, 1)
    for number in range(10_000):
        made.add(call._replace(number=number))
    assert len(made._rows) == len(made._recent) == 1
    assert len(b"".join(made._packed)) < 1000


def packed(*rows: Any) -> dict[str, Any]:
    """A forged table of these rows."""
    documents = [pack(row) for row in rows]
    data = b"".join(len(one).to_bytes(4, "little") + one for one in documents)
    column = (1).to_bytes(8, "little") * len(rows)
    return {
        "size": len(data), "packed": zlib.compress(data), "calls": column,
        "firsts": column, "lasts": column, "raised": bytes(len(rows)),
    }  # fmt: skip


ROW = [b"s", b"l", []]
FORGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no zlib": lambda t: t.update(packed=b"abc"),
    "cut short": lambda t: t.update(packed=t["packed"][:-4]),
    "something follows": lambda t: t.update(packed=t["packed"] + b"x"),
    "more than announced": lambda t: t.update(size=t["size"] - 1),
    "less than announced": lambda t: t.update(size=t["size"] + 1),
    "a bomb": lambda t: t.update(packed=zlib.compress(bytes(2**26)), size=t["size"]),
    "a row too few": lambda t: t.update(packed([b"s", b"l", []]) | {"calls": bytes(16)}),
    "no array": lambda t: t.update(packed({"a": 1}, ROW)),
    "an array of two": lambda t: t.update(packed([b"s", b"l"], ROW)),
    "no earlier row": lambda t: t.update(packed([0, b"l", []], ROW)),
    "a negative row": lambda t: t.update(packed(ROW, [-1, 0, []])),
    "text for bytes": lambda t: t.update(packed(["s", b"l", []], ROW)),
    "scalars are no array": lambda t: t.update(packed([b"s", b"l", 3], ROW)),
    "no call has it": lambda t: t.update(calls=bytes(16)),
    "a flag of 2": lambda t: t.update(raised=b"\0\2"),
    "a range of no row": lambda t: t.update(ranges=[[2, 0, 0, 0]]),
    "a range without an element": lambda t: t.update(ranges=[[0, 0, 1, 0]]),
    "columns of other lengths": lambda t: t.update(lasts=b""),
    "too large": lambda t: t.update(size=summaries.MAX_INPUT_BYTES + 1),
}


def rows_in(content: bytes) -> list[InputsRow]:
    found = decode_summary(content)
    assert found.inputs is not None
    return list(found.inputs.rows())


@pytest.mark.parametrize("name", FORGED)
def test_forged_tables(name: str) -> None:
    table = packed(ROW, [0, 0, [7]])
    assert len(list(summaries.Inputs(**table).rows())) == 2
    FORGED[name](table)
    document = trailer(2).model_dump(exclude={"index"}, exclude_none=True) | {"inputs": table}
    data = pack(document)
    with pytest.raises(TapeError):
        rows_in(pack([zlib.crc32(data), data]))


def test_rows_that_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "MAX_COST", 64 * 30)
    with pytest.raises(TapeError, match="too much memory") as found:
        list(summaries.Inputs(**packed([b"s", b"l", [1] * 50])).rows())
    assert found.value.kind == "limit"


def member(name: str, content: bytes) -> bytes:
    return member_header(name, len(content)) + content + bytes(padding(len(content)))


def ended(before: bytes = b"") -> tuple[bytes, Locator]:
    """The end of a tape with a summary and its locator."""
    body = before + member(SUMMARY, b"summary")
    locator = Locator(trailer=len(body), summary=len(before))
    return body + member(TRAILER, with_locator(pack([1, b"x" * 600]), locator)) + END, locator


def found_in(data: bytes) -> Any:
    locator = locator_of(data[-2048:])
    if locator is None or max(locator) > len(data):
        return None
    headers = data[locator.trailer :][:512], data[locator.summary :][:512]
    return summary_member(locator, headers, len(data))


def test_the_locator_leads_to_the_summary() -> None:
    data, locator = ended(bytes(1024))
    found = found_in(data)
    assert locator_of(data[-2048:]) == locator
    assert (found.name, found.offset, found.size) == (SUMMARY, 1024, 7)


def test_every_changed_byte_of_the_end() -> None:
    """With any byte changed there is the same summary or none, never another one."""
    data, _ = ended()
    expected = found_in(data)
    for at in range(len(data)):
        for change in (1, 0x80, 0xFF):
            other = bytearray(data)
            other[at] ^= change
            assert found_in(bytes(other)) in (None, expected)


@pytest.mark.parametrize("cut", [1, 511, 512, 1023, 1024, 1025, 1600])
def test_an_end_that_is_cut_has_no_summary(cut: int) -> None:
    data, _ = ended()
    assert found_in(data[:-cut]) is None
    assert found_in(data + bytes(cut)) is None


def test_what_is_no_envelope_gets_no_locator() -> None:
    with pytest.raises(TapeError, match="not an envelope"):
        with_locator(pack([1]), Locator(0, 0))
