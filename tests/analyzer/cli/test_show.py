"""``show`` and ``ls`` name arguments as ``variants`` does, and ``show`` prints small tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.cli import calls as of_calls
from calltape_analyzer.cli.verbs import VERBS
from calltape_recorder import record
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape


class Decoder(torch.nn.Module):
    def forward(self, ids, past=None, *more, scale=1, **others):
        return {"logits": ids, "past": past}


class Same(torch.nn.Module):
    def forward(self, x):
        return x


@pytest.fixture
def decoder(tmp_path: Path) -> Path:
    calls = []
    for n in (2, 3):
        past = tuple((torch.ones(1, n, 4), torch.ones(1, n, 4)) for _ in range(2))
        given = (torch.full((1, n), 7), past, torch.ones(n), torch.ones(n, 2))
        outputs = {"logits": torch.ones(1, n), "past": past}
        calls.append(Recorded(given, {"bias": {"first": torch.ones(n)}}, outputs=outputs))
    return write_tape(tmp_path / "a.tape", calls, target=Decoder())


def recorded(path: Path, tensor: torch.Tensor, **options: Any) -> Path:
    model = Same()
    with torch.no_grad(), record(model, path, **options):
        model(tensor)
    return path


def shown(path: Path) -> list[str]:
    return [line.strip() for line in run("show", path, 0).out.splitlines()]


def shown_value(tensor: Any, tmp_path: Path) -> str:
    """What ``show`` prints of a tensor behind its dtype and shape."""
    path = recorded(tmp_path / "a.tape", tensor)
    return next(line for line in shown(path) if line.startswith("x: ")).partition("]")[2].strip()


def names_in(nodes: list[dict[str, Any]]) -> Iterator[str]:
    for node in nodes:
        yield node["name"]
        yield from names_in(node.get("children", []))


def test_a_place_has_one_name_in_all_answers(decoder: Path, tmp_path: Path) -> None:
    with open_tape(decoder) as tape:
        (variant,) = tape.variants()
        places = [f"{one.argument}{one.path}" for one in variant.findings.tensors]
    assert places[:3] == ["ids", "past.0.0", "past.0.1"]
    assert places[-3:] == ["more.0", "more.1", "bias.first"]
    lines = shown(decoder)
    document = json.loads(run("show", decoder, 0, "--json").out)
    names = list(names_in(document["inputs"]["values"]))
    out = tmp_path / "leaves.csv"
    assert run("table", decoder, "-o", out, "--leaves").code == 0
    table = out.read_text()
    private = json.loads(run("info", decoder, "--json").out)["private"]["findings"]
    for place in places:
        assert any(line.startswith(f"{place}: ") for line in lines)
        assert place in names
        assert run("explain", decoder, place).code == 0
        assert place in {one["place"] for one in private}
        assert f'"inputs","{place}",' in table
    assert '"outputs","outputs.past.0.0",' in table
    assert {"outputs.logits", "outputs.past.0.0"} <= {line.partition(":")[0] for line in lines}
    text = "\n".join(lines) + json.dumps(document)
    for other in ("args.", "kwargs.", "past_0_0", "more_0"):
        assert other not in text


def test_ls_names_each_argument(decoder: Path) -> None:
    line = run("ls", decoder).out.splitlines()[1]
    assert "(ids=int64[1,2], past=((float32[1,2,4], float32[1,2,4]), (" in line
    assert "more.0=float32[2], more.1=float32[2,2], bias={first: float32[2]})" in line
    (one, _) = json.loads(run("ls", decoder, "--json").out)
    assert one["inputs"] in line


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor([[True], [False]]), "= [[True], [False]]"),
        (torch.tensor(7), "= 7"),
        (torch.tensor([2**63 - 1, -5]), "= [9223372036854775807, -5]"),
        (torch.tensor([255], dtype=torch.uint8), "= [255]"),
        (torch.tensor([0.1, -2.5, 1e20, 3.0, -0.0]), "= [0.1, -2.5, 1e+20, 3.0, -0.0]"),
        (torch.tensor([float("nan"), float("inf"), -float("inf")]), "= [nan, inf, -inf]"),
        (torch.tensor([0.1, 65504.0], dtype=torch.float16), "= [0.1, 65500.0]"),
        (torch.tensor([0.1, 1.5, 3e38], dtype=torch.bfloat16), "= [0.1, 1.5, 3e+38]"),
        (torch.tensor([1 / 3], dtype=torch.float64), "= [0.3333333333333333]"),
        (torch.tensor([1 + 2j, 0.1j]), "= [(1+2j), 0.1j]"),
        (torch.tensor([0.1 + 1j], dtype=torch.complex128), "= [(0.1+1j)]"),
        (torch.tensor([0.1, 448.0]).to(torch.float8_e4m3fn), "= [0.1015625, 448.0]"),
        (torch.tensor([0.1, 57344.0]).to(torch.float8_e5m2), "= [0.09375, 57344.0]"),
        (torch.arange(6).view(2, 3).t(), "= [[0, 3], [1, 4], [2, 5]] # strides [1, 3]"),
        (torch.ones(1).expand(3, 2), "= [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]] # strides [0, 0]"),
        (torch.empty(0, 3), "= []"),
        (torch.arange(32), f"= {list(range(32))}"),
        (torch.arange(33), "# 0..32"),
        (torch.ones(33), ""),
    ],
)
def test_show_prints_the_values_of_a_small_tensor(tensor: Any, text: str, tmp_path: Path) -> None:
    assert shown_value(tensor, tmp_path) == text


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_is_printed_is_the_same_float(dtype: torch.dtype, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**15), 2**15, (32,), generator=generator, dtype=torch.int16)
    tensor = bits.view(dtype) if dtype != torch.float32 else torch.randn(32, generator=generator)
    text = shown_value(tensor, tmp_path).removeprefix("= ")
    document = json.loads(text.replace("nan", "NaN").replace("inf", "Infinity"))
    again = torch.tensor(document, dtype=torch.float64).to(dtype)
    torch.testing.assert_close(again, tensor, rtol=0, atol=0, equal_nan=True)


def test_a_tape_without_values_says_so(tmp_path: Path) -> None:
    lines = shown(recorded(tmp_path / "a.tape", torch.ones(2), values="none"))
    assert "tensors have no values on the tape, only shapes" in lines
    assert "x: float32[2]" in lines
    values = {"*": "all", "x": "none"}
    lines = shown(recorded(tmp_path / "b.tape", torch.ones(2), values=values))
    assert "x: float32[2] # no value: policy" in lines
    assert not any(line.startswith("tensors have no values") for line in lines)


def test_a_damaged_value_costs_itself(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.full((2,), 7.0),), {})])
    data = bytearray(path.read_bytes())
    data[data.index(b"\x00\x00\xe0\x40\x00\x00\xe0\x40")] ^= 1
    path.write_bytes(data)
    code, out, err = run("show", path, 0)
    assert code == 3
    assert "args.0: float32[2]\n" in out
    assert "checksum" in err


def test_long_names_are_cut(tmp_path: Path) -> None:
    given = {"k" * 500: {"n" * 500: [torch.ones(1)] * 2}}
    lines = shown(write_tape(tmp_path / "a.tape", [((given,), {})]))
    assert max(len(line) for line in lines[2:]) < of_calls.MOST_NAME + 50
    assert any(line.startswith("…n") and line.endswith("n.1: float32[1] = [1.0]") for line in lines)


def test_help_calls_groups_of_calls_variants() -> None:
    for verb in VERBS:
        words = set(run(verb.name, "--help").out.lower().replace(",", " ").split())
        assert not {"structures", "kinds", "groups"} & words, verb.name


def test_answers_call_groups_of_calls_variants(decoder: Path, tmp_path: Path) -> None:
    calls = [((torch.ones(n), *[torch.ones(1)] * (n % 2)), {}) for n in range(2, 6)]
    other = write_tape(tmp_path / "b.tape", calls)
    for words in (("info",), ("variants",), ("diff", decoder), ("survey",), ()):
        out = run(*words, other).out
        assert out
        assert not {"structure", "structures", "kind", "kinds"} & set(out.replace(":", "").split())
    assert "4 with 2 input signatures" in run("info", other).out
    assert "\n+ variant: " in f"\n{run('diff', decoder, other).out}"
