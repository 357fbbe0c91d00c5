"""The table of privacy is true: a secret of its own in every place, recorded in every mode and with
every policy, and searched for in every byte of every file, while calls run and afterwards, and in
the log."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest
import torch

from calltape_analyzer import open_tape, render
from calltape_recorder import (
    First,
    FlightRecorder,
    Novelty,
    PerSecond,
    PerStructure,
    Rate,
    Recorder,
    When,
    record,
)
from tests.recorder.privacy_table import Kind, Told
from tests.recorder.processes import in_a_fork
from tests.recorder.secrets import (
    CHUNK_TRACES,
    MESSAGE,
    MORE,
    SECRET,
    Model,
    S,
    use,
)
from tests.unpacked import readable

BY_PATH = {
    "*": "all", "secret": "none", "quokka_parameter": "none", "more": "none", "outputs": "none",
}  # fmt: skip
ALL_OF_IT = {"*": "none", **{path: "none" for path in BY_PATH if path != "*"}}
VALUES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "all": ("all", ("all",)),
    "none": ("none", ("none",)),
    "star": ({"*": "none"}, ("none",)),
    "path": (BY_PATH, ("path",)),
    "both": (ALL_OF_IT, ("none", "path")),
    "one": ({"*": "none", "mode": "all"}, ("none",)),
}


class Way(NamedTuple):
    """Options, whether calls are kept, and whether all of them are."""

    options: dict[str, Any]
    keeps: bool = True
    is_whole: bool = False


def quokka_predicate(args: Any, kwargs: Any) -> bool:
    return True


S.note(Kind.YOUR_WORDS, "predicate", b"quokka_predicate")


def broken(args: Any, kwargs: Any) -> bool:
    raise ValueError(S.traces[Kind.LOG]["predicate"][0].decode())


S.text(Kind.LOG, "predicate")

WAYS: dict[str, Way] = {
    "plain": Way({"keep": When(quokka_predicate)}, is_whole=True),
    "method": Way({"via": "method"}),
    "segments": Way({"segment_bytes": 1, "write_ahead": True}),
    "novelty": Way({"keep": Novelty() | Rate(0.5, seed=1) & PerSecond(5)}),
    "per structure": Way({"keep": PerStructure(1)}),
    "deleted": Way({"segment_bytes": 4096, "max_disk_bytes": 10**6, "when_full": "delete_oldest"}),
    "dumped": Way({"keep": First(0), "flight_recorder": FlightRecorder(), "write_ahead": True}),
    "not kept": Way({"keep": First(0) & When(quokka_predicate)}, keeps=False, is_whole=True),
    "broken": Way({"keep": When(broken)}, keeps=False),
    "no room": Way({"max_queue_bytes": 4, "write_ahead": True}, keeps=False),
}


def recorded(folder: Path, way: Way, values: Any) -> list[bytes]:
    """All that was in files, at any time."""
    model = Model(folder)
    recorder = Recorder(folder / "t.tape", values=values, **way.options).attach(model)
    use(model)
    use(model)  # the second time calls are repeats
    if way.is_whole:
        in_a_fork(lambda: model(SECRET, **MORE) is not None)
    recorder.flush()
    recorder.seal()
    use(model)
    if "flight_recorder" in way.options:
        recorder.dump(REASON)
        assert recorder.flush()
    recorder.close()
    is_broken = way is WAYS["broken"]
    assert (recorder.stats().dropped.get("internal", 0) > 0) == is_broken, recorder.stats()
    model.look()
    if "flight_recorder" in way.options:
        assert found(model.during, [REASON.encode()])
    return model.during


REASON = "<wombat> asked for it"


def found(places: list[bytes], traces: list[bytes]) -> bool:
    return any(trace in place for place in places for trace in traces)


def check(places: list[bytes], columns: tuple[str, ...], kinds: Any, *, is_whole: bool) -> None:
    """What the table says is not there, is not; where ``is_whole``, what it says is there, is."""
    wrong: list[str] = []
    for kind in kinds:
        said = [getattr(kind.row.columns, column) for column in columns]
        for name, traces in S.traces[kind].items():
            is_there = found(places, traces)
            if is_there and any(told is not Told.YES for told in said):
                wrong.append(f"on the tape: {kind} ({name})")
            if is_whole and not is_there and all(told is Told.YES for told in said):
                wrong.append(f"not on the tape: {kind} ({name})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("way", WAYS)
def test_the_table_is_true(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str, values: str
) -> None:
    given, columns = VALUES[values]
    caplog.set_level(logging.DEBUG)
    places = recorded(tmp_path, WAYS[way], given)
    assert sum(map(len, places)) > 1000
    if not WAYS[way].keeps:
        columns = tuple("unkept" if c == "all" else "unkept_none" for c in columns)
    # With "*" and a path both, some of what one column says is there is not by the other.
    is_whole = WAYS[way].is_whole and len(columns) == 1 and values not in ("star", "one")
    check(places, columns, S.traces.keys() - {Kind.LOG}, is_whole=is_whole)
    log = [caplog.text.encode()]
    check(log, columns, [Kind.LOG], is_whole=way == "broken")
    private = S.traces.keys() - {Kind.LOG, Kind.YOUR_WORDS, Kind.TARGET}
    check(log, ("unkept_none",), private, is_whole=False)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("method", ["generate", "stream"])
def test_streams_leak_no_values(tmp_path: Path, values: str, method: str) -> None:
    given, columns = VALUES[values]
    model = Model(tmp_path)
    options: dict[str, Any] = {"values": given, "method": method, "write_ahead": True}
    with record(model, tmp_path / "t.tape", **options):
        made: Any = getattr(model, method)(SECRET, **MORE)
        if method == "generate":
            list(made)
        else:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    with contextlib.suppress(StopIteration):
                        made.__anext__().send(None)
    model.look()
    check(model.during, columns, S.traces.keys() - {Kind.LOG}, is_whole=False)
    for kind in (Kind.RETURNED, Kind.RETURNED_TEXT, Kind.FEW_RANGE):
        assert found(model.during, CHUNK_TRACES[kind]) == (values == "all")


STATED = {Kind.SHAPES, Kind.TIMES, Kind.BOOKKEEPING, Kind.VERSIONS, Kind.HISTORY}
"""What is not a secret that bytes can be searched for."""


def test_every_kind_is_searched_for_or_stated() -> None:
    assert S.traces.keys() | STATED == set(Kind)
    assert not S.traces.keys() & STATED
    told = {told for kind in S.traces for told in kind.row.columns}
    assert told == {Told.YES, Told.NO, Told.LENGTH}


def test_a_mode_that_leaves_more_out_has_no_more() -> None:
    """So the page can tell calls that were not kept, and paths, by a mark in a cell."""
    openness = (Told.NO, Told.LENGTH, Told.SIZES, Told.YES)
    for kind in Kind:
        every, none, path, unkept, unkept_none = map(openness.index, kind.row.columns)
        assert every >= none >= path, kind
        assert every >= unkept >= unkept_none, kind
        assert unkept_none in (0, unkept), kind


IN_SHORT = (
    ('`values="none"` keeps shapes,', Kind.SHAPES, Told.YES),
    ("the length of text and bytes,", Kind.TEXT, Told.LENGTH),
    ("single numbers in arguments,", Kind.INTS, Told.YES),
    ("single numbers in arguments,", Kind.FLOATS, Told.YES),
    ("the class of an exception,", Kind.OUTCOME, Told.YES),
    (
        "and the smallest and largest element of integer tensors with 1,024 distinct elements or"
        " more.",
        Kind.MANY_RANGE, Told.YES,
    ),
    ("It omits all other elements,", Kind.ELEMENTS, Told.NO),
    ("It omits all other elements,", Kind.FEW_RANGE, Told.NO),
    ("text,", Kind.TEXT, Told.LENGTH),
    ("long lists of numbers,", Kind.LISTS_AND_KEYS, Told.NO),
    ("exception messages,", Kind.RETURNED_TEXT, Told.LENGTH),
    ("and the numbers", Kind.RETURNED, Told.NO),
    ("and text that the model returned.", Kind.RETURNED_TEXT, Told.LENGTH),
    ("No tape contains weights,", Kind.PRIVATE, Told.NO),
    ("code,", Kind.PRIVATE, Told.NO),
    ("environment variables or the host name.", Kind.PRIVATE, Told.NO),
)  # fmt: skip
"""The sentences of the production page, phrase by phrase, and what the table says of each."""


def test_the_production_page_says_the_same_in_short() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/production.md").read_text()
    section = page.partition("## Keep private data off the tape")[2].partition("\n## ")[0]
    phrases = dict.fromkeys(says for says, _, _ in IN_SHORT)
    text, _, rest = " ".join(section.split()).partition(" [Privacy]")
    assert rest.startswith("(privacy.md) has the full list.")
    assert text == f"A tape with values is a log of request bodies. {' '.join(phrases)}"


@pytest.mark.parametrize(("says", "kind", "told"), IN_SHORT)
def test_the_table_says_so_too(says: str, kind: Kind, told: Told) -> None:
    assert kind.row.columns.none is told
    if kind is Kind.PRIVATE:
        assert set(kind.row.columns) == {Told.NO}  # in every mode


def test_the_machine_is_not_on_a_tape(tmp_path: Path) -> None:
    places = recorded(tmp_path, WAYS["segments"], "all")
    for private in (platform.node(), str(tmp_path), os.getcwd(), os.path.expanduser("~")):
        if len(private) > 5:
            assert not found(places, [private.encode()]), private


def test_lengths_are_on_it(tmp_path: Path) -> None:
    """What is said of a text that is withheld."""
    recorded(tmp_path, WAYS["plain"], "none")
    tape = open_tape(tmp_path / "t.tape")
    shown = render(tape[0].inputs)
    text = SECRET["text"]
    assert f"<text of {len(text)} characters, not kept>" in shown
    assert f"<bytes, {len(SECRET['bytes'])} of them, not kept>" in shown
    raised = [call.record.error for call in tape if call.record.error is not None]
    assert {error.message for error in raised} == {f"({len(MESSAGE)} characters, not kept)"}


def test_a_secret_is_found_where_there_is_one() -> None:
    """The search itself."""
    row = S.traces[Kind.FEW_RANGE]["prompt"]
    assert found([b"...", b"x" + row[0] + b"y"], row)
    assert not found([b"...", b"xy"], row)
    numbers = S.traces[Kind.INTS]["int"]
    assert found([msgpack.packb({"n": SECRET["int"]})], numbers)


def test_names_of_fields_of_an_array_are_not_on_it(tmp_path: Path) -> None:
    """The text of its dtype has them. The counters say only how large an element is."""
    import numpy as np

    array = np.zeros(3, dtype=[("quokka_field", "i4"), ("other", "f4")])
    model = torch.nn.Identity()
    with record(model, tmp_path / "t.tape", values="none", keep=First(1)):
        for _ in range(3):
            model(array)
    tape = readable((tmp_path / "t.tape").read_bytes())
    assert b"quokka_field" not in tape
    assert b"void64" in tape
