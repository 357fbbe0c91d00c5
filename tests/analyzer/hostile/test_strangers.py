"""What strangers tried, each as the proof that was given of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import calltape_analyzer
from calltape_analyzer import InputObserver, Placeholder, TapeError, check, open_tape, render
from calltape_analyzer.limits import LEAST_BYTES
from calltape_analyzer.scripting import python_of_variants
from calltape_recorder import record
from calltape_schema.inputs_table import InputsTable
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.call import Forged, forged_arguments
from tests.forging.changes import change_table
from tests.forging.strangers import ESCAPE


class Passes(torch.nn.Module):
    def forward(self, *args: Any) -> None:
        return None


class Masked(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None) -> None:
        return None


class Known(NamedTuple):
    a: Any
    b: Any


def refusal(question: Callable[[], Any]) -> TapeError | None:
    try:
        question()
    except TapeError as error:
        return error
    return None


def named(kind: str, type_name: str, *fields: str) -> dict[str, Any]:
    tensors = [{"kind": "tensor", "leaf": 0}] * len(fields)
    return {"kind": kind, "type": type_name, "fields": list(fields), "children": tensors}


# Code.


@pytest.mark.parametrize("name", ["subprocess:run", "os:system", "tests.analyzer.tapes:write_tape"])
def test_no_call_is_printed_that_the_tape_names(tmp_path: Path, name: str) -> None:
    path = forged_arguments(tmp_path, named("namedtuple", name, "a", "b"))
    code, output, _ = run("variants", str(path), "--python")
    assert code == 0
    assert "import" not in output.replace("from torch.export import Dim", "").replace(
        "from calltape_analyzer import open_tape", ""
    )
    assert name.partition(":")[2] not in output


def test_a_named_tuple_that_was_given_is_named(tmp_path: Path) -> None:
    path = write_tape(
        tmp_path / "a.tape", [((Known(torch.ones(n), torch.ones(2)),), {}) for n in (2, 3)]
    )
    with open_tape(path) as tape:
        assert "Known" not in python_of_variants(tape.variants(), [])
    with open_tape(path, classes=[Known]) as tape:
        assert "Known({0: Dim.AUTO}, {})" in python_of_variants(tape.variants(), [])
    other = forged_arguments(tmp_path, named("namedtuple", f"{__name__}:Known", "a", "c"))
    with open_tape(other, classes=[Known]) as tape:
        assert "Known" not in python_of_variants(tape.variants(), [])


class Caught(BaseException):
    pass


@pytest.fixture
def no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own ``__getattr__`` imports what it is asked for."""

    def refuse(name: str) -> Any:
        raise Caught(name)

    monkeypatch.setattr(torch, "__getattr__", refuse, raising=False)


@pytest.mark.usefixtures("no_import")
@pytest.mark.parametrize("dtype", ["_inductor", "_dynamo", "onnx", "strided", "\x1b[2J"])
def test_a_dtype_is_looked_up_in_a_table(tmp_path: Path, dtype: str) -> None:
    call = Forged(tmp_path / "a.tape", (torch.ones(2),))
    call.set_leaf(dtype=dtype, key=None, missing="policy")
    more = write_tape(
        tmp_path / "b.tape", [((torch.ones(2), torch.ones(3)), {})], tape_id=bytes(16)
    )
    with open_tape([call.write(), more]) as tape:
        for question in (tape.infer_arguments, *(v.infer_arguments for v in tape.variants())):
            error = refusal(question)
            assert error is None or str(error).isprintable()


@pytest.mark.parametrize("name", ["values", "items", "__class__", "move_to_end", "keys"])
@pytest.mark.parametrize("cls", ["collections:OrderedDict", "collections:Counter"])
def test_no_attribute_hides_a_method(tmp_path: Path, cls: str, name: str) -> None:
    path = forged_arguments(tmp_path, named("object", cls, name))
    with open_tape(path) as tape:
        (value,) = tape[0].inputs.args
        assert isinstance(value, Placeholder)
        assert render(tape[0].inputs)


class Registered:
    made = 0


def _made(children: Any, context: Any) -> Registered:
    Registered.made += 1
    return Registered()


def test_to_be_registered_is_no_consent(tmp_path: Path) -> None:
    pytree = torch.utils._pytree
    pytree.register_pytree_node(Registered, lambda value: ([], None), _made)
    try:
        node = {
            "kind": "custom", "type": f"{__name__}:Registered", "context": {"kind": "none"},
            "children": [],
        }  # fmt: skip
        path = forged_arguments(tmp_path, node)
        with open_tape(path) as tape:
            (value,) = tape[0].inputs.args
            assert isinstance(value, Placeholder)
            tape.variants()
            assert Registered.made == 0
        with open_tape(path, classes=[Registered]) as tape:
            assert type(tape[0].inputs.args[0]) is Registered
            assert Registered.made == 1
    finally:
        pytree._deregister_pytree_node(Registered)


# Memory.


def test_made_up_values_are_bounded(tmp_path: Path) -> None:
    for value in (torch.ones(1).expand(2**30), torch.ones(2**30, device="meta")):
        path = write_tape(tmp_path / "a.tape", [((value,), {})])
        with open_tape(path) as tape:
            # Costs nothing: expanded, or without a value.
            (argument,) = tape[0].inputs.args
            assert argument.shape == (2**30,)
            with pytest.raises(TapeError, match="allow more") as caught:
                tape.infer_arguments()
            assert caught.value.kind == "limit"


def test_an_expanded_quantized_tensor_costs_what_is_stored(tmp_path: Path) -> None:
    value = torch._make_per_tensor_quantized_tensor(torch.ones(1, dtype=torch.int8), 0.5, 1)
    path = write_tape(tmp_path / "a.tape", [((value.expand(2**40),), {})])
    with open_tape(path) as tape:
        (argument,) = tape[0].inputs.args
        assert (argument.shape, argument.stride(), argument.q_scale()) == ((2**40,), (0,), 0.5)
        assert argument.untyped_storage().nbytes() == 1
        assert argument[:2].int_repr().tolist() == [1, 1]


def test_what_a_call_lacks_is_bounded(tmp_path: Path) -> None:
    huge = torch.ones(1).expand(2**30)
    calls = [((), {"x": torch.ones(2), "y": huge}), ((), {"x": torch.ones(3)})]
    with (
        open_tape(write_tape(tmp_path / "a.tape", calls)) as tape,
        pytest.raises(TapeError) as caught,
    ):
        tape.infer_arguments(1)
    assert caught.value.kind == "limit"


def test_a_cache_without_values_is_made_up(tmp_path: Path) -> None:
    """Two layers of an ordinary model, 64 MiB: what real recordings without values are about."""
    cache = [torch.empty(1, 8, 1024, 1024, dtype=torch.half, device="meta") for _ in range(4)]
    path = write_tape(tmp_path / "a.tape", [((cache,), {})], values="none")
    with open_tape(path) as tape:
        ((made,), _) = tape.variants()[0].infer_arguments()
        assert [tensor.shape for tensor in made] == [(1, 8, 1024, 1024)] * 4
        assert sum(tensor.nbytes for tensor in made) < LEAST_BYTES


def test_more_may_be_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calltape_analyzer.limits.LEAST_BYTES", 1000)
    monkeypatch.setattr("calltape_analyzer.limits.TIMES_TAPE", 0)
    path = write_tape(tmp_path / "a.tape", [((torch.empty(300, device="meta"),), {})])
    with open_tape(path) as tape:
        (variant,) = tape.variants()
        with pytest.raises(TapeError, match="1,200 bytes"):
            variant.infer_arguments()
        with calltape_analyzer.Limits(nbytes=1200):
            ((made,), _) = variant.infer_arguments()
        assert made.shape == (300,)


@pytest.mark.parametrize(
    "dtype", ["bits8", "bits16", "uint3", "int7", "float4_e2m1fn_x2", "qint8", "float8_e8m0fnu"]
)
def test_dtypes_that_torch_does_not_compute_with_are_inferred_or_named(
    tmp_path: Path, dtype: str
) -> None:
    call = Forged(tmp_path / "a.tape", (torch.ones(2),))
    call.set_leaf(dtype=dtype, key=None, missing="policy")
    with open_tape(call.write()) as tape:
        (variant,) = tape.variants()
        error = refusal(variant.infer_arguments)
        if error is not None:
            assert error.kind == "inference"
        else:
            ((value,), _) = variant.infer_arguments()
            assert str(value.dtype) == f"torch.{dtype}"


@pytest.mark.parametrize("dtype", ["bits8", "uint1", "uint3", "int7", "quint8", "float8_e8m0fnu"])
def test_expanded_values_of_odd_dtypes_are_inferred(tmp_path: Path, dtype: str) -> None:
    """torch cannot make some of them contiguous, so that ``infer_arguments`` raised its error."""
    plain = torch.ones(2, 1).expand(2, 3)
    if dtype == "quint8":
        value = torch.quantize_per_tensor(torch.ones(2, 1), 0.5, 3, torch.quint8).expand(2, 3)
    else:
        value = torch.ones(2, 1, dtype=torch.uint8).view(getattr(torch, dtype)).expand(2, 3)
    with record(model := Passes(), tmp_path / "a.tape"):
        model(value, plain)
    with open_tape(tmp_path / "a.tape") as tape:
        (variant,) = tape.variants()
        for made in (
            tape.infer_arguments(0),
            tape.infer_arguments(),
            variant.infer_arguments(0),
            variant.infer_arguments(0, layout="contiguous"),
            tape[0].inputs,
        ):
            assert made.args[0].dtype == value.dtype
            assert torch.equal(_bits(made.args[0]), _bits(value))


def test_a_value_that_is_given_may_be_of_any_dtype(tmp_path: Path) -> None:
    given = torch.tensor([1, 0, 1], dtype=torch.uint8).view(torch.uint1)
    observer = InputObserver(value_if_missing={"mask": given})
    with observer(model := Masked()):
        model(torch.ones(2))
    args, kwargs = observer.infer_arguments(0, as_args_kwargs=True)
    (mask,) = [one for one in (*args, *kwargs.values()) if one.dtype == torch.uint1]
    assert torch.equal(_bits(mask), _bits(given))
    assert mask.data_ptr() != given.data_ptr()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as numbers that torch compares."""
    return tensor.int_repr() if tensor.is_quantized else tensor.view(torch.uint8)


def test_a_set_of_one_hash(tmp_path: Path) -> None:
    scalars = tuple(i * (2**61 - 1) for i in range(1, 66))
    node = {"kind": "set", "children": [{"kind": "int", "scalar": i} for i in range(65)]}
    with open_tape(forged_arguments(tmp_path, node, scalars=scalars)) as tape:
        (value,) = tape[0].inputs.args
        assert "more than 64 elements of one hash" in value.reason


def test_ranges_that_lie_are_told(tmp_path: Path) -> None:
    calls = [((torch.arange(n),), {}) for n in (3, 4)]
    path = write_tape(tmp_path / "a.tape", calls)
    with open_tape(path) as tape:
        assert tape.verify() == []

    def change(table: InputsTable) -> None:
        for row in table.rows.values():
            row.ranges = {0: (0, 1000)}

    with open_tape(change_table(path, change)) as tape:
        [error] = tape.verify()
        assert "other ranges of integers" in error.reason


# Errors, and text.


def test_bools_are_0_or_1(tmp_path: Path) -> None:
    call = Forged(tmp_path / "a.tape", (torch.tensor([True, False]),))
    call.blob = call.blob[:-2] + b"\1\2"
    with open_tape(call.write()) as tape:
        with pytest.raises(TapeError, match="neither 0 nor 1"):
            _ = tape[0].inputs
        assert [error.kind for error in tape.verify()] == ["invalid"]


def test_the_largest_call_number_is_read(tmp_path: Path) -> None:
    number = 2**63 - 1
    path = write_tape(tmp_path / "a.tape", [Recorded((torch.ones(2),), number=number)])
    assert run("info", str(path)).code == 0
    assert run("show", str(path), str(number)).code == 0
    with open_tape(path) as tape:
        assert tape.coverage.kept == 1


def test_keys_that_json_does_not_have(tmp_path: Path) -> None:
    value = {("a", 1): torch.ones(2), b"\xff": torch.ones(3), 1.5: torch.ones(1), None: 1}
    path = write_tape(tmp_path / "a.tape", [((), {"x": value})])
    for command in ("variants", "info", "ls"):
        assert run(command, str(path), "--json").code == 0
    assert run("show", str(path), "0", "--json").code == 0


def test_a_tuple_of_another_length_than_its_class_is_a_placeholder(tmp_path: Path) -> None:
    node = {"kind": "tuple", "type": f"{__name__}:Known", "children": [{"kind": "none"}]}
    with open_tape(forged_arguments(tmp_path, node), classes=[Known]) as tape:
        assert isinstance(tape[0].inputs.args[0], Placeholder)
        assert render(tape[0].inputs)


def test_nothing_raw_is_printed(tmp_path: Path) -> None:
    nodes = [
        named("object", f"a{ESCAPE}:b{ESCAPE}", ESCAPE),
        {"kind": "enum", "type": "a:B", "name": ESCAPE},
        {"kind": "dict", "keys": [ESCAPE], "children": [{"kind": "none"}]},
        {"kind": "opaque", "type": "a:B", "reason": ESCAPE},
        {"kind": "str", "scalar": 0},
    ]  # fmt: skip
    path = forged_arguments(tmp_path, *nodes, scalars=(ESCAPE,))
    keyed = write_tape(
        tmp_path / "b.tape", [{ESCAPE: v, f"{ESCAPE}2": torch.ones(2)} for v in (True, False)]
    )
    for one in (path, keyed):
        with open_tape(one) as tape:
            texts = [str(tape[0].inputs), render(tape[0].inputs), str(tape.variants())]
            texts += [variant.name for variant in tape.variants()]
            texts.append(str(check(tape, _onnx_model())))
            assert all(line.isprintable() for text in texts for line in text.split("\n"))


def _onnx_model() -> Any:
    helper = pytest.importorskip("onnx").helper
    x, y = (helper.make_tensor_value_info(name, 1, ["n", 3]) for name in "xy")
    return helper.make_model(
        helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    )


def test_two_parameters_of_one_name_are_rejected(tmp_path: Path) -> None:
    from calltape_schema.records import Parameter, Target

    parameter = Parameter(name="x", kind="KEYWORD_ONLY")
    with pytest.raises(ValueError, match="same name twice"):
        Target(type="a:B", method="forward", via="hook", signature=(parameter, parameter))
