"""Both readers have the same names for every small layout."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from calltape_analyzer.observing.groups import layout_name
from tests.viewer.node import VIEWER, node

_SCRIPT = """
import {{ readFileSync }} from "node:fs";
import {{ layoutName }} from "{module}";
const asked = JSON.parse(readFileSync(process.argv[2], "utf-8"));
const leaf = ([shape, strides]) => ({{ layout: "strided", shape, strides, expanded: [] }});
console.log(JSON.stringify(asked.map((one) => layoutName(leaf(one)))));
"""


@pytest.mark.integration
def test_names_are_those_of_the_analyzer(tmp_path: Path) -> None:
    sizes = itertools.product((1, 2, 3), repeat=3)
    every = [
        (shape, strides)
        for shape in sizes
        for strides in itertools.product((0, 1, 2, 3, 6, 9), repeat=3)
    ]
    every += [((2, 3, 4, 5), strides) for strides in itertools.permutations((1, 3, 12, 60))]
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps(every))
    script = tmp_path / "names.mjs"
    script.write_text(_SCRIPT.format(module=(VIEWER / "src" / "memory_layout.mjs").as_uri()))
    done = node(script, asked)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [layout_name(*one) for one in every]
