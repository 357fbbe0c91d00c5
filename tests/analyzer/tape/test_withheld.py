"""Tapes that were not to have everything: what is shown, and what the analysis makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, Placeholder, Tape, open_tape, render
from calltape_analyzer.observing.signature import Signature, signature_text
from calltape_analyzer.observing.traffic_counters import tensors_of
from calltape_analyzer.programs.saving import signature_document, signature_from_document
from calltape_recorder import First, record
from calltape_schema import TapeError
from calltape_schema.records import Parameter, Target
from calltape_schema.tree import decode_structure, encode_structure
from tests.analyzer.observed import given, tape_of, zeros
from tests.schema import independent_reader


class Reader(torch.nn.Module):
    def forward(self, x: Any, prompt: Any = None, mode: str = "nearest", api_key: str = "k") -> Any:
        return x * 2, f"said {prompt}", 5


def withheld(tmp_path: Path, *calls: Any, values: Any = "none") -> Tape:
    return tape_of(tmp_path, calls, Reader(), values=values)


def test_an_omitted_value_is_shown_as_what_it_was(tmp_path: Path) -> None:
    values = {"*": "none", "prompt": "none"}
    (call,) = withheld(tmp_path, given(zeros(2), ["x" * 17, b"xyz", 5, 0.5, 1j]), values=values)
    inside = (
        "<text of 17 characters, not kept>, <bytes, 3 of them, not kept>, <int, not kept>,"
        " <float, not kept>, <complex, not kept>"
    )
    assert render(call.record.inputs) == f"(float32[2], [{inside}])"
    assert render(call.inputs) == f"(float32[2]@meta, [{inside}])"
    text = call.inputs.args[1][0]
    assert isinstance(text, Placeholder)
    assert (text.type_name, text.reason) == ("builtins:str", "text of 17 characters, not kept")
    assert text.withheld
    said, number = call.outputs[1:]
    assert (said.type_name, number.type_name) == ("builtins:str", "builtins:int")
    assert number.reason == "int, not kept"


def test_texts_that_differ_are_one_variant(tmp_path: Path) -> None:
    calls = [given(zeros(n), "x" * n) for n in range(2, 30)]
    (variant,) = withheld(tmp_path, *calls).variants()
    assert len(variant) == 28
    assert variant.name == "main"
    assert variant.infer_dynamic_shapes()[0] is not None


def test_who_needs_the_text_is_told_which(tmp_path: Path) -> None:
    tape = withheld(tmp_path, given(zeros(2), "a"), given(zeros(3), "bc"))
    with pytest.raises(InferenceError, match=r"prompt holds .* \(text, not kept\)"):
        tape.infer_arguments()
    tape.remove_inputs(["prompt"])
    assert len(tape.infer_arguments(as_args_kwargs=False)) == 1


def test_a_default_that_is_not_on_the_tape_is_no_none(tmp_path: Path) -> None:
    tape = withheld(
        tmp_path, given(zeros(2), mode="linear"), given(zeros(3), mode=None), given(zeros(4))
    )
    assert len(tape.variants()) == 3
    assert tape.target is not None
    assert signature_text(tape.target) == "(x, prompt=None, mode=..., api_key=...)"


def test_a_constant_is_kept_where_nobody_knows_the_default(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, scale: int = 82317) -> Any:
            return x * scale

    calls = [given(zeros(n), scale=82317) for n in (2, 3)]
    known = tape_of(tmp_path, calls, Model())
    assert len(known.infer_arguments(as_args_kwargs=False)) == 1
    unknown = tape_of(tmp_path, calls, Model(), values="none")
    assert unknown.infer_arguments().kwargs["scale"] == 82317


def test_a_signature_that_is_saved_keeps_what_it_does_not_know() -> None:
    kind: Any = "POSITIONAL_OR_KEYWORD"
    parameter = Parameter(name="x", kind=kind, has_default=True, default_missing=True)
    target = Target(type="m:M", method="forward", via="hook", signature=(parameter,))
    own = Signature.of(target)
    assert signature_from_document(signature_document(own)) == own


def test_counters_without_ints_are_counters(tmp_path: Path) -> None:
    model, path = Reader(), tmp_path / "t.tape"
    with record(model, path, values="none", keep=First(2)):
        for n in (4, 2, 7, 9):
            model(zeros(n), n)
        model(zeros(3), {"alice": 1})
    tape = open_tape(path)
    assert tape.counters.calls == 5
    assert tape.counters.other_calls == 1
    signed = Signature.of(tape.target)
    (variant,) = tape.variants()
    assert "alice" not in variant.findings.model_dump_json()
    # Sizes are those of all calls, ints those of the calls that are on the tape.
    ((x, _, axes),) = [
        found for group in tape.counters.in_order() for found in tensors_of(group, signed)
    ]
    assert (x, axes[0].min, axes[0].max) == ("x", 2, 9)


def test_a_reader_that_does_not_know_of_it_reads_it(tmp_path: Path) -> None:
    withheld(tmp_path, given(zeros(2), ["secret", b"x"], mode="linear"))
    (path,) = tmp_path.glob("*.tape")
    _, calls, _ = independent_reader.read_tape(path.read_bytes())
    call = calls[0]
    args, kwargs = call["inputs"]["structure"]["root"]["children"]
    text = args["children"][1]["children"][0]
    assert (text["kind"], text["type"], text["reason"]) == ("opaque", "builtins:str", "policy")
    assert call["inputs"]["scalars"][text["length"]] == 6
    assert kwargs["keys"] == ["mode"]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"of": "str", "length": 1}, "scalar 1 of 1"),
        ({"of": "str", "length": -1}, "length"),
        ({"of": "list", "length": 0}, "of"),
    ],
)
def test_wrong_lengths_of_omitted_texts_are_rejected(node: dict[str, Any], why: str) -> None:
    opaque = {"kind": "opaque", "type": "builtins:str", "reason": "policy", **node}
    with pytest.raises(TapeError, match=why):
        encode_structure({"root": opaque, "leaves": 0, "scalars": 1})


def test_a_length_is_an_int() -> None:
    opaque = {"kind": "opaque", "type": "builtins:str", "reason": "policy", "length": 0}
    data = encode_structure({"root": opaque, "leaves": 0, "scalars": 1})
    assert decode_structure(data).scalar_types == ((0, int),)
    shared = {"kind": "tuple", "children": [opaque, {"kind": "str", "scalar": 0}]}
    with pytest.raises(TapeError, match="two types"):
        encode_structure({"root": shared, "leaves": 0, "scalars": 1})
