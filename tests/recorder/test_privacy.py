"""docs/privacy.md is true: a secret of its own in every place, recorded in every mode and with
every policy, and searched for in every byte of every file, while calls run and afterwards, and in
the log."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import os
import platform
import re
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
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
from tests.recorder.test_ends import in_a_fork

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "privacy.md").read_text()
COLUMNS = ("all", "none", "path", "not kept, all", "not kept, none")


def table() -> dict[str, dict[str, str]]:
    """Per row of the page, what it says per column."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in PAGE.splitlines()
        if line.startswith("| ") and line.count(" | ") == len(COLUMNS)
    ]
    assert tuple(rows[0][1:]) == COLUMNS
    return {row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in rows[2:]}


TABLE = table()

# What is not a secret that bytes can be searched for.
STATED = {
    "shapes, strides, dtypes, devices, flags, what shares memory",
    "None, bools",
    "that an integer tensor of 1,024 elements or more has no elements but 0 and 1",
    "default of a parameter: None, bool, a number up to 1,024",
    "how many calls there were, and why they are not on the tape",
    "time, duration and thread of each call, which ran within which",
    "versions of Python, torch, transformers and calltape; the platform",
}


class Secrets:
    """Makes them, and knows which row of the page each is for.

    Attributes:
        traces: per row, per secret, the bytes of which any betrays it.
    """

    def __init__(self) -> None:
        self.traces: dict[str, dict[str, list[bytes]]] = {}

    def _note(self, row: str, name: str, *traces: bytes) -> None:
        assert row in TABLE, row
        named = self.traces.setdefault(row, {})
        assert name not in named
        named[name] = list(traces)

    def text(self, row: str, name: str) -> str:
        text = f"#{list(TABLE).index(row)} {name} <wombat>"
        self._note(row, name, text.encode())
        return text

    def word(self, row: str, name: str) -> str:
        word = f"quokka_{list(TABLE).index(row)}_{name}"
        self._note(row, name, word.encode())
        return word

    def int(self, row: str, name: str) -> int:
        number = 0x5EC4E70000000 + len(repr(self.traces)) * 7919
        little = number.to_bytes(8, "little")
        self._note(row, name, msgpack.packb(number), little, str(number).encode())
        return number

    def float(self, row: str, name: str) -> float:
        number = self.int(row, name) / 3
        traces = struct.pack(">d", number), struct.pack("<d", number), repr(number).encode()
        self.traces[row][name] = list(traces)
        return number

    def floats(self, row: str, name: str) -> torch.Tensor:
        value = torch.rand(5, generator=torch.Generator().manual_seed(len(repr(self.traces))))
        self._note(row, name, value.numpy().tobytes())
        return value

    def ids(self, row: str, name: str, count: int, dtype: torch.dtype = torch.int64) -> Any:
        """Token ids. Of few of them each is a secret, of many their bounds."""
        first = 70_000 + len(repr(self.traces))
        ids = torch.arange(first, first + count, dtype=dtype).flip(0)
        low, high = int(ids.min()), int(ids.max())
        traces = [msgpack.packb(low), msgpack.packb(high)]
        self._note(row, name, *traces)
        self._note(_ELEMENTS, name, ids[:5].numpy().tobytes())
        return ids

    def padded(self, count: int, fill: int = 0) -> Any:
        """A padded decoding step: some ids, each a secret, at the end of what fills the rest."""
        made = torch.full((2048,), fill)
        for place in range(count):
            made[-1 - place] = self.int(_PADDED, f"{count} in {fill}, {place}")
        return made


_ELEMENTS = "elements of tensors and arrays"
_NESTED = "text within lists, dicts, dataclasses and other containers"
_RETURNED_TEXT = "text that is returned, or yielded"
_RETURNED = "numbers that are returned, or yielded"
_NAMES = "names of classes, and of fields of dataclasses"
_KEYS = "keys of dicts, and names of keyword arguments, that look like names"
_OTHER_KEYS = "keys of dicts, and names of keyword arguments, that do not"
_FEW = "smallest and largest of an integer tensor of fewer than 1,024 different elements"
_PADDED = "a number that fills or pads an integer tensor, and the few others in it"
_MACHINE = "environment, command line, host name, user name, paths"
_YOURS = "name of a predicate (`When`), patterns of `values`, reason of a dump"
_LOGGED = "in the log: message of an exception of a predicate, or of the recorder"
_CLASS = "class of an exception that a call raised"
_MESSAGE = "message of an exception that a call raised"
_UNKNOWN = "`str` and `repr` of any object; attributes of an argument of an unknown class"
_WORD_DEFAULT = "default of a parameter: a larger number, one word"
_OTHER_DEFAULT = "default of a parameter: other text, bytes, of a parameter named like a secret"

S = Secrets()


# --- what is recorded ----------------------------------------------------------------------------


@dataclasses.dataclass
class QuokkaRequest:
    quokka_field: str


S._note(_NAMES, "class", b"QuokkaRequest")
S._note(_NAMES, "field", b"quokka_field")
S._note("names of attributes of a returned object", "attribute", b"quokka_attribute")


class Pair(NamedTuple):
    first: Any
    second: Any


class Unknown:
    def __init__(self) -> None:
        self.secret = S.text(_UNKNOWN, "attribute")

    def __repr__(self) -> str:
        return S.traces[_UNKNOWN]["repr"][0].decode()


S.text(_UNKNOWN, "repr")


class Returned(Unknown):
    """Of a class as unknown, which a model returns."""

    def __init__(self) -> None:
        self.quokka_attribute = S.text(_RETURNED_TEXT, "attribute")
        self.number = S.int(_RETURNED, "attribute")
        self.latent = S.floats(_ELEMENTS, "attribute")
        self.ids = S.ids(_FEW, "attribute of ids", 3)
        self.inner = SimpleNamespace(text=S.text(_RETURNED_TEXT, "inner attribute"))


class Registered:
    def __init__(self, tensor: Any, context: Any) -> None:
        self.tensor = tensor
        self.context = context


torch.utils._pytree.register_pytree_node(
    Registered, lambda r: ([r.tensor], r.context), lambda c, context: Registered(c[0], context)
)


class QuokkaCache:
    def __init__(self) -> None:
        self.length = S.int("ints in a cache (lengths and settings)", "length")
        self.note = S.text(_NESTED, "attribute of a cache")


class Style(str, enum.Enum):
    QUOKKA_MEMBER = S.text("values of members of enums", "text")


class Level(enum.Enum):
    HIGH = S.int("values of members of enums", "int")


S._note("names of members of enums", "name", b"QUOKKA_MEMBER")


class QuokkaError(Exception):
    pass


S._note(_CLASS, "class", b"QuokkaError")

_LARGE_DEFAULT = S.int(_WORD_DEFAULT, "int")
_WORD = S.word(_WORD_DEFAULT, "word")
_SENTENCE = S.text(_OTHER_DEFAULT, "text")
_KEY = S.word(_OTHER_DEFAULT, "key")
_DATA = S.text(_OTHER_DEFAULT, "bytes").encode()
S._note("names of parameters", "name", b"quokka_parameter")


def planted() -> tuple[dict[str, Any], dict[str, Any]]:
    """The argument ``secret``, and further keyword arguments."""
    filled = S.int(_PADDED, "number")
    many = "numbers in a list, tuple or set of more than 8"
    secret = {
        "tensor": S.floats(_ELEMENTS, "tensor"),
        "array": S.floats(_ELEMENTS, "array").numpy(),
        "decode": S.ids(_FEW, "one id", 1),
        "prompt": S.ids(_FEW, "prompt", 9),
        "on the edge": S.ids(_FEW, "1,023 ids", 1023),
        "narrow": S.ids(_FEW, "int32", 100, torch.int32),
        "view": S.ids(_FEW, "strided", 40)[::2],
        "many": S.ids("smallest and largest of an integer tensor of more", "ids", 1024),
        "filled": torch.full((1500,), filled),
        "padded": S.padded(1),
        "padded, ten": S.padded(10),
        "padded, a pad id": S.padded(1, S.int(_PADDED, "pad")),
        "padded, a pad id, ten": S.padded(10, S.int(_PADDED, "another pad")),
        "expanded": torch.full((1,), filled).expand(1500),
        "text": S.text("text that is an argument", "text"),
        "long": S.text("text that is an argument", "long") * 500,
        "bytes": S.text("bytes that are an argument", "bytes").encode(),
        "bytearray": bytearray(S.text("bytes that are an argument", "bytearray").encode()),
        "list": [S.text(_NESTED, "list"), [S.text(_NESTED, "list of lists")]],
        "tuple": (S.text(_NESTED, "tuple"), Pair(1, S.text(_NESTED, "named tuple"))),
        "set": {S.text(_NESTED, "set")},
        "slice": slice(S.text(_NESTED, "slice")),
        "request": QuokkaRequest(S.text(_NESTED, "dataclass")),
        "space": SimpleNamespace(text=S.text(_NESTED, "object")),
        "registered": Registered(torch.ones(2), S.text(_NESTED, "context")),
        "int": S.int("ints that are arguments", "int"),
        "float": S.float("floats and complex numbers that are arguments", "float"),
        "complex": complex(S.float("floats and complex numbers that are arguments", "real"), 1),
        "ids": [S.int(many, f"list {n}") for n in range(9)],
        "set of ids": {S.int(many, f"set {n}") for n in range(9)},
        "nested ids": [[S.int(many, f"list of lists {n}")] for n in range(9)],
        "cache": QuokkaCache(),
        S.word(_KEYS, "key"): 1,
        S.text(_OTHER_KEYS, "key"): 1,
        S.int(_OTHER_KEYS, "int"): 1,
        S.text(_OTHER_KEYS, "bytes").encode(): 1,
        (S.text(_OTHER_KEYS, "in a tuple"), 1): torch.ones(1),
        "style": Style.QUOKKA_MEMBER,
        "level": Level.HIGH,
        "unknown": Unknown(),
    }
    more = {S.word(_KEYS, "argument"): 1, S.text(_OTHER_KEYS, "argument"): torch.ones(1)}
    return secret, more


SECRET, MORE = planted()
RESULT = {
    "text": S.text(_RETURNED_TEXT, "text"),
    "list": [S.text(_RETURNED_TEXT, "list"), S.text(_RETURNED_TEXT, "bytes").encode()],
    "int": S.int(_RETURNED, "int"),
    "float": S.float(_RETURNED, "float"),
    "tensor": S.floats(_ELEMENTS, "output"),
    "next": S.ids(_FEW, "next id", 1),
    "object": Returned(),
}
CHUNKS = [
    S.text(_RETURNED_TEXT, "chunk"), S.int(_RETURNED, "chunk"), S.ids(_FEW, "chunk", 3),
    {"choices": [S.text(_RETURNED_TEXT, "deep in a chunk")]},
]  # fmt: skip
# Only streams yield these.
CHUNK_TRACES = {
    row: [trace for name in list(named) if "chunk" in name for trace in named.pop(name)]
    for row, named in S.traces.items()
}
MESSAGE = S.text(_MESSAGE, "message")
os.environ["QUOKKA"] = S.text(_MACHINE, "environment")


class Model(torch.nn.Module):
    """Notes all files that are there while it runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.during: list[bytes] = []
        self.weight = torch.nn.Parameter(WEIGHTS.clone())

    def look(self) -> None:
        self.during += [path.read_bytes() for path in self.folder.rglob("*") if path.is_file()]

    def forward(
        self, secret: Any = None, quokka_parameter: Any = _LARGE_DEFAULT, mode: str = _WORD,
        text: str = _SENTENCE, api_key: str = _KEY, data: bytes = _DATA, **more: Any,
    ) -> Any:  # fmt: skip
        self.look()
        if secret == "raise":
            raise QuokkaError(MESSAGE) from ValueError(MESSAGE)
        return RESULT

    def generate(self, secret: Any = None, **more: Any) -> Iterator[Any]:
        for chunk in CHUNKS:
            self.look()
            yield chunk

    async def stream(self, secret: Any = None, **more: Any) -> AsyncIterator[Any]:
        for chunk in CHUNKS:
            self.look()
            yield chunk


WEIGHTS = S.floats("weights", "weight")


def use(model: Model) -> None:
    model(SECRET, **MORE)
    model(secret=SECRET, **MORE)
    model(secret=SECRET["tensor"], quokka_parameter=SECRET)
    with contextlib.suppress(QuokkaError):
        model("raise")


# --- how it is recorded --------------------------------------------------------------------------

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


S._note(_YOURS, "predicate", b"quokka_predicate")


def broken(args: Any, kwargs: Any) -> bool:
    raise ValueError(S.traces[_LOGGED]["predicate"][0].decode())


S.text(_LOGGED, "predicate")

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
    use(model)  # the second time calls are familiar
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


def check(places: list[bytes], columns: tuple[str, ...], rows: Any, *, is_whole: bool) -> None:
    """What the page says is not there, is not; where ``is_whole``, what it says is there, is."""
    wrong: list[str] = []
    for row in rows:
        said = [TABLE[row][column] for column in columns]
        for name, traces in S.traces[row].items():
            is_there = found(places, traces)
            if is_there and any(word != "yes" for word in said):
                wrong.append(f"on the tape: {row} ({name})")
            if is_whole and not is_there and all(word == "yes" for word in said):
                wrong.append(f"not on the tape: {row} ({name})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("way", WAYS)
def test_the_page_is_true(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str, values: str
) -> None:
    given, columns = VALUES[values]
    caplog.set_level(logging.DEBUG)
    places = recorded(tmp_path, WAYS[way], given)
    assert sum(map(len, places)) > 1000
    if not WAYS[way].keeps:
        columns = tuple("not kept, all" if c == "all" else "not kept, none" for c in columns)
    # With "*" and a path both, some of what one column says is there is not by the other.
    is_whole = WAYS[way].is_whole and len(columns) == 1 and values not in ("star", "one")
    check(places, columns, S.traces.keys() - {_LOGGED}, is_whole=is_whole)
    log = [caplog.text.encode()]
    check(log, columns, [_LOGGED], is_whole=way == "broken")
    private = S.traces.keys() - {_LOGGED, _YOURS, "names of parameters"}
    check(log, ("not kept, none",), private, is_whole=False)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("method", ["generate", "stream"])
def test_streams(tmp_path: Path, values: str, method: str) -> None:
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
    check(model.during, columns, S.traces.keys() - {_LOGGED}, is_whole=False)
    for row in (_RETURNED, _RETURNED_TEXT, _FEW):
        assert found(model.during, CHUNK_TRACES[row]) == (values == "all")


def test_the_page_has_every_row(tmp_path: Path) -> None:
    assert S.traces.keys() | STATED == TABLE.keys()
    assert not S.traces.keys() & STATED
    words = {word for row in S.traces for word in TABLE[row].values()}
    assert words == {"yes", "no", "length"}


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


@pytest.mark.parametrize("page", ["README.md", "docs/production.md", "SECURITY.md"])
def test_the_page_is_found(page: str) -> None:
    text = (Path(__file__).resolve().parents[2] / page).read_text()
    assert re.search(r"\]\((docs/)?privacy\.md(#[\w-]+)?\)", text)


def test_a_secret_is_found_where_there_is_one() -> None:
    """The search itself."""
    row = S.traces[_FEW]["prompt"]
    assert found([b"...", b"x" + row[0] + b"y"], row)
    assert not found([b"...", b"xy"], row)
    numbers = S.traces["ints that are arguments"]["int"]
    assert found([msgpack.packb({"n": SECRET["int"]})], numbers)
