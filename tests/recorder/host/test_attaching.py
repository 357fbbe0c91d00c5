"""What a recorder attaches to, beside other tools, and what it leaves when it detaches."""

from __future__ import annotations

import copy
import importlib
import math
import os.path
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape, recordings
from calltape_recorder import Recorder, record
from calltape_recorder.host.target import owner_of
from tests.analyzer.cli.commands import run
from tests.raising import raises
from tests.recorder.models import Add
from tests.recorder.reading import read


def test_other_tools_wrap_on_top_and_stay(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    recorder = record(model, path, via="method")
    ours, calls = model.forward, []

    def wrapped(*args: Any) -> Any:
        calls.append(args)
        return ours(*args)

    model.forward = wrapped  # type: ignore[method-assign]
    model(torch.ones(1), torch.ones(1))
    recorder.close()
    assert model.forward is wrapped
    model(torch.ones(1), torch.ones(1))
    assert len(calls) == 2
    assert recorder.stats().seen == 1


def test_a_replaced_method_is_put_back(tmp_path: Path) -> None:
    model = Add()
    own = lambda x, y: x - y  # noqa: E731
    model.forward = own  # type: ignore[method-assign]
    with record(model, tmp_path / "t.tape", via="method"):
        assert model(torch.ones(1), torch.ones(1)).item() == 0
        assert copy.deepcopy(model)(torch.ones(1), torch.ones(1)).item() == 0
    assert model.forward is own


def test_functions_of_one_name_are_told_apart_by_their_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("first_ops", "second_ops"):
        (tmp_path / f"{name}.py").write_text("def scale(x): return x * 2\n")
        module = importlib.import_module(name)
        with record(module, tmp_path / "tapes" / f"{name}.tape", method="scale"):
            module.scale(torch.ones(2))
    targets = recordings(tmp_path / "tapes").targets
    assert targets == ("first_ops:scale", "second_ops:scale")
    with open_tape(tmp_path / "tapes", target="second") as tape:
        assert tape.target is not None
        assert (tape.target.module, tape.target.method) == ("second_ops", "scale")


@pytest.mark.parametrize("named", [False, True])
def test_a_function_is_recorded_by_itself_or_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Calls that look it up in its module are seen."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kernels.py").write_text("def scale(x): return x * 2\n")
    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    module = importlib.import_module("kernels")
    known, x = module.scale, torch.ones(2)
    with record("kernels:scale" if named else known, tmp_path / "t.tape"):
        assert torch.equal(module.scale(x), x * 2)
        known(x)
    (call,) = read(tmp_path / "t.tape").calls
    assert torch.equal(call.output(0), x * 2)
    assert module.scale is known


@pytest.mark.parametrize("running", [False, True])
def test_of_a_model_that_was_called_before_the_tape_says_since_when(
    tmp_path: Path, running: bool
) -> None:
    model, x = Add(), torch.ones(1)
    model(x, x)
    before = time.time_ns()
    with Recorder(tmp_path / "t.tape").attach(model, running=running):
        model(x, x)
    observed = read(tmp_path / "t.tape").manifest.observed
    assert (observed is not None) == running
    if observed is not None:
        assert before <= observed.since_ns <= read(tmp_path / "t.tape").calls[0].record.time_ns
    shown = run("info", tmp_path / "t.tape").out
    since = r" since \S+Z, when the target was found," if running else ""
    assert re.search(f"1 of 1 calls seen{since} were kept", shown)


@pytest.mark.parametrize("first", [0, 1])
def test_wrappers_closed_in_any_order_leave_nothing(tmp_path: Path, first: int) -> None:
    model, x = Add(), torch.ones(1)
    recorders = [record(model, tmp_path / f"{n}.tape", via="method") for n in range(2)]
    recorders[first].close()
    model(x, x)
    recorders[1 - first].close()
    assert "forward" not in vars(model)
    assert [recorder.stats().seen for recorder in recorders] == [first, 1 - first]


class Slots:
    __slots__ = ()

    def run(self, x: Any) -> Any:
        return x


class Guarded:
    @property
    def run(self) -> Any:
        raise RuntimeError("not now")


CANNOT = [
    (object(), {}), (Add(), {"method": "missing"}), (object(), {"via": "method"}), (Add, {}),
    (Slots(), {"method": "run"}), (Slots, {"method": "run"}), (Guarded(), {"method": "run"}),
]  # fmt: skip


@pytest.mark.parametrize(("target", "options"), CANNOT)
def test_what_cannot_be_attached_is_the_caller_s_error(
    tmp_path: Path, target: Any, options: dict[str, Any]
) -> None:
    path = tmp_path / "t.tape"
    with raises("usage") as caught:
        record(target, path, **options)
    assert "documentation" not in str(caught.value)
    assert not path.exists()
    record(Add(), path).close()  # the corrected call is not refused


# --- which object a function is recorded on -------------------------------------------------


class Kernel:
    def double(self, x: int) -> int:
        return 2 * x


def test_the_owner_of_functions_and_names() -> None:
    kernel = Kernel()
    assert owner_of(kernel.double) == (kernel, "double")
    assert owner_of(kernel) == (kernel, None)
    assert owner_of("math:sqrt") == (math, "sqrt")
    assert owner_of(math.sqrt) == (math, "sqrt")
    assert owner_of("os:path.join") == (os.path, "join")
    assert owner_of("math:pi") == (math.pi, None)
    assert owner_of("math") == (math, None)


@pytest.mark.parametrize(
    "target", [lambda x: x, "math:nothing", "no_such_module:f", "", ":", "math:", "a b:c"]
)
def test_a_target_without_an_owner_is_rejected(target: object) -> None:
    with raises("usage"):
        owner_of(target, "a.tape")
