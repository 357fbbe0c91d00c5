"""The drop-in observer: what users of the peers do with theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import InferenceError, InputObserver, TapeError, open_tape
from calltape_analyzer.observer import _infer_dynamic_dimensions
from calltape_analyzer.observer.stored_calls import InputCandidate

D = torch.export.Dim.DYNAMIC


class Add(torch.nn.Module):
    fail = False

    def forward(self, x, y=None, add=True):
        if self.fail:
            raise KeyError("asked to")
        if y is None:
            return x
        return x + y if add else x - y

    def twice(self, z):
        return z * 2


def pairs(*sizes: tuple[int, int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(batch, width), torch.randn(1, width)) for batch, width in sizes]


def test_an_observer_keeps_three_calls_and_their_outputs() -> None:
    model, observer = Add(), InputObserver()
    given = pairs((5, 6), (7, 7), (7, 8), (7, 9))
    with observer(model) as same:
        assert same is observer
        outputs = [model(*call) for call in given]
    info = observer.info
    assert info is not None
    assert observer.num_obs() == len(info) == len(info.inputs) == 3
    assert len(info.latencies) == 3
    assert min(info.latencies) > 0
    for expected, got in zip(outputs, info.flat_outputs, strict=False):
        assert len(got) == 1
        assert torch.equal(expected, got[0])
    for candidate, (x, y) in zip(info.inputs, given, strict=False):
        assert len(candidate) == 2
        assert torch.equal(candidate.args[0], x)
        assert torch.equal(candidate.flat_list[1], y)
        assert candidate.aligned_flat_list is not None
        assert candidate.n_aligned_tensors == 2
        assert "float32" in candidate.str_obs()


def test_several_blocks_accumulate() -> None:
    model, observer = Add(), InputObserver()
    with observer(model, store_n_calls=1):
        for call in pairs((2, 3), (3, 4)):
            model(*call)
    with observer(model, store_n_calls=2):
        for call in pairs((4, 3), (5, 3), (6, 3)):
            model(*call)
    assert observer.num_obs() == 3
    assert observer.infer_dynamic_shapes() == ({0: D}, {})
    assert len(observer.paths) == 2


def test_another_method_and_direct_calls_are_observed() -> None:
    model, observer = Add(), InputObserver()
    with observer(model, method_name="twice"):
        model.twice(torch.ones(2, 3))
        model.twice(torch.ones(2, 4))
    assert observer.infer_dynamic_shapes() == ({1: D},)
    direct = InputObserver()
    with direct(model):
        model.forward(torch.ones(2))
    assert direct.num_obs() == 1


def test_the_model_is_left_as_it_was() -> None:
    model, observer = Add(), InputObserver()
    model.fail = True
    with pytest.raises(KeyError), observer(model):
        model(torch.ones(2))
    assert "forward" not in vars(model)
    assert observer.num_obs() == 1


def test_an_observer_answers_while_recording() -> None:
    model, observer = Add(), InputObserver()
    assert observer.is_empty()
    with observer(model):
        assert observer.num_obs() == 0
        model(torch.ones(2, 3))
        assert observer.infer_dynamic_shapes() == ({},)
        held = observer.info
        model(torch.ones(4, 3))
        assert observer.infer_dynamic_shapes() == ({0: D},)
    assert observer.infer_dynamic_shapes() == ({0: D},)
    assert held is not None
    assert held.inputs[0].args[0].shape == (2, 3)
    assert not observer.is_empty()


def test_the_tape_stays_where_a_path_was_given(tmp_path: Path) -> None:
    model, observer = Add(), InputObserver(path=tmp_path / "runs" / "a.tape")
    for call in pairs((2, 3), (4, 3)):
        with observer(model):
            model(*call)
    assert [path.name for path in observer.paths] == ["a.tape", "a-2.tape"]
    tape = open_tape(observer.paths)
    assert tape.infer_dynamic_shapes() == observer.infer_dynamic_shapes() == ({0: D}, {})


def test_arguments_of_the_callers_own_are_completed() -> None:
    model, observer = Add(), InputObserver()
    with observer(model):
        for call in pairs((5, 6), (5, 7)):
            model(*call)
    x = torch.randn(3, 9)
    args = observer.infer_arguments((x,))
    assert torch.equal(args[0], x)
    assert args[1].shape == (1, 0)
    with pytest.raises(ValueError, match="Unexpected type"):
        observer.infer_arguments("x")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="No stored input set"):
        observer.infer_arguments(7)
    assert observer.infer_arguments(-1)[0].shape == (5, 7)


def test_constants_are_kept_and_must_agree() -> None:
    model, observer = Add(), InputObserver()
    with observer(model):
        for x, y in pairs((2, 3), (4, 5)):
            model(x=x, y=y, add=False)
    shapes, kwargs = observer.infer_dynamic_shapes(), observer.infer_arguments()
    assert shapes == {"x": {0: D, 1: D}, "y": {1: D}, "add": None}
    assert kwargs["add"] is False
    program = torch.export.export(model, (), kwargs=kwargs, dynamic_shapes=shapes)
    x, y = torch.randn(7, 8), torch.randn(1, 8)
    assert torch.equal(program.module()(x=x, y=y, add=False), x - y)
    with observer(model):
        model(x=torch.ones(2, 3), add=True)
    with pytest.raises(RuntimeError, match="Two calls were made with different constant values"):
        observer.infer_dynamic_shapes()


def test_removed_inputs_stay_removed() -> None:
    model, observer = Add(), InputObserver()
    with pytest.raises(RuntimeError, match="No input was captured"):
        observer.remove_inputs(["x"])
    with observer(model):
        for x, y in pairs((2, 3), (4, 5)):
            model(x=x, y=y, add=False)
    assert observer.remove_inputs(["no_such_input"]) == 0
    assert observer.remove_inputs(["y", "add"]) == 4
    assert observer.infer_dynamic_shapes() == {"x": {0: D, 1: D}}
    assert list(observer.infer_arguments()) == ["x"]
    with observer(model):
        model(x=torch.ones(3, 3), y=torch.ones(3, 3))
    assert list(observer.infer_arguments()) == ["x"]


class Variadic(torch.nn.Module):
    def forward(self, a, *args, **kwargs):
        return a + sum(args) + sum(kwargs.values())


def test_variadic_arguments_are_inferred_as_args_and_kwargs() -> None:
    model, observer = Variadic(), InputObserver()
    with observer(model):
        for n in (3, 5):
            model(torch.ones(n), torch.ones(n), torch.ones(1), u=torch.ones(n), v=torch.ones(1))
    assert observer.infer_dynamic_shapes() == {
        "a": {0: D},
        "args": ({0: D}, {}),
        "kwargs": {"u": {0: D}, "v": {}},
    }
    with pytest.raises(RuntimeError, match="as_args_kwargs=True"):
        observer.infer_arguments()
    args, kwargs = observer.infer_arguments(as_args_kwargs=True)
    assert len(args) == 3
    assert list(kwargs) == ["u", "v"]
    for name in ("args", "kwargs"):
        with pytest.raises(ValueError, match="Cannot remove variadic"):
            observer.remove_inputs([name])


def test_args_that_took_nothing_have_no_shapes() -> None:
    """The peer has an empty tuple there, and torch.export refuses it."""
    model, observer = Variadic(), InputObserver()
    with observer(model):
        model(torch.ones(3))
        model(torch.ones(5))
    assert observer.infer_dynamic_shapes() == ({0: D},)
    args, _ = observer.infer_arguments(as_args_kwargs=True)
    program = torch.export.export(model, args, dynamic_shapes=({0: D},))
    assert program.module()(torch.ones(7)).shape == (7,)


@pytest.mark.parametrize(
    ("missing", "error", "words"),
    [
        ({"no": torch.ones(1)}, ValueError, "Unexpected keyword argument"),
        ({9: torch.ones(1)}, ValueError, "Unexpected keyword argument"),
        ({1: torch.ones(1)}, NotImplementedError, "Unexpected keyword argument"),
        ({1.5: torch.ones(1)}, TypeError, "Unexpected type"),
    ],
)
def test_value_if_missing_must_fit(missing: Any, error: type[Exception], words: str) -> None:
    model, observer = Add(), InputObserver(value_if_missing=missing)
    with pytest.raises(error, match=words) as caught, observer(model):
        model(torch.ones(2))
    assert isinstance(caught.value, TapeError)


def test_calls_that_are_not_one_program() -> None:
    class Lists(torch.nn.Module):
        def forward(self, x=None, y=None):
            return torch.zeros(1)

    def observed(*calls: tuple[tuple[Any, ...], dict[str, Any]]) -> InputObserver:
        observer, model = InputObserver(), Lists()
        with observer(model):
            for args, kwargs in calls:
                model(*args, **kwargs)
        return observer

    t = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match=r"No inputs were captured\. Record"):
        InputObserver().infer_dynamic_shapes()
    with pytest.raises(RuntimeError, match="No inputs were captured"):
        observed().infer_arguments()
    cases = [
        ([((), {"x": t}), ((), {"y": t})], "At least one call to the observed model"),
        ([((t, [t]), {}), ((t, [t, t]), {})], "Positional argument 1 has"),
        ([((), {"y": [t]}), ((), {"y": [t, t]})], "Named argument 'y' has"),
        ([((), {"y": t}), ((t, t), {})], "by keyword"),
        ([((t,), {}), ((t[0],), {})], "same rank"),
        ([((t, {"a": t}), {}), ((t, {"b": t}), {})], "other keys"),
        ([((t, 3), {}), ((t, 4), {})], "different constant values"),
    ]
    for calls, words in cases:
        with pytest.raises(InferenceError, match=words) as caught:
            observed(*calls).infer_dynamic_shapes()
        # The message names the calls, and ends with what to do.
        assert "call 0" in str(caught.value)
        assert "call 1" in str(caught.value)
        assert caught.value.kind == "inference"


def test_there_is_no_such_method() -> None:
    with (
        pytest.raises(ValueError, match="does not have a method"),
        InputObserver()(Add(), method_name="no"),
    ):
        pass


def test_a_candidate_flattens_and_clones_its_arguments() -> None:
    t = torch.ones(2, 3)
    candidate = InputCandidate(
        args=(t, [t, None]), kwargs={"k": {"a": t}}, clone=True, cst_kwargs={}
    )
    assert [None if x is None else tuple(x.shape) for x in candidate.flat_list] == [
        (2, 3), (2, 3), None, (2, 3)
    ]  # fmt: skip
    assert candidate.flat_list[0] is not t
    assert "2 args" in str(candidate)
    assert candidate.aligned_flat_list is None
    with pytest.raises(RuntimeError, match="This input was not aligned with the others"):
        candidate.n_aligned_tensors  # noqa: B018


def test_calls_that_raise_are_no_evidence() -> None:
    class Strict(torch.nn.Module):
        def forward(self, x):
            if x.dim() != 2:
                raise ValueError("two dimensions, please")
            return x

    model, observer = Strict(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3))
        with pytest.raises(ValueError, match="two dimensions"):
            model(torch.ones(4))
        model(torch.ones(5, 3))
    assert observer.infer_dynamic_shapes() == ({0: D},)
    assert observer.info is not None
    assert len(observer.info.latencies) == len(observer.info.flat_outputs) == 2


def test_calls_that_raise_are_evidence_where_they_fit() -> None:
    class Small(torch.nn.Module):
        def forward(self, x):
            if len(x) > 4:
                raise ValueError("too many")
            return x

    model, observer = Small(), InputObserver()
    with observer(model):
        model(torch.ones(2, 3))
        with pytest.raises(ValueError, match="too many"):
            model(torch.ones(5, 3))
    assert observer.num_obs() == 2
    assert observer.infer_dynamic_shapes() == ({0: D},)
    assert open_tape(observer.paths).infer_dynamic_shapes() == ({},)


def test_tensors_are_detached() -> None:
    class Named(torch.nn.Module):
        def forward(self, x, y=None):
            return x * 2

    model, observer = Named(), InputObserver(value_if_missing={"y": torch.ones(1)})
    with observer(model):
        model(torch.ones(2, 3, requires_grad=True), y=torch.nn.Parameter(torch.ones(2)))
        model(torch.ones(4, 3, requires_grad=True))
    args, kwargs = observer.infer_arguments(as_args_kwargs=True)
    info = observer.info
    assert info is not None
    for tensors in (
        [*args, *kwargs.values()],
        observer.infer_arguments(1, flat=True),
        info.inputs[0].flat_list,
        info.inputs[0].aligned_flat_list,
        info.flat_outputs[0],
    ):
        assert [type(tensor) for tensor in tensors] == [torch.Tensor] * len(tensors)
        assert all(tensor.numpy().any() for tensor in tensors)
    tape = open_tape(observer.paths)
    assert tape.calls[0].inputs.args[0].requires_grad


def test_a_tensor_without_a_value_is_no_argument() -> None:
    class Sparse(torch.nn.Module):
        def forward(self, x):
            return x

    model, observer = Sparse(), InputObserver()
    with observer(model):
        model(torch.eye(2).to_sparse())
    assert observer.infer_dynamic_shapes() == ({},)
    for flat in (False, True):
        with pytest.raises(InferenceError, match="x holds a torch:Tensor"):
            observer.infer_arguments(flat=flat)
    assert observer.info is not None
    assert len(observer.info.inputs) == len(observer.info.flat_outputs) == 1


def test_names_of_a_given_dict() -> None:
    class Two(torch.nn.Module):
        def forward(self, x=None, y=None):
            return torch.zeros(1)

    model, observer = Two(), InputObserver()
    with observer(model):
        model(x=torch.ones(2))
    given = {"x": torch.ones(3), "y": torch.ones(1), "no": torch.ones(1)}
    assert {k: v.shape for k, v in observer.infer_arguments(given).items()} == {"x": (3,)}
    empty = InputObserver()
    with empty(model):
        model(x=torch.ones(2), y=[])
    assert empty.infer_arguments({"x": torch.ones(3), "y": []})["y"] == []
    with pytest.raises(InferenceError, match="1 tensor in the given arguments and none"):
        empty.infer_arguments({"x": torch.ones(3), "y": [torch.ones(1)]})


def test_a_tape_that_is_there_is_replaced_when_asked_for(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "a.tape"
    with InputObserver(path=path)(model):
        model(torch.ones(2))
    with pytest.raises(TapeError, match="overwrite=True"), InputObserver(path=path)(model):
        pass
    observer = InputObserver(path=path, overwrite=True)
    with observer(model):
        model(torch.ones(3))
    assert len(open_tape(path)) == observer.num_obs() == 1
    assert observer.infer_arguments()[0].shape == (3,)


def test_dimensions_that_differ_between_shapes_are_dynamic() -> None:
    assert _infer_dynamic_dimensions([(1, 2, 3), (1, 2, 4)]) == [2]
    assert _infer_dynamic_dimensions([(1, 2, 3), (2, 2, 4)]) == [0, 2]
    assert _infer_dynamic_dimensions([(1, 2)], set_batch_dimension=True) == [0]
    assert _infer_dynamic_dimensions([(), ()], set_batch_dimension=True) == []
    with pytest.raises(RuntimeError, match="same rank"):
        _infer_dynamic_dimensions([(1,), (1, 2)])
