"""A secret for each kind of fact that bytes can be searched for, and a model that gets and returns
all of them."""

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

from tests.recorder.privacy_table import Kind
from tests.unpacked import readable


class Secrets:
    """Makes them, and knows of which kind each is.

    Attributes:
        traces: per kind, per secret, the bytes of which any betrays it.
    """

    def __init__(self) -> None:
        self.traces: dict[Kind, dict[str, list[bytes]]] = {}

    def note(self, kind: Kind, name: str, *traces: bytes) -> None:
        named = self.traces.setdefault(kind, {})
        assert name not in named
        named[name] = list(traces)

    def text(self, kind: Kind, name: str) -> str:
        text = f"#{list(Kind).index(kind)} {name} <wombat>"
        self.note(kind, name, text.encode())
        return text

    def word(self, kind: Kind, name: str) -> str:
        word = f"quokka_{list(Kind).index(kind)}_{name}"
        self.note(kind, name, word.encode())
        return word

    def int(self, kind: Kind, name: str) -> int:
        number = 0x5EC4E70000000 + len(repr(self.traces)) * 7919
        little = number.to_bytes(8, "little")
        self.note(kind, name, msgpack.packb(number), little, str(number).encode())
        return number

    def float(self, kind: Kind, name: str) -> float:
        number = self.int(kind, name) / 3
        traces = struct.pack(">d", number), struct.pack("<d", number), repr(number).encode()
        self.traces[kind][name] = list(traces)
        return number

    def small(self, kind: Kind, name: str) -> int:
        """An int of 31 bits."""
        number = 0x5EC00000 + len(repr(self.traces)) * 7919
        self.note(kind, name, msgpack.packb(number), struct.pack("<i", number))
        return number

    def floats(self, kind: Kind, name: str) -> torch.Tensor:
        value = torch.rand(5, generator=torch.Generator().manual_seed(len(repr(self.traces))))
        self.note(kind, name, value.numpy().tobytes())
        return value

    def ids(self, kind: Kind, name: str, count: int, dtype: torch.dtype = torch.int64) -> Any:
        """Token ids. Of few of them each is a secret, of many their bounds."""
        first = 0x5EC00000 + len(repr(self.traces))  # no duration in ns, and no offset is as large
        ids = torch.arange(first, first + count, dtype=dtype).flip(0)
        low, high = int(ids.min()), int(ids.max())
        traces = [msgpack.packb(low), msgpack.packb(high)]
        self.note(kind, name, *traces)
        self.note(Kind.ELEMENTS, name, ids[:5].numpy().tobytes())
        return ids

    def padded(self, count: int, fill: int = 0) -> Any:
        """A padded decoding step: some ids, each a secret, at the end of what fills the rest."""
        made = torch.full((2048,), fill)
        for place in range(count):
            made[-1 - place] = self.int(Kind.FEW_RANGE, f"{count} in {fill}, {place}")
        return made


S = Secrets()


@dataclasses.dataclass
class QuokkaRequest:
    quokka_field: str


S.note(Kind.NAMES, "class", b"QuokkaRequest")
S.note(Kind.NAMES, "field", b"quokka_field")
S.note(Kind.OUTCOME, "attribute", b"quokka_attribute")


class Pair(NamedTuple):
    first: Any
    second: Any


class Unknown:
    def __init__(self) -> None:
        self.secret = S.text(Kind.PRIVATE, "attribute")

    def __repr__(self) -> str:
        return S.traces[Kind.PRIVATE]["repr"][0].decode()


S.text(Kind.PRIVATE, "repr")


class Returned(Unknown):
    """Of a class as unknown, which a model returns."""

    def __init__(self) -> None:
        self.quokka_attribute = S.text(Kind.RETURNED_TEXT, "attribute")
        self.number = S.int(Kind.RETURNED, "attribute")
        self.latent = S.floats(Kind.ELEMENTS, "attribute")
        self.ids = S.ids(Kind.FEW_RANGE, "attribute of ids", 3)
        self.inner = SimpleNamespace(text=S.text(Kind.RETURNED_TEXT, "inner attribute"))


class Registered:
    def __init__(self, tensor: Any, context: Any) -> None:
        self.tensor = tensor
        self.context = context


torch.utils._pytree.register_pytree_node(
    Registered, lambda r: ([r.tensor], r.context), lambda c, context: Registered(c[0], context)
)


class QuokkaCache:
    def __init__(self) -> None:
        self.length = S.int(Kind.STRUCTURE, "length")
        self.note = S.text(Kind.TEXT, "attribute of a cache")
        self.seen = [S.int(Kind.LISTS_AND_KEYS, f"list in a cache {n}") for n in range(5)]


class Style(str, enum.Enum):
    QUOKKA_MEMBER = S.text(Kind.ENUM_VALUES, "text")


class Level(enum.Enum):
    HIGH = S.int(Kind.ENUM_VALUES, "int")


S.note(Kind.NAMES, "name", b"QUOKKA_MEMBER")


class QuokkaError(Exception):
    pass


S.note(Kind.OUTCOME, "class", b"QuokkaError")

_LARGE_DEFAULT = S.int(Kind.DEFAULTS, "int")
_WORD = S.word(Kind.DEFAULTS, "word")
_SENTENCE = S.text(Kind.PRIVATE, "text")
_KEY = S.word(Kind.PRIVATE, "key")
_DATA = S.text(Kind.PRIVATE, "bytes").encode()
S.note(Kind.TARGET, "name", b"quokka_parameter")


def planted() -> tuple[dict[str, Any], dict[str, Any]]:
    """The argument ``secret``, and further keyword arguments."""
    filled = S.int(Kind.FEW_RANGE, "number")
    many = Kind.LISTS_AND_KEYS
    secret = {
        "tensor": S.floats(Kind.ELEMENTS, "tensor"),
        "array": S.floats(Kind.ELEMENTS, "array").numpy(),
        "decode": S.ids(Kind.FEW_RANGE, "one id", 1),
        "prompt": S.ids(Kind.FEW_RANGE, "prompt", 9),
        "on the edge": S.ids(Kind.FEW_RANGE, "1,023 ids", 1023),
        "narrow": S.ids(Kind.FEW_RANGE, "int32", 100, torch.int32),
        "view": S.ids(Kind.FEW_RANGE, "strided", 40)[::2],
        "many": S.ids(Kind.MANY_RANGE, "ids", 1024),
        "filled": torch.full((1500,), filled),
        "padded": S.padded(1),
        "padded, ten": S.padded(10),
        "padded, a pad id": S.padded(1, S.int(Kind.FEW_RANGE, "pad")),
        "padded, a pad id, ten": S.padded(10, S.int(Kind.FEW_RANGE, "another pad")),
        "expanded": torch.full((1,), filled).expand(1500),
        "text": S.text(Kind.TEXT, "text"),
        "long": S.text(Kind.TEXT, "long") * 500,
        "bytes": S.text(Kind.TEXT, "bytes").encode(),
        "bytearray": bytearray(S.text(Kind.TEXT, "bytearray").encode()),
        "list": [S.text(Kind.TEXT, "list"), [S.text(Kind.TEXT, "list of lists")]],
        "tuple": (S.text(Kind.TEXT, "tuple"), Pair(1, S.text(Kind.TEXT, "named tuple"))),
        "set": {S.text(Kind.TEXT, "set")},
        "slice": slice(S.text(Kind.TEXT, "slice")),
        "request": QuokkaRequest(S.text(Kind.TEXT, "dataclass")),
        "space": SimpleNamespace(text=S.text(Kind.TEXT, "object")),
        "registered": Registered(torch.ones(2), S.text(Kind.TEXT, "context")),
        "int": S.int(Kind.INTS, "int"),
        "float": S.float(Kind.FLOATS, "float"),
        "complex": complex(S.float(Kind.FLOATS, "real"), 1),
        "quantized": torch.quantize_per_tensor(
            torch.ones(3),
            S.float(Kind.ELEMENTS, "scale"),
            S.small(Kind.ELEMENTS, "zero"),
            torch.qint32,
        ),
        "ids": [S.int(many, f"list {n}") for n in range(5)],
        "tuple of ids": tuple(S.int(many, f"tuple {n}") for n in range(7)),
        "set of ids": {S.int(many, f"set {n}") for n in range(9)},
        "prompts": [[S.int(many, f"prompt {n}"), S.int(many, f"its end {n}")] for n in range(3)],
        "deque of ids": deque(S.int(many, f"deque {n}") for n in range(7)),
        "pairs": [Pair(S.int(many, f"pair {n}"), "x") for n in range(5)],
        "cache": QuokkaCache(),
        S.word(Kind.NAMES, "key"): 1,
        S.text(Kind.LISTS_AND_KEYS, "key"): 1,
        S.int(Kind.LISTS_AND_KEYS, "int"): 1,
        S.text(Kind.LISTS_AND_KEYS, "bytes").encode(): 1,
        (S.text(Kind.LISTS_AND_KEYS, "in a tuple"), 1): torch.ones(1),
        "style": Style.QUOKKA_MEMBER,
        "level": Level.HIGH,
        "unknown": Unknown(),
    }
    more = {
        S.word(Kind.NAMES, "argument"): 1,
        S.text(Kind.LISTS_AND_KEYS, "argument"): torch.ones(1),
    }
    return secret, more


SECRET, MORE = planted()
RESULT = {
    "text": S.text(Kind.RETURNED_TEXT, "text"),
    "list": [S.text(Kind.RETURNED_TEXT, "list"), S.text(Kind.RETURNED_TEXT, "bytes").encode()],
    "int": S.int(Kind.RETURNED, "int"),
    "float": S.float(Kind.RETURNED, "float"),
    "tensor": S.floats(Kind.ELEMENTS, "output"),
    "next": S.ids(Kind.FEW_RANGE, "next id", 1),
    "object": Returned(),
}
CHUNKS = [
    S.text(Kind.RETURNED_TEXT, "chunk"),
    S.int(Kind.RETURNED, "chunk"),
    S.ids(Kind.FEW_RANGE, "chunk", 3),
    {"choices": [S.text(Kind.RETURNED_TEXT, "deep in a chunk")]},
]
# Only streams yield these.
CHUNK_TRACES = {
    kind: [trace for name in list(named) if "chunk" in name for trace in named.pop(name)]
    for kind, named in S.traces.items()
}
MESSAGE = S.text(Kind.RETURNED_TEXT, "message")
os.environ["QUOKKA"] = S.text(Kind.PRIVATE, "environment")


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
        wombat_local = secret == "raise"  # a trace of this code
        if wombat_local:
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


WEIGHTS = S.floats(Kind.PRIVATE, "weight")
S.note(Kind.PRIVATE, "code", b"wombat_local")


def use(model: Model) -> None:
    model(SECRET, **MORE)
    model(secret=SECRET, **MORE)
    model(secret=SECRET["tensor"], quokka_parameter=SECRET)
    with contextlib.suppress(QuokkaError):
        model("raise")
