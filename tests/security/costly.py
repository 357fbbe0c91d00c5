"""Small tapes, with right checksums, that are dear to read: each repeats a thing that is dear by
itself, or has what a hash table takes quadratic time for."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calltape_schema.end import Coverage, End, IndexEntry, encode_end
from calltape_schema.groups import NewCall, planned
from calltape_schema.inputs_document import pack_inputs
from calltape_schema.inputs_table import InputsTable, signature_of
from calltape_schema.packing import pack
from calltape_schema.records import Manifest, Producer, Step, encode_manifest, manifest_document
from calltape_schema.sections import NO_CHECKSUMS
from calltape_schema.tar import END_MEMBER, MANIFEST, ZEROS_AT_END
from calltape_schema.tree import encode_leaves
from tests.forging.sections import deflated, member
from tests.forging.structures import raw_structure

__all__ = ["COSTLY", "PRIME", "inputs_of", "packed_tapes", "sealed", "survey_of"]

TAPE = bytes(range(16))
PRIME = 2**61 - 1
"""Ints that are equal modulo this have one hash."""

Inputs = tuple[bytes, bytes, list[Any]]
"""Structure, leaves and scalars."""


def inputs_of(
    children: Sequence[dict[str, Any]],
    shapes: Sequence[Sequence[int]] = (),
    scalars: Sequence[Any] = (),
) -> Inputs:
    """Inputs with these nodes as positional arguments."""
    root = {
        "kind": "tuple",
        "children": [
            {"kind": "tuple", "children": list(children)},
            {"kind": "dict", "keys": [], "children": []},
        ],
    }
    structure = raw_structure({"root": root, "leaves": len(shapes), "scalars": len(scalars)})
    leaves = encode_leaves([
        {"dtype": "float32", "shape": list(shape), "missing": "policy"} for shape in shapes
    ])  # fmt: skip
    return structure, leaves, list(scalars)


def _manifest(**fields: Any) -> bytes:
    return member(MANIFEST, encode_manifest(_made(**fields)))


def _made(**fields: Any) -> Manifest:
    return Manifest(
        format="calltape", version=1, tape=TAPE, created_ns=1, producer=Producer(calltape="1"),
        **fields,
    )  # fmt: skip


def survey_of(path: Path, table: bytes, calls: int) -> Path:
    """A survey with this table of counted inputs: a tape whose calls are on others."""
    step = Step(verb="survey", tool="calltape", version="1", tape=TAPE)
    made = _made(history=(step,))
    data = member(MANIFEST, encode_manifest(made))
    end = End(
        tape=TAPE, closed_ns=1, coverage=Coverage(seen=calls, kept=calls), elsewhere=True,
        manifest=manifest_document(made), index=deflated(b""), inputs=deflated(table, 9),
    )  # fmt: skip
    path.write_bytes(data + member(END_MEMBER, encode_end(end, len(data))) + ZEROS_AT_END)
    return path


def _surveyed(path: Path, inputs: Iterable[Inputs]) -> Path:
    table = InputsTable()
    for number, (structure, leaves, scalars) in enumerate(inputs):
        table.add(structure, leaves, pack(scalars), number)
    return survey_of(path, pack_inputs(table), table.totals().kept)


def sealed(
    path: Path,
    inputs: Iterable[Inputs],
    *,
    at_once: int = 1000,
    is_sealed: bool = True,
    forged: Mapping[int, Inputs] | None = None,
    **fields: Any,
) -> Path:
    """A tape with a call of each of these inputs, and an end that is true but for forged calls.

    Args:
        path: where it is written.
        inputs: of each call.
        at_once: how many calls a group has.
        is_sealed: whether it has an end.
        forged: by number, what the record of a call has in place of its inputs.
        fields: more of each record.
    """
    data, table, index = bytearray(_manifest()), InputsTable(), b""
    numbered = iter(enumerate(inputs))
    count = 0
    while calls := [*itertools.islice(numbered, at_once)]:
        made: list[NewCall] = []
        for number, (structure, leaves, scalars) in calls:
            count = number + 1
            key = signature_of(structure, leaves, pack(scalars))
            own = (forged or {}).get(number, (structure, leaves, scalars))
            tree: dict[str, Any] = {"structure": own[0], "leaves": own[1]}
            if own[2]:
                tree["scalars"] = own[2]
            made.append(
                NewCall(
                    number, {"time_ns": 0, "inputs": tree, **fields}, key, (), NO_CHECKSUMS, b""
                )
            )
            if is_sealed:
                table.add(structure, leaves, pack(scalars), number, key=key)
        found = planned(TAPE, made)
        for group in found.groups:
            offset, numbers = group.place(len(data)), group.numbers
            entry = IndexEntry(offset, len(numbers), min(numbers), max(numbers), 0, 0)
            index += entry.pack()
        data += b"".join(map(bytes, found.parts))
    if is_sealed:
        end = End(
            tape=TAPE, closed_ns=1, coverage=Coverage(seen=count, kept=count), first_call=0,
            last_call=count - 1, first_ns=0, last_ns=0, index=deflated(index, 9),
            manifest=manifest_document(_made()),
            inputs=deflated(pack_inputs(table), 9),
        )  # fmt: skip
        data += member(END_MEMBER, encode_end(end, len(data))) + ZEROS_AT_END
    path.write_bytes(data)
    return path


def _ints(count: int) -> list[dict[str, Any]]:
    return [{"kind": "int", "scalar": at} for at in range(count)]


def _of_ints(rows: Iterable[Sequence[int]], *others: dict[str, Any]) -> Iterator[Inputs]:
    """Inputs that share a structure: ints, and other nodes."""
    made: Inputs | None = None
    for row in rows:
        if made is None:
            made = inputs_of([*_ints(len(row)), *others], (), row)
        yield made[0], made[1], list(row)


def long_structures(path: Path) -> Path:
    """Thousands of rows that share a structure of a mebibyte, which each hash has to read."""
    structure = pack({"leaves": 0, "scalars": 1, "pad": bytes(2**20)})
    rows = [(0, 1, pack([at]), b"") for at in range(20_000)]
    return survey_of(path, _table([structure, pack([])], rows), len(rows))


def ranges_of_rows(path: Path) -> Path:
    """Rows that have ranges of thousands of leaves that are not there."""
    structure, leaves, _ = inputs_of([])
    spans = pack([(0, 0, 0)] * 100_000)
    rows = [(0, 1, pack([]), spans) for _ in range(150)]
    return survey_of(path, _table([structure, leaves], rows), len(rows))


def _table(parts: list[bytes], rows: list[Any]) -> bytes:
    numbers = b"".join(
        n.to_bytes(8, "little") for at in range(len(rows)) for n in (1, 1, 0, at, at, at)
    )
    return pack({"parts": parts, "rows": rows, "numbers": numbers})


def wide_ints(path: Path, count: int = 20_000) -> Path:
    """One int in each call, all of one hash."""
    return _surveyed(path, _of_ints([1 + PRIME * at] for at in range(count)))


def wide_ints_of_calls(path: Path, count: int = 3000) -> Path:
    """The same on a tape with calls."""
    return sealed(path, _of_ints([1 + PRIME * at] for at in range(count)))


def tuples_of_ints(path: Path) -> Path:
    """-1 and -2 have one hash, and so have all tuples of them."""
    return _surveyed(path, _of_ints(itertools.product((-1, -2), repeat=14)))


def tuples_of_sizes(path: Path) -> Path:
    """Shapes of one hash, of several tensors."""
    nodes = [{"kind": "tensor", "leaf": at} for at in range(6)]
    every = itertools.product([[n * PRIME + 2] for n in range(4)], repeat=6)
    return _surveyed(path, (inputs_of(nodes, shapes) for shapes in every))


def nodes_of_rows(path: Path) -> Path:
    """Thousands of rows that share a structure of a thousand nodes."""
    rows = ([at] for at in range(2500))
    return _surveyed(path, _of_ints(rows, *[{"kind": "none"}] * 1000))


def structures(path: Path) -> Path:
    """As many variants as there is room for."""
    keys = [{"kind": "dict", "keys": [f"k{at}"], "children": [{"kind": "none"}]}
            for at in range(30_000)]  # fmt: skip
    return _surveyed(path, (inputs_of([key]) for key in keys))


def columns(path: Path) -> Path:
    """Two thousand ints in each of several calls: any two may be equal, or a sum of others."""
    count = 2000
    rows = ([(at * (row + 3)) % 65_521 for at in range(count)] for row in range(40))
    return _surveyed(path, _of_ints(rows))


def calls(path: Path) -> Path:
    """Fifteen thousand calls on less than a mebibyte."""
    made = inputs_of([{"kind": "tensor", "leaf": 0}], [(2, 3)])
    return sealed(path, itertools.repeat(made, 15_000), at_once=10_000, is_sealed=False)


def deep(path: Path) -> Path:
    """Long keys in each other, and many leaves below them."""
    node: dict[str, Any] = {"kind": "list", "children": [{"kind": "none"}] * 60}
    for at in range(55):
        node = {"kind": "dict", "keys": [f"{at}" + "k" * 1000], "children": [node]}
    return _surveyed(path, _of_ints(([at] for at in range(300)), node))


def long_texts(path: Path) -> Path:
    """A text of half a mebibyte in each call, whose characters have to be escaped."""
    nodes = [{"kind": "str", "scalar": 0}]
    texts = (inputs_of(nodes, (), [chr(0x202E) * 150_000 + str(at)]) for at in range(5))
    return sealed(path, texts, at_once=1)


COSTLY: dict[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (
        long_structures, ranges_of_rows, wide_ints, wide_ints_of_calls, tuples_of_ints,
        tuples_of_sizes, nodes_of_rows, structures, columns, calls, deep, long_texts,
    )
}  # fmt: skip


def packed_tapes(folder: Path, nbytes: int, count: int = 8) -> list[Path]:
    """Small compressed tapes, of which each becomes that large."""
    found = []
    content = _manifest() + member("pad", bytes(nbytes))
    data = gzip.compress(content, 9)
    for at in range(count):
        path = folder / f"{at}.tape.gz"
        path.write_bytes(data)
        found.append(path)
    return found
