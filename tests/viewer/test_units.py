"""The modules of the viewer by themselves, under Node's own test runner; and what both readers make
of the same facts."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer.observing.memory_layout import layout_name
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack
from tests.viewer.node import answer, node

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", sorted(HERE.glob("*.test.mjs")), ids=lambda file: file.stem)
def test_the_unit_tests_of_the_page_pass(file: Path) -> None:
    done = node("--test", file)
    assert done.returncode == 0, done.stdout + done.stderr


LAYOUTS = """
import { layoutName } from "SRC/memory_layout.mjs";
const leaf = ([shape, strides]) => ({ layout: "strided", shape, strides, expanded: [] });
console.log(JSON.stringify(asked.map((one) => layoutName(leaf(one)))));
"""


def test_names_of_layouts(tmp_path: Path) -> None:
    sizes, strides = (
        itertools.product((1, 2, 3), repeat=3),
        [*itertools.product((0, 1, 2, 3, 6, 9), repeat=3)],
    )
    every = [(shape, one) for shape in sizes for one in strides]
    every += [((2, 3, 4, 5), one) for one in itertools.permutations((1, 3, 12, 60))]
    assert answer(tmp_path, LAYOUTS, every) == [layout_name(*one) for one in every]


SIGNATURES = """
import { unpack } from "SRC/documents.mjs";
import { signatureOfInputs } from "SRC/signatures.mjs";
const bytes = (hex) => new Uint8Array(Buffer.from(hex, "hex"));
const signature = ([structure, leaves, scalars]) =>
  String(signatureOfInputs({ structure, leaves, scalars: unpack(scalars) }));
console.log(JSON.stringify(asked.map((one) => signature(one.map(bytes)))));
"""


def _edges() -> list[Any]:
    ints = [sign * 2**bits + by for bits in (0, 5, 7, 8, 15, 16, 31, 32, 53, 63, 64, 71, 2000)
            for by in (-1, 0, 1) for sign in (-1, 1)]  # fmt: skip
    nans = [struct.unpack(">d", bits.to_bytes(8, "big"))[0] for bits in
            (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000123)]  # fmt: skip
    texts = [letter * length for length in (0, 1, 31, 32, 255, 256, 65536) for letter in "aé"]
    bins = [bytes(length) for length in (0, 1, 255, 256, 65536)]
    wide = ["\ud800" * length for length in (1, 2, 5, 100, 30_000)]
    return [*ints, *nans, 0.0, -0.0, 1.5, float("inf"), *texts, *bins, *wide, (0.5, -0.0)]


def test_signatures_are_those_of_the_schema(tmp_path: Path) -> None:
    chance = random.Random(4)
    edges = _edges()
    scalars = [[], *([one] for one in edges), edges[:16], edges[:15] * 2, [1] * 70_000]
    every = [(b"\x80", b"\x90", pack(one)) for one in scalars]
    every += [
        (chance.randbytes(size), chance.randbytes(size // 3), pack([size]))
        for size in (*range(90, 150), 255, 256, 257, 5000)
    ]
    found = answer(tmp_path, SIGNATURES, [[part.hex() for part in one] for one in every])
    assert found == [str(signature_of(*one)) for one in every]
