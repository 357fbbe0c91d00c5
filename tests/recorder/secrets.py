"""A secret for each row of the table in docs/privacy.md, and a model that gets and returns all of
them."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import struct
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgpack
import torch

from tests.unpacked import readable

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
    "shapes, strides, dtypes, devices, flags, autocast, what shares memory",
    "None, bools, torch's constants (`torch.float16`)",
    "which containers there are, and how many elements they have",
    "why a value is not on the tape; the class of what was raised when it was read",
    "class, method and module that are recorded; variables of modules that their code reads",
    "ids of tapes, numbers of calls and files, when a file was begun and ended",
    "what the recorder was asked for otherwise; since when it sees calls; its rank in a job",
    "what tools did to the tape, and which files they read",
    "that an integer tensor of 1,024 elements or more has no elements but 0 and 1",
    "default of a parameter: None, bool, a number up to 1,024",
    "how many calls there were, and why they are not on the tape",
    "time, duration and thread of each call",
    "versions of Python, torch, transformers and calltape; the platform",
}


class Secrets:
    """Makes them, and knows which row of the page each is for.

    Attributes:
        traces: per row, per secret, the bytes of which any betrays it.
    """

    def __init__(self) -> None:
        self.traces: dict[str, dict[str, list[bytes]]] = {}

    def note(self, row: str, name: str, *traces: bytes) -> None:
        assert row in TABLE, row
        named = self.traces.setdefault(row, {})
        assert name not in named
        named[name] = list(traces)

    def text(self, row: str, name: str) -> str:
        text = f"#{list(TABLE).index(row)} {name} <wombat>"
        self.note(row, name, text.encode())
        return text

    def word(self, row: str, name: str) -> str:
        word = f"quokka_{list(TABLE).index(row)}_{name}"
        self.note(row, name, word.encode())
        return word

    def int(self, row: str, name: str) -> int:
        number = 0x5EC4E70000000 + len(repr(self.traces)) * 7919
        little = number.to_bytes(8, "little")
        self.note(row, name, msgpack.packb(number), little, str(number).encode())
        return number

    def float(self, row: str, name: str) -> float:
        number = self.int(row, name) / 3
        traces = struct.pack(">d", number), struct.pack("<d", number), repr(number).encode()
        self.traces[row][name] = list(traces)
        return number

    def small(self, row: str, name: str) -> int:
        """An int of 31 bits."""
        number = 0x5EC00000 + len(repr(self.traces)) * 7919
        self.note(row, name, msgpack.packb(number), struct.pack("<i", number))
        return number

    def floats(self, row: str, name: str) -> torch.Tensor:
        value = torch.rand(5, generator=torch.Generator().manual_seed(len(repr(self.traces))))
        self.note(row, name, value.numpy().tobytes())
        return value

    def ids(self, row: str, name: str, count: int, dtype: torch.dtype = torch.int64) -> Any:
        """Token ids. Of few of them each is a secret, of many their bounds."""
        first = 0x5EC00000 + len(repr(self.traces))  # no duration in ns, and no offset is as large
        ids = torch.arange(first, first + count, dtype=dtype).flip(0)
        low, high = int(ids.min()), int(ids.max())
        traces = [msgpack.packb(low), msgpack.packb(high)]
        self.note(row, name, *traces)
        self.note(_ELEMENTS, name, ids[:5].numpy().tobytes())
        return ids

    def padded(self, count: int, fill: int = 0) -> Any:
        """A padded decoding step: some ids, each a secret, at the end of what fills the rest."""
        made = torch.full((2048,), fill)
        for place in range(count):
            made[-1 - place] = self.int(_PADDED, f"{count} in {fill}, {place}")
        return made


_ELEMENTS = "elements of tensors and arrays"
_NESTED = "text within lists, dicts, dataclasses and other containers"
RETURNED_TEXT = "text that is returned, or yielded"
RETURNED = "numbers that are returned, or yielded"
_NAMES = "names of classes, and of fields of dataclasses"
_KEYS = "keys of dicts, and names of keyword arguments, that look like names"
_OTHER_KEYS = "keys of dicts, and names of keyword arguments, that do not"
FEW = "smallest and largest of an integer tensor of fewer than 1,024 different elements"
_MANY = "more than four numbers in a list, tuple or set, and in those within it"
_QUANTIZER = "scale and zero point of a quantized tensor"
_PADDED = "a number that fills or pads an integer tensor, and the few others in it"
_MACHINE = "environment, command line, host name, user name, paths"
YOURS = "name of a predicate (`When`), patterns of `values`, reason of a dump"
LOGGED = "in the log: message of an exception of a predicate, or of the recorder"
_CLASS = "class of an exception that a call raised"
_MESSAGE = "message of an exception that a call raised"
_UNKNOWN = "`str` and `repr` of any object; attributes of an argument of an unknown class"
_WORD_DEFAULT = "default of a parameter: a larger number, one word"
_OTHER_DEFAULT = "default of a parameter: other text, bytes, of a parameter named like a secret"

S = Secrets()


@dataclasses.dataclass
class QuokkaRequest:
    quokka_field: str


S.note(_NAMES, "class", b"QuokkaRequest")
S.note(_NAMES, "field", b"quokka_field")
S.note("names of attributes of a returned object", "attribute", b"quokka_attribute")


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
        self.quokka_attribute = S.text(RETURNED_TEXT, "attribute")
        self.number = S.int(RETURNED, "attribute")
        self.latent = S.floats(_ELEMENTS, "attribute")
        self.ids = S.ids(FEW, "attribute of ids", 3)
        self.inner = SimpleNamespace(text=S.text(RETURNED_TEXT, "inner attribute"))


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
        self.seen = [S.int(_MANY, f"list in a cache {n}") for n in range(5)]


class Style(str, enum.Enum):
    QUOKKA_MEMBER = S.text("values of members of enums", "text")


class Level(enum.Enum):
    HIGH = S.int("values of members of enums", "int")


S.note("names of members of enums", "name", b"QUOKKA_MEMBER")


class QuokkaError(Exception):
    pass


S.note(_CLASS, "class", b"QuokkaError")

_LARGE_DEFAULT = S.int(_WORD_DEFAULT, "int")
_WORD = S.word(_WORD_DEFAULT, "word")
_SENTENCE = S.text(_OTHER_DEFAULT, "text")
_KEY = S.word(_OTHER_DEFAULT, "key")
_DATA = S.text(_OTHER_DEFAULT, "bytes").encode()
S.note("names of parameters", "name", b"quokka_parameter")


def planted() -> tuple[dict[str, Any], dict[str, Any]]:
    """The argument ``secret``, and further keyword arguments."""
    filled = S.int(_PADDED, "number")
    many = _MANY
    secret = {
        "tensor": S.floats(_ELEMENTS, "tensor"),
        "array": S.floats(_ELEMENTS, "array").numpy(),
        "decode": S.ids(FEW, "one id", 1),
        "prompt": S.ids(FEW, "prompt", 9),
        "on the edge": S.ids(FEW, "1,023 ids", 1023),
        "narrow": S.ids(FEW, "int32", 100, torch.int32),
        "view": S.ids(FEW, "strided", 40)[::2],
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
        "quantized": torch.quantize_per_tensor(
            torch.ones(3), S.float(_QUANTIZER, "scale"), S.small(_QUANTIZER, "zero"), torch.qint32
        ),
        "ids": [S.int(many, f"list {n}") for n in range(5)],
        "tuple of ids": tuple(S.int(many, f"tuple {n}") for n in range(7)),
        "set of ids": {S.int(many, f"set {n}") for n in range(9)},
        "prompts": [[S.int(many, f"prompt {n}"), S.int(many, f"its end {n}")] for n in range(3)],
        "deque of ids": deque(S.int(many, f"deque {n}") for n in range(7)),
        "pairs": [Pair(S.int(many, f"pair {n}"), "x") for n in range(5)],
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
    "text": S.text(RETURNED_TEXT, "text"),
    "list": [S.text(RETURNED_TEXT, "list"), S.text(RETURNED_TEXT, "bytes").encode()],
    "int": S.int(RETURNED, "int"),
    "float": S.float(RETURNED, "float"),
    "tensor": S.floats(_ELEMENTS, "output"),
    "next": S.ids(FEW, "next id", 1),
    "object": Returned(),
}
CHUNKS = [
    S.text(RETURNED_TEXT, "chunk"), S.int(RETURNED, "chunk"), S.ids(FEW, "chunk", 3),
    {"choices": [S.text(RETURNED_TEXT, "deep in a chunk")]},
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
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        self.during += [readable(path.read_bytes()) for path in files]

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
