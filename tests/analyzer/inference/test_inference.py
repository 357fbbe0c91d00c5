"""Inference from tapes: what the peers' contract does not cover."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import (
    InferenceError,
    dynamic_axes,
    register_flattening_functions,
)
from calltape_analyzer.errors import UsageError
from calltape_analyzer.inference.findings import ShapeFindings
from tests.analyzer.inference.functions import (
    D,
    Options,
    OwnCache,
    Point,
    plain,
    step,
    t,
    tape_of,
)
from tests.analyzer.tapes import Recorded


def test_positional_and_keyword_are_one_parameter(tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path, plain, ((t(2, 3), t(1)), {}), ((t(4, 3),), {"y": t(1)}), {"x": t(5, 3)}
    )
    assert tape.infer_dynamic_shapes() == ({0: D}, {})
    args = tape.infer_arguments(2).args
    assert args[0].shape == (5, 3)
    assert torch.equal(args[1], torch.zeros(1))


def test_an_order_of_keys_is_no_difference(tmp_path: Path) -> None:
    one = {"a": t(2, 3), "b": t(7)}
    other = {"b": t(7), "a": t(4, 3)}
    tape = tape_of(tmp_path, plain, ((one,), {}), ((other,), {}))
    assert tape.infer_dynamic_shapes() == ({"a": {0: D}, "b": {}},)
    assert torch.equal(tape.infer_arguments(1).args[0]["a"], other["a"])


def test_every_container_in_the_form_that_export_takes(tmp_path: Path) -> None:
    class Module(torch.nn.Module):
        def forward(self, p: Point, d: Any, o: Options, c: int) -> torch.Tensor:
            return p.x + p.y + d["k"] + o.bias

    def call(n: int) -> Any:
        return (Point(t(n, 2), t(n, 2)), OrderedDict(k=t(n, 2)), Options(t(n, 2)), 3), {}

    module = Module()
    tape = tape_of(tmp_path, module, call(3), call(5), classes=[Point, Options])
    shapes = tape.infer_dynamic_shapes()
    assert shapes == (Point({0: D}, {0: D}), {"k": {0: D}}, [{0: D}, None], None)
    assert isinstance(shapes[0], Point)
    assert tape.infer_arguments().args[3] == 3
    with register_flattening_functions(tape=tape):
        program = torch.export.export(module, *tape.infer_arguments(), dynamic_shapes=shapes)
        args, _ = call(7)
        torch.testing.assert_close(program.module()(*args), module(*args))


def test_well_known_names_are_shared(tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path,
        step,
        {"input_ids": t(2, 5), "attention_mask": t(2, 5)},
        {"input_ids": t(3, 1), "attention_mask": t(3, 6), "past_key_values": [t(3, 2, 5, 4)] * 2},
    )
    assert tape.infer_dynamic_shapes(dim_names=True, set_batch_dimension_for=True) == {
        "input_ids": {0: "batch_size", 1: "sequence_length"},
        "attention_mask": {0: "batch_size", 1: "total_sequence_length"},
        "past_key_values": [{0: "batch_size"}, {0: "batch_size"}],
    }


def test_names_say_only_what_always_held(tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path,
        lambda a, b, c: a,
        ((t(2, 9), t(2, 4), [t(4), t(3)]), {}),
        ((t(3, 9), t(3, 5), [t(5), t(4)]), {}),
    )
    shared = tape.infer_dynamic_shapes(dim_names=True)
    assert shared == (
        {0: "a_dim_0"},
        {0: "a_dim_0", 1: "b_dim_1"},
        [{0: "b_dim_1"}, {0: "c_dim_0"}],
    )
    given = tape.infer_dynamic_shapes(dim_names={"a": {0: "batch"}, 1: {1: "width"}})
    assert given == (
        {0: "batch"},
        {0: "b_dim_0", 1: "width"},
        [{0: "c_dim_0"}, {0: "c_1_dim_0"}],
    )


def test_a_known_name_is_not_given_to_what_differs(tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path,
        lambda input_ids, labels: input_ids,
        ((t(2, 4), t(2, 5)), {}),
        ((t(3, 6), t(3, 6)), {}),
    )
    ids, labels = tape.infer_dynamic_shapes(dim_names=True)
    assert ids == {0: "batch_size", 1: "sequence_length"}
    assert labels == {0: "batch_size", 1: "labels_dim_1"}


def test_findings_dump_to_json_and_say_why(tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path,
        plain,
        Recorded((t(2, 3),), {"n": 4}, number=3),
        Recorded((t(5, 3), [t(1), None]), {"n": 4}, number=9),
        Recorded((t(5, 3),), {"n": 4}, number=12),
    )
    findings = tape.inference().findings(set_batch_dimension_for={"y"}, dim_names=True)
    assert ShapeFindings.model_validate_json(findings.model_dump_json()) == findings
    x, y, n = findings.arguments
    assert [argument.passed for argument in findings.arguments] == [
        "positional",
        "positional",
        "constant",
    ]
    axis = x.leaves[0].axes[0]
    assert (axis.reason, axis.dynamic, axis.name) == ("varied", True, "x_dim_0")
    assert [(s.size, s.calls, s.first_call) for s in axis.sizes] == [(2, 1, 3), (5, 2, 9)]
    assert x.leaves[0].axes[1].reason == "constant"
    assert (y.leaves[0].calls, y.leaves[0].missing) == (1, 2)
    assert y.leaves[0].axes[0].reason == "declared"
    assert n.name == "n"
    assert findings.calls == 3
    assert findings.nested(lambda leaf: leaf.path) == {"x": "", "y": [".0", None], "n": None}


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, plain, ((t(2),), {"z": t(3)}), ((t(2), t(4)), {}))
    assert tape.infer_dynamic_shapes() == {"x": {}, "z": {}}
    (note,) = tape.inference().findings().notes
    assert "y of call 1 is left out" in note


def test_calls_that_raised_are_left_out(tmp_path: Path) -> None:
    failed = Recorded((t(9, 9, 9),), error=("builtins:ValueError", "no"))
    tape = tape_of(tmp_path, plain, ((t(2, 3),), {}), failed, ((t(4, 3),), {}))
    assert tape.infer_dynamic_shapes() == ({0: D},)
    assert "1 call raised and is left out" in tape.inference().findings().notes[0]
    alone = tape_of(tmp_path, plain, failed)
    assert alone.infer_dynamic_shapes() == ({},)


def test_a_call_that_raised_and_is_of_another_program_has_no_arguments(tmp_path: Path) -> None:
    calls = (([t(2, 3)],), {"n": 1}), (([t(4, 3)],), {"n": 1})
    error = "builtins:ValueError", "no"
    longer = Recorded(([t(1), t(1)],), {"n": 1}, error=error)
    other = Recorded(([t(2, 3)],), {"n": 2}, error=error)
    tape = tape_of(tmp_path, plain, *calls, longer, other)
    assert tape.infer_dynamic_shapes() == ([{0: D}],)
    with pytest.raises(InferenceError, match="2 tensors in call 2 but previously got 1 tensor in"):
        tape.infer_arguments(2)
    with pytest.raises(InferenceError, match=r"{} in call 0 and {'n': 2} in call 3"):
        tape.infer_arguments(3)


def test_without_a_signature(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, None, ((t(2), t(3)), {"k": t(1)}), ((t(4), t(3)), {"k": t(1)}))
    args, kwargs = tape.infer_arguments()
    assert [a.shape for a in args] == [(2,), (3,)]
    assert list(kwargs) == ["k"]
    assert tape.infer_dynamic_shapes() == {"args": ({0: D}, {}), "kwargs": {"k": {}}}


def test_a_tape_of_shapes_only(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, plain, ((t(2, 3),), {}), ((t(4, 3), t(1)), {}), values="none")
    assert tape.infer_dynamic_shapes() == ({0: D}, {})
    x = tape.infer_arguments().args[0]
    assert (x.shape, x.device.type) == ((4, 3), "meta")
    assert tape.infer_arguments(0).args[1].device.type == "cpu"


def test_arguments_are_built_anew(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, plain, ((t(2, 3),), {}))
    first = tape.infer_arguments().args[0]
    first.zero_()
    assert tape.infer_arguments().args[0].abs().sum() > 0


def test_one_tensor_passed_twice_stays_one(tmp_path: Path) -> None:
    x = t(2, 3)
    tape = tape_of(tmp_path, plain, ((x, x), {}))
    first, second = tape.infer_arguments().args
    assert first is second


def test_removed_inputs_stay_out(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, plain, ((t(2, 3), t(1)), {"n": 4}), ((t(4, 3), t(1)), {"n": 5}))
    with pytest.raises(InferenceError, match="different constant values"):
        tape.infer_dynamic_shapes()
    assert tape.remove_inputs(["n", "y"]) == 4
    assert tape.infer_dynamic_shapes(value_if_missing={"z": t(0, 2)}) == {"x": {0: D}, "z": {}}


def test_no_calls(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match=r"No inputs were captured\. Record"):
        tape_of(tmp_path, plain).infer_dynamic_shapes()


@pytest.mark.parametrize(
    "question",
    [
        lambda tape: tape.infer_dynamic_shapes(dim_names="x"),
        lambda tape: tape.infer_dynamic_shapes(dim_names=5),
        lambda tape: tape.infer_dynamic_shapes(dim_names={"x": ["batch"]}),
        lambda tape: tape.infer_dynamic_shapes(dim_names={"x": {0: 1}}),
        lambda tape: tape.infer_dynamic_shapes(dim_names={"no": {0: "batch"}}),
        lambda tape: tape.infer_dynamic_shapes(dim_names={7: {0: "batch"}}),
        lambda tape: tape.infer_dynamic_shapes(set_batch_dimension_for="x"),
        lambda tape: tape.infer_dynamic_shapes(set_batch_dimension_for=5),
        lambda tape: tape.infer_dynamic_shapes(set_batch_dimension_for=[None]),
        lambda tape: dynamic_axes(tape, set_batch_dimension_for="x"),
        lambda tape: dynamic_axes(tape, dim_names="x"),
        lambda tape: tape.remove_inputs("x"),
        lambda tape: tape.remove_inputs(5),
        lambda tape: tape.remove_inputs(None),
        lambda tape: tape.infer_arguments(True),
    ],
)
def test_what_names_nothing_is_refused_on_one_line(question: Any, tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path, plain, Recorded((t(2, 3),), outputs=t(2)), Recorded((t(4, 3),), outputs=t(4))
    )
    with pytest.raises(UsageError) as caught:
        question(tape)
    assert "\n" not in str(caught.value)
    assert tape.infer_dynamic_shapes(
        dim_names={0: {0: "rows"}, "z": {}}, set_batch_dimension_for=["y", 3]
    ) == ({0: "rows"},)


def test_findings_need_no_torch(tmp_path: Path) -> None:
    tape_of(
        tmp_path,
        step,
        {"input_ids": t(2, 5)},
        {"input_ids": t(2, 1), "past_key_values": OwnCache(5)},
    )
    code = (
        "import sys, json; from calltape_analyzer import open_tape\n"
        "found = open_tape(sys.argv[1]).inference().findings(dim_names=True)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "def leaf(found): return {a.axis: a.name for a in found.axes if a.dynamic}\n"
        "print(json.dumps(found.nested(leaf)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.tape")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == {
        "input_ids": {"1": "sequence_length"}, "past_key_values": [{}, {}]
    }  # fmt: skip


def test_calls_of_several_dtypes_are_said(tmp_path: Path) -> None:
    calls = [t(2, 3), t(4, 3), t(5, 3).long()]
    tape = tape_of(tmp_path, lambda x: x + 1, *[((x,), {}) for x in calls])
    (note,) = tape.shape_findings().notes
    assert note.startswith("x is float32 in 2 calls, int64 in 1 call: a program takes one dtype")
    assert len(tape.variants()) == 2  # as the note says
    assert not tape.only(calls="0..1").shape_findings().notes
