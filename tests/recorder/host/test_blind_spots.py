"""A recorder that does not see the calls says so: at attach(), while it runs, and at its end."""

from __future__ import annotations

import copy
import functools
import io
import json
import os
import pickle
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import First, Recorder, record
from calltape_schema.empty_tapes import why_empty
from calltape_schema.remedies import told_to
from tests.analyzer.cli.commands import run
from tests.recorder.models import Add, Identity, Two
from tests.recorder.processes import child, in_a_fork
from tests.recorder.waiting import looked

X = torch.ones(2, 4)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings so far, without what stands before each."""

    def warnings() -> list[str]:
        lines = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
        start = f"calltape, process {os.getpid()}: "
        assert all(line.startswith(start) for line in lines)
        return [line.removeprefix(start) for line in lines]

    return warnings


class OwnCall(torch.nn.Linear):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x)


class GoesOn(torch.nn.Linear):
    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x)


class Decorated(torch.nn.Linear):
    """As by a decorator of an engine."""


def decorated(self: Any, *args: Any) -> Any:
    return self.compiled(*args) if hasattr(self, "compiled") else self.forward(*args)


Decorated.__call__ = decorated  # type: ignore[method-assign]


def test_a_call_of_its_own_is_told_at_attach(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    for number, cls in enumerate((OwnCall, Decorated)):
        recorder = record(cls(4, 4), tmp_path / f"{number}.tape")
        assert len(said()) == 2 * number + 1
        assert said()[-1].startswith(f"{cls.__name__} overrides __call__")
        recorder.close()
        assert said()[-1].startswith(f"no call of {__name__}:{cls.__name__}.forward was seen.")
    own = OwnCall(4, 4)
    with record(own, tmp_path / "2.tape", via="method") as recorder:
        own(X)
    assert recorder.stats().kept == 1
    assert len(said()) == 4


def test_a_call_that_goes_on_to_torch_s_is_not_told_of(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    models: list[Any] = [
        GoesOn(4, 4), torch.nn.Linear(4, 4), torch.jit.script(torch.nn.Linear(4, 4)),
        torch.compile(torch.nn.Linear(4, 4), backend="eager"), torch.fx.symbolic_trace(Two()),
    ]  # fmt: skip
    for number, model in enumerate(models):
        with record(model, tmp_path / f"{number}.tape") as recorder:
            model(X)
        assert recorder.stats().kept == 1
    assert said() == []


@pytest.mark.parametrize("via", ["hook", "method"])
def test_copies_are_counted(tmp_path: Path, via: Any, said: Callable[[], list[str]]) -> None:
    model = torch.nn.Linear(4, 4)
    with record(model, tmp_path / "t.tape", via=via) as recorder:
        assert recorder.stats().copies == 0
        served = copy.deepcopy(model)
        pickle.dumps(model)
        torch.save({"model": model}, io.BytesIO())
        served(X)
        assert recorder.stats().copies == 3
        recorder.detach()
        copy.deepcopy(model)
    assert recorder.stats().copies == 3
    warning = said()[-1]
    assert warning.startswith("no call of torch.nn.modules.linear:Linear.forward was seen.")
    assert warning.endswith(". The application made 3 copies of it")


def clears(model: Any) -> None:
    model._forward_hooks.clear()


def replaces(model: Any) -> None:
    model._forward_pre_hooks = {}


@pytest.mark.parametrize("take_off", [clears, replaces])
@pytest.mark.usefixtures("looks_always")
def test_hooks_that_were_taken_off_are_told_of(
    take_off: Callable[[Any], None], tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape") as recorder:
        model(X)
        assert looked(recorder)
        assert said() == []
        take_off(model)
        assert looked(recorder)
        (warning,) = said()
        assert warning.startswith("the hooks of the recorder were taken off the module")
    assert len(said()) == 1  # said once


def rebinds(model: Any) -> None:
    model.forward = types.MethodType(model.forward.__func__, model)


def keeps_and_rebinds(model: Any) -> None:
    """What accelerate's prepare() does."""
    model._original_forward = model.forward
    rebinds(model)


def restores(model: Any) -> None:
    del model.forward


@pytest.mark.parametrize("looks", [True, False], ids=["meanwhile", "at the end"])
@pytest.mark.parametrize("replace", [rebinds, keeps_and_rebinds, restores])
@pytest.mark.usefixtures("looks_always")
def test_a_method_that_was_put_in_its_place_is_told_of(
    replace: Callable[[Any], None], looks: bool, tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape", via="method") as recorder:
        model(X)
        replace(model)
        model(X)
        assert not looks or (looked(recorder) and len(said()) == 1)
    assert recorder.stats().kept == 1
    (warning,) = said()
    assert warning.startswith("something put another forward in the place of the recorder's")


class Wrapper:
    def __init__(self, forward: Any) -> None:
        self.inner = [forward]

    def __call__(self, *args: Any) -> Any:
        return self.inner[0](*args)


def by_closure(model: Any) -> None:
    forward = model.forward

    @functools.wraps(forward)
    def wrapped(*args: Any) -> Any:
        return forward(*args)

    model.forward = wrapped


def by_attribute(model: Any) -> None:
    """What accelerate's add_hook_to_module() does."""
    model._old_forward = model.forward

    def new_forward(module: Any, *args: Any) -> Any:
        return module._old_forward(*args)

    model.forward = functools.update_wrapper(
        functools.partial(new_forward, model), model._old_forward
    )


def by_object(model: Any) -> None:
    model.forward = Wrapper(model.forward)


def by_method(model: Any) -> None:
    forward = model.forward
    model.forward = types.MethodType(lambda self, *args: forward(*args), model)


@pytest.mark.parametrize("wrap", [by_closure, by_attribute, by_object, by_method, torch.no_grad()])
def test_a_method_that_others_wrapped_is_in_place(
    wrap: Any, tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    model: Any = Identity()
    with record(model, tmp_path / "t.tape", via="method") as recorder:
        if isinstance(wrap, torch.no_grad):
            model.forward = wrap(model.forward)
        else:
            wrap(model)
        model(X)
    assert recorder.stats().kept == 1
    assert said() == []


def test_a_wrapper_that_others_kept_does_not_come_back(tmp_path: Path) -> None:
    """What accelerate's remove_hook_from_module() does, after the recorder was closed."""
    model: Any = Identity()
    with record(model, tmp_path / "t.tape", via="method") as recorder:
        by_attribute(model)
        model(X)
    assert recorder.stats().kept == 1
    assert torch.equal(model(X), X)
    model.forward = model._old_forward
    assert isinstance(model.forward, types.MethodType)
    assert model.forward.__func__ is Identity.forward


@pytest.mark.usefixtures("looks_always")
def test_detaching_is_no_trouble(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    model = Identity()
    for number, via in enumerate(("hook", "method")):
        with record(model, tmp_path / f"{number}.tape", via=via) as recorder:  # type: ignore[arg-type]
            model(X)
            recorder.detach()
            assert looked(recorder)
            recorder.attach(model)
    assert said() == []


def test_a_model_that_was_never_compiled_is_not_told_of(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    @torch.compile(backend="eager")
    def sampler(logits: torch.Tensor) -> torch.Tensor:
        return logits.softmax(-1).argmax(-1)

    sampler(X)
    other = torch.compile(Two(), backend="eager")
    other(X)  # it contains an Add, and a Linear
    alone, other_two = Add(), Two()
    for number, model in enumerate(
        (alone, torch.nn.Linear(4, 4), torch.nn.Sequential(other_two)[0])
    ):
        recorder = record(model, tmp_path / f"{number}.tape")
        assert recorder.stats().last_error is None
        recorder.detach()
        recorder.close()
    assert not any("compiled before attach()" in line for line in said())


def test_a_part_of_what_a_function_compiled_is_told_of(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    held, closed, passed = {"two": Two()}, Two(), Two()
    functions: list[Any] = [
        lambda x: held["two"](x), lambda x: closed(x), lambda model, x: model(x)
    ]  # fmt: skip
    torch.compile(functions[0], backend="eager")(X)
    torch.compile(functions[1], backend="eager")(X)
    torch.compile(functions[2], backend="eager")(passed, X)
    for number, model in enumerate((held["two"], closed, passed)):
        recorder = record(model.middle, tmp_path / f"{number}.tape")
        assert "compiled before attach()" in (recorder.stats().last_error or "")
        recorder.close()
    assert len(said()) == 6


def test_an_argument_of_what_was_compiled_is_told_of_by_its_way_there(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda model, x: model(x), backend="eager")
    run(Two(), X)
    other = Two()
    for number, (model, told) in enumerate(((other.middle, True), (Add(), False), (other, True))):
        with record(model, tmp_path / f"{number}.tape") as recorder:
            assert ("compiled before attach()" in (recorder.stats().last_error or "")) is told
    with record(other, tmp_path / "t.tape") as recorder:
        run(other, X)  # in the graph of the first one
    assert recorder.stats().seen == 0


def test_a_graph_compiled_ahead_of_time_is_told_of(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    torch._dynamo.reset()
    model = Two()
    compiled: Any = torch.compile(model.forward, fullgraph=True, backend="eager")
    if not hasattr(compiled, "aot_compile"):
        pytest.skip("this torch compiles nothing ahead of time")
    ahead = compiled.aot_compile(((X,), {}))
    for number, via in enumerate(("hook", "method")):
        recorder = record(model.middle, tmp_path / f"{number}.tape", via=via)  # type: ignore[arg-type]
        assert said()[-1].startswith("a graph was compiled ahead of time")
        if via == "hook":  # the guards of this graph refuse a replaced method
            ahead(model, X)
        assert recorder.stats().seen == 0
        recorder.close()
        assert "also ahead of time" in said()[-1]
    count = len(said())
    with record(torch.nn.Linear(4, 4), tmp_path / "2.tape") as recorder:
        assert recorder.stats().last_error is None
    assert len(said()) == count + 1  # it had no calls


def test_nothing_seen_is_told_with_the_usual_causes(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    model = Identity()
    with record(model, tmp_path / "0.tape"):
        model.forward(X)
    assert "calls its forward directly" in said()[0]
    assert 'pass via="method"' in said()[0]
    assert "calls other methods of it (decode, for example) or its parts" in said()[0]
    with record(model, tmp_path / "1.tape", via="method"):
        Identity()(X)
    assert "another object of the class, other methods of it" in said()[1]
    assert 'as in method="decode"' in said()[1]
    with record(model, tmp_path / "2.tape", keep=First(0)):
        model(X)
    Recorder(tmp_path / "3.tape").close()  # nothing was attached
    assert len(said()) == 2


def test_info_says_the_same_of_such_a_tape(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    with record(model, path):
        model.forward(X)
    shown = run("info", "--json", path).out
    with open_tape(path) as tape:
        target, found = tape.target, tape.coverage
    assert target is not None
    told = (target.name, target.via, found.seen, found.kept, found.dropped)
    assert why_empty(*told) == said()[0]
    with told_to("command"):  # an option of Python is no advice there
        assert json.loads(shown)["empty"] == why_empty(*told)
    assert "via=" not in shown


def test_a_process_that_forked_says_nothing(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    model = Identity()
    recorder = record(model, tmp_path / "t.tape")
    in_a_fork(lambda: model(X) is not None)
    recorder.close()
    assert said() == []


@pytest.mark.usefixtures("looks_always")
def test_calls_that_are_all_dropped_are_told_of_while_they_are(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape", max_queue_bytes=1000) as recorder:
        for _ in range(36):
            model(torch.ones(1000))
        assert looked(recorder)
        (warning,) = said()
        assert warning.startswith("every call of tests.recorder.models:Identity.forward was drop")
        assert "queue_full (the tensors of a call do not fit into max_queue_bytes" in warning
        model(torch.ones(1))
    assert recorder.stats().last_error == warning
    assert recorder.stats().kept == 1
    assert sum(text.startswith("every call") for text in said()) == 1


def test_calls_of_a_transform_are_told_of_as_such(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape") as recorder:
        torch.func.vmap(model)(X)
    assert recorder.stats().dropped == {"tracing": 1}
    (warning,) = said()
    assert "or a transform of torch.func (vmap, grad) called the module" in warning


@pytest.mark.integration
@pytest.mark.parametrize(
    ("configure", "lines"),
    [
        ("", ["recording tests.recorder.models:Add.forward to", "no call of"]),
        ("import logging; logging.basicConfig()", ["no call of"]),
        (
            "import logging; logging.basicConfig(level='INFO')",
            ["recording ", "sealed", "no call of"],
        ),
        ("import logging; logging.getLogger('calltape').addHandler(logging.NullHandler())", []),
        ("import logging; logging.getLogger('calltape').setLevel('ERROR')", []),
    ],
)
def test_an_owner_without_logging_sees_what_is_recorded(
    configure: str, lines: list[str], tmp_path: Path
) -> None:
    body = f"""
    {configure}
    sys.stderr = sys.stdout
    import logging
    for handler in logging.getLogger().handlers: handler.stream = sys.stdout
    logging.lastResort = type(logging.lastResort)(logging.WARNING)
    with record(model, sys.argv[1]): pass
    """
    printed = child(body, str(tmp_path / "t.tape")).splitlines()
    assert len(printed) == len(lines), printed
    for line, expected in zip(printed, lines, strict=True):
        assert "calltape, process" in line
        assert expected in line
