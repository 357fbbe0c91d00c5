"""Both readers have the same signatures for the same inputs."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack
from tests.viewer.node import VIEWER, node

_SCRIPT = """
import {{ readFileSync }} from "node:fs";
import {{ unpack }} from "{src}/documents.mjs";
import {{ signatureOfInputs }} from "{src}/signatures.mjs";
const bytes = (hex) => new Uint8Array(Buffer.from(hex, "hex"));
const asked = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const signature = ([structure, leaves, scalars]) =>
  String(signatureOfInputs({{ structure, leaves, scalars: unpack(scalars) }}));
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


@pytest.mark.integration
def test_signatures_are_those_of_the_schema(tmp_path: Path) -> None:
    chance = random.Random(4)
    edges = _edges()
    scalars = [[], *([one] for one in edges), edges[:16], edges[:15] * 2, [1] * 70_000]
    every = [(b"\x80", b"\x90", pack(one)) for one in scalars]
    every += [
        (chance.randbytes(size), chance.randbytes(size // 3), pack([size]))
        for size in (*range(90, 150), 255, 256, 257, 5000)
    ]
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps([[part.hex() for part in one] for one in every]))
    script = tmp_path / "signatures.mjs"
    script.write_text(_SCRIPT.format(src=(VIEWER / "src").as_uri()))
    done = node(script, asked)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [str(signature_of(*one)) for one in every]
