"""What a stranger's tape costs to read, beyond what :mod:`test_strangers` proves: wide ints, long
texts, and everything that grows faster than the tape."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, open_tape, plain_data
from calltape_analyzer.cli import output
from calltape_analyzer.reading.tape_file import crc32_after_zeros
from calltape_analyzer.text import merge_alike
from calltape_schema.tree import TensorNode, children_of, decode_structure
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import write_tape
from tests.forging.call import Forged, forged_arguments
from tests.forging.strangers import ESCAPE
from tests.forging.structures import raw_structure

WIDE = 2**8000


@pytest.mark.parametrize("command", ["variants", "ls", "info", "bundle"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_wide_ints_are_told_by_their_bits(
    tmp_path: Path, command: str, form: tuple[str, ...]
) -> None:
    """In decimal each fills a screen. JSON of findings has them, to be read back."""
    calls = [((torch.ones(n),), {"n": WIDE + n, "m": WIDE}) for n in (2, 3, 4)]
    path, out = write_tape(tmp_path / "a.tape", calls), tmp_path / "script.py"
    options = ("-o", str(out)) if command == "bundle" else form
    code, text, _ = run(command, str(path), *options)
    text += out.read_text() if command == "bundle" else ""
    assert code == 0
    if command == "variants" and form:
        assert f'"min": "{WIDE + 2}"' in text
        return
    assert max(map(len, text.replace("\\n", "\n").split())) < 400
    if command == "variants":
        assert "int of 8001 bits" in text


def test_wide_ints_in_names_and_explanations(tmp_path: Path) -> None:
    calls = [((torch.ones(n), WIDE + n // 2, [{"a": WIDE}, None][n % 2]), {}) for n in range(2, 8)]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        for variant in tape.variants():
            assert len(variant.name) < 100
        assert max(map(len, str(tape.explain("args.1")).split())) < 100


def test_json_of_long_texts_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_data, "MAX_TEXT", 100)
    value = {"text": "\u202e" * 1000, "raw": b"\x1b" * 1000, "x": torch.ones(2)}
    path = write_tape(tmp_path / "a.tape", [((value,), {})])
    for words in (("variants", "--scan"), ("show", "0")):
        code, text, _ = run(words[0], str(path), *words[1:], "--json")
        assert code == 0
        assert text.isascii()
        assert max(map(len, _texts(json.loads(text)))) <= 101


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [str(value)]


def test_a_wide_cell_does_not_widen_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("name", "shape"), [("k" * 10_000, "[2]"), *[("x", "[3]")] * 100])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("kk  [2]")
    assert max(map(len, lines[2:])) < 110


def test_no_two_rows_have_one_name() -> None:
    places = [("x", 1), ("x (again 1)", 2), ("x", 3), ("x", 4)]
    names = [name for name, _ in merge_alike(places)]
    assert len(set(names)) == len(names)


def test_children_of_a_node_without_any_are_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """pydantic takes microseconds to find that an attribute is missing, for each node."""

    def refuse(self: Any, name: str) -> Any:
        raise AssertionError(name)

    monkeypatch.setattr(TensorNode, "__getattr__", refuse)
    leaves = [{"kind": "tensor", "leaf": i} for i in range(3)]
    root = {"kind": "dict", "keys": [1, "a", b"b"], "children": leaves}
    spec = decode_structure(
        raw_structure({"root": root, "leaves": 3, "scalars": 0, "tag": "costs"})
    )
    assert [children_of(node) for node in children_of(spec.root)] == [(), (), ()]


def test_a_lack_of_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch alone wants gigabytes of addresses, which ``ulimit -v`` may not allow."""

    def refuse(*_: Any, **__: Any) -> None:
        raise MemoryError

    path = write_tape(tmp_path / "a.tape", [((torch.ones(2),), {})])
    monkeypatch.setattr("calltape_analyzer.tape.Tape.variants", refuse)
    result = run("variants", path)
    assert result.code == 1
    assert "not enough memory" in result.err


@pytest.mark.parametrize("count", [0, 1, 7, 512, 4097, 2**20 + 3])
def test_the_checksum_of_zeros_is_that_of_zlib(count: int) -> None:
    for before in (b"", b"calltape", b"\xff" * 9):
        crc32 = zlib.crc32(before)
        assert crc32_after_zeros(crc32, count) == zlib.crc32(bytes(count), crc32)


def holed(path: Path, elements: int) -> Path:
    """A tape of a few blocks with a tensor of zeros that claims terabytes, and whose checksum
    holds."""
    made = Forged(path, (torch.ones(2),))
    made.set_leaf(shape=[elements])
    key = made.leaves()[0]["key"]
    nbytes = 4 * elements
    made.set_header(json.dumps({key: {**made.header[key], "shape": [elements],
                                      "data_offsets": [0, nbytes]}}))  # fmt: skip
    made.blob, made.hole = made.blob[:-8], nbytes
    return made.write()


def test_a_hole_costs_nothing(tmp_path: Path) -> None:
    path = holed(tmp_path / "a.tape", 2**38)
    with open_tape(path, verify=True) as tape:
        assert tape.damage == []
        with pytest.raises(TapeError, match="allow more") as caught:
            _ = tape[0].inputs
        assert caught.value.kind == "limit"


def test_a_hole_in_the_file_allows_no_large_arguments(tmp_path: Path) -> None:
    """Made-up values are bounded by what the tape has on its disk."""
    path = write_tape(tmp_path / "a.tape", [((torch.empty(2**28, device="meta"),), {})])
    with path.open("r+b") as file:
        file.truncate(2**40)
    with open_tape(path) as tape:
        (variant,) = tape.variants()
        with pytest.raises(TapeError, match="allow more"):
            variant.infer_arguments()


def test_a_hole_within_a_tensor_is_read_as_zeros(tmp_path: Path) -> None:
    """Zeros that were recorded, in a tape that was copied with holes for them."""
    path = holed(tmp_path / "a.tape", 6 * 2**20)
    with open_tape(path, verify=True) as tape:
        assert torch.equal(tape[0].inputs.args[0], torch.zeros(6 * 2**20))


def test_any_key_is_a_seed(tmp_path: Path) -> None:
    value = {"\ud800": torch.empty(2, device="meta")}
    with open_tape(write_tape(tmp_path / "a.tape", [((value,), {})])) as tape:
        ((made,), _) = tape.variants()[0].infer_arguments()
        assert made["\ud800"].shape == (2,)


def test_an_argument_that_was_passed_twice_has_no_dynamic_shape(tmp_path: Path) -> None:
    """Such a call raises, and is on the tape as it was made."""

    def forward(x: Any, y: Any = None) -> None: ...

    calls = [((torch.ones(n, 3), torch.ones(n)), {"x": 0.5}) for n in (2, 3)]
    with open_tape(write_tape(tmp_path / "a.tape", calls, target=forward)) as tape:
        (variant,) = tape.variants()
        shapes = variant.infer_dynamic_shapes()
        assert shapes[0] is None
        assert [*shapes[1]] == [0]


def test_warnings_are_printable(tmp_path: Path) -> None:
    calls = [((), {"x": torch.ones(n, n), ESCAPE: torch.ones(n, n)}) for n in (2, 3)]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        (variant,) = tape.variants()
        warnings = list(variant.findings.warnings())
        assert warnings
        assert all(text.isprintable() for text in warnings)


def test_many_places_that_share_one_text_cost_little(tmp_path: Path) -> None:
    """To make its constant for each place would take more time than a test has."""
    node = {"kind": "list", "children": [{"kind": "str", "scalar": 0}] * 20_000}
    path = forged_arguments(tmp_path, node, scalars=("text" * 1_000_000,))
    with open_tape(path) as tape:
        tape.observations()
        assert len(repr(tape[0].inputs)) < 20_000_000


def test_inputs_are_shown_as_they_are(tmp_path: Path) -> None:
    given = {"z": [1, (2.5, None)], "a": {"k": b"raw", 3: "text"}, "n": {True}, "w": WIDE}
    with open_tape(write_tape(tmp_path / "a.tape", [((1, "x"), given)])) as tape:
        shown = repr(tape[0].inputs)
    assert shown == (
        "Inputs(args=(1, 'x'), kwargs={'z': [1, (2.5, None)], 'a': {'k': b'raw', 3: 'text'}, "
        "'n': {True}, 'w': <int of 8001 bits>})"
    )


def test_long_texts_are_told_apart(tmp_path: Path) -> None:
    """By all of what they say, also where they begin alike."""
    texts = ["t" * 3000 + end for end in "ab"]
    calls = [((torch.ones(n), texts[n % 2]), {}) for n in range(2, 6)]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        (variant,) = tape.variants()
        assert variant.findings.varying == {"args.1": "str"}


def test_a_script_is_never_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_data, "MAX_TEXT", 100)
    path = write_tape(tmp_path / "a.tape", [((torch.ones(2),), {})])
    out = tmp_path / "script.py"
    assert run("bundle", str(path), "-o", str(out)).code == 0
    assert out.read_text().endswith("sys.exit(main())\n")
