"""The host does not notice: results, exceptions, signatures, copies, state of torch."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import io
import pickle
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_recorder import Recorder, TapeError, record
from tests.recorder.models import Add, Echo, Identity, Nested, Raises, Two
from tests.recorder.reading import read

Via = Literal["hook", "method"]
both = pytest.mark.parametrize("via", ["hook", "method"])


@both
def test_results_are_the_model_s_own_objects(tmp_path: Path, via: Via) -> None:
    result = {"a": torch.ones(2)}
    model = Echo(result)
    with record(model, tmp_path / "t.tape", via=via):
        assert model(1) is result


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@both
@pytest.mark.parametrize(
    "error",
    [ValueError("no"), StopIteration(3), KeyboardInterrupt(), SystemExit(2), GeneratorExit()],
    ids=lambda e: type(e).__name__,
)
def test_exceptions_are_the_model_s_own(tmp_path: Path, via: Via, error: BaseException) -> None:
    model, path = Raises(), tmp_path / "t.tape"
    plain = _raised(model, error)
    with record(model, path, via=via) as recorder:
        recorded = _raised(model, error)
        if not isinstance(error, Exception):
            model(None)  # the next call finds out about one that hooks do not see
        recorder.flush()
        assert recorder.stats().queued == 0
    assert recorded is error is plain
    assert recorded.__context__ is None
    call = read(path).calls[0].record
    assert call.call == 0
    assert call.error is not None
    assert call.outputs is None
    if via == "method" or isinstance(error, Exception):
        assert (call.error.type, call.error.message) == (
            f"builtins:{type(error).__name__}", str(error),
        )  # fmt: skip
    else:
        assert call.error.type == "builtins:BaseException"
    assert read(path).trailer is not None


def _raised(model: Any, error: BaseException) -> BaseException:
    try:
        model(error)
    except BaseException as caught:
        frames = [frame.name for frame in traceback.extract_tb(caught.__traceback__)]
        assert frames[-1] == "forward"
        return caught
    raise AssertionError


def test_an_interrupt_that_leaves_the_with_statement_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    model = Raises()
    with pytest.raises(KeyboardInterrupt, match="now"), record(model, path):
        model(KeyboardInterrupt("now"))
    call = read(path).calls[0].record
    assert call.error is not None
    assert (call.error.type, call.error.message) == ("builtins:KeyboardInterrupt", "now")


def test_an_exception_being_handled_is_not_the_call_s(tmp_path: Path) -> None:
    model, path = Raises(), tmp_path / "t.tape"
    with record(model, path):
        try:
            model(ValueError("first"))
        except ValueError:
            model(None)
    assert [call.record.error is None for call in read(path).calls] == [False, True]


def test_a_message_that_cannot_be_had(tmp_path: Path) -> None:
    model, path = Raises(), tmp_path / "t.tape"
    with record(model, path), pytest.raises(UnprintableError):
        model(UnprintableError())
    error = read(path).calls[0].record.error
    assert error is not None
    assert error.message == "(its text raised RuntimeError)"


@both
def test_signature_and_names(tmp_path: Path, via: Via) -> None:
    model = Add()
    before = inspect.signature(model.forward)
    with record(model, tmp_path / "t.tape", via=via):
        assert inspect.signature(model.forward) == before
        assert inspect.signature(model) == inspect.signature(Add())
        assert model.forward.__name__ == "forward"
        assert model.forward.__self__ is model
        assert model.forward.__func__ is Add.forward
        assert inspect.getsource(model.forward) == inspect.getsource(Add.forward)
    assert "forward" not in vars(model)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@both
@pytest.mark.parametrize("how", ["deepcopy", "copy", "pickle", "torch.save"])
def test_copies_work_and_are_not_recorded(tmp_path: Path, via: Via, how: str) -> None:
    model, path, x = Two(), tmp_path / "t.tape", torch.ones(2, 4)
    expected = model(x)
    with record(model, path, via=via) as recorder:
        clone = _copied(model, how)
        assert torch.equal(clone(x), expected)
        assert torch.equal(clone.forward(x), expected)
        assert torch.equal(_copied(clone, how)(x), expected)
        if how != "copy":  # a shallow copy shares the hooks: it is the same model
            assert recorder.stats().seen == 0
        model(x)
        del model.before  # the copy has its own parts
        if how != "copy":
            assert torch.equal(clone(x), expected)


def _copied(model: torch.nn.Module, how: str) -> torch.nn.Module:
    if how == "deepcopy":
        return copy.deepcopy(model)
    if how == "copy":
        return copy.copy(model)
    if how == "pickle":
        return pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: torch.nn.Module = torch.load(file, weights_only=False)
    return loaded


@both
def test_a_saved_model_loads_without_calltape(tmp_path: Path, via: Via) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with record(model, tmp_path / "t.tape", via=via):
        data = pickle.dumps(model)
    assert b"calltape" not in data


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


def test_any_method_of_any_object(tmp_path: Path) -> None:
    class Server:
        def generate(self, prompt: str, *, n: int = 1) -> list[str]:
            return [prompt] * n

    server = Server()
    with record(server, tmp_path / "t.tape", method="generate"):
        assert server.generate("a", n=2) == ["a", "a"]
    tape = read(tmp_path / "t.tape")
    assert tape.manifest.target is not None
    assert (tape.manifest.target.method, tape.manifest.target.via) == ("generate", "method")
    assert [node.kind for node in tape.calls[0].outputs.children] == ["str", "str"]
    assert vars(server) == {}


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
    with pytest.raises(TapeError) as caught:
        record(target, path, **options)
    assert caught.value.kind == "usage"
    assert "documentation" not in str(caught.value)
    assert not path.exists()
    record(Add(), path).close()  # the corrected call is not refused


def test_a_failed_attach_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    path.write_text("precious")
    with pytest.raises(TapeError):
        record(Add(), path, overwrite=True, method="missing")
    assert path.read_text() == "precious"


def test_a_path_that_leads_elsewhere_by_now_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "t.tape"
    recorder = Recorder(path)
    path.unlink()
    path.write_text("precious")
    recorder.discard()
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "options",
    [
        {"values": "some"}, {"values": None}, {"via": "air"}, {"max_calls": -1},
        {"max_calls": 1.5}, {"max_calls": "3"}, {"max_calls": True}, {"max_calls": 2**64},
        {"max_queue_bytes": -1}, {"max_queue_bytes": 1e9}, {"max_queue_bytes": None},
        {"outputs": None}, {"outputs": "yes"}, {"overwrite": 1}, {"method": None}, {"method": ""},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("how", [Recorder, functools.partial(record, Add())])
def test_options_that_do_not_exist(tmp_path: Path, options: dict[str, Any], how: Any) -> None:
    with pytest.raises(TapeError) as caught:
        how(tmp_path / "t.tape", **options)
    assert caught.value.kind == "usage"
    assert "documentation" not in str(caught.value)
    assert not (tmp_path / "t.tape").exists()


@pytest.mark.parametrize("path", ["a\0b", None, 3.5])
def test_paths_that_are_none(path: Any) -> None:
    for how in (Recorder, functools.partial(record, Add())):
        with pytest.raises(TapeError) as caught:
            how(path)
        assert caught.value.kind == "usage"


@both
@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_scripted_modules(tmp_path: Path, via: Via, how: str) -> None:
    x = torch.ones(2)
    model: Any = torch.jit.script(Add()) if how == "script" else torch.jit.trace(Add(), (x, x))
    with record(model, tmp_path / "t.tape", via=via):
        assert torch.equal(model(x, x), x + x)
    model(x, x)
    (call,) = read(tmp_path / "t.tape").calls
    assert torch.equal(call.output(0), x + x)
    assert "calltape" not in type(model.forward).__module__


# --- calls that end without a hook -------------------------------------------------------------


class CancelledError(BaseException):
    """What hooks are not told of."""


def _cancelled(model: Any, size: int) -> weakref.ref[torch.Tensor]:
    """A call in a thread of its own that ends by a BaseException; the input it had."""
    inputs: list[weakref.ref[torch.Tensor]] = []

    def request() -> None:
        x = torch.zeros(size)
        inputs.append(weakref.ref(x))
        with contextlib.suppress(CancelledError):
            model(x)

    thread = threading.Thread(target=request)
    thread.start()
    thread.join()
    return inputs[0]


class Cancels(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() > 1:
            raise CancelledError
        return x


def _until(condition: Any) -> bool:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


def test_cancelled_calls_of_ended_threads_hold_nothing_for_long(tmp_path: Path) -> None:
    model = Cancels()
    with record(model, tmp_path / "t.tape") as recorder:
        inputs = [_cancelled(model, 1000) for _ in range(5)]
        # Nobody calls the model again, flushes or closes.
        assert _until(lambda: recorder.stats().kept == 5)
        gc.collect()
        assert all(value() is None for value in inputs)
        pair: Any = recorder._attachment
        assert not pair.under_way
    types = [call.record.error.type for call in read(tmp_path / "t.tape").calls]  # type: ignore[union-attr]
    assert types == ["builtins:BaseException"] * 5


def test_cancelled_calls_do_not_fill_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calltape_recorder.writer._SETTLE_SECONDS", 1000)
    model = Cancels()
    with record(model, tmp_path / "t.tape", max_queue_bytes=10_000) as recorder:
        hold, keep = threading.Event(), []
        for _ in range(2):  # threads that live on, so that no other takes their number

            def request() -> None:
                with contextlib.suppress(CancelledError):
                    model(torch.zeros(1200))
                keep.append(1)
                hold.wait()

            threading.Thread(target=request).start()
        assert _until(lambda: len(keep) == 2)
        assert recorder.stats().queued == 2
        _cancelled(model, 1200)  # does not fit, and says so
        assert recorder.stats().dropped == {"queue_full": 1}
        assert _until(lambda: recorder.stats().queued_bytes == 0)
        hold.set()
    assert recorder.stats().kept == 2


def test_threads_that_take_each_other_s_number(tmp_path: Path) -> None:
    model = Cancels()
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(200):
            thread = threading.Thread(target=model, args=(torch.zeros(1),))
            thread.start()
            thread.join()
        pair: Any = recorder._attachment
        assert not pair.under_way
    assert recorder.stats().kept == 200


def test_looking_for_ended_calls_takes_none_that_runs(tmp_path: Path) -> None:
    class Mixed(torch.nn.Module):
        def forward(self, depth: int) -> int:
            if depth == 0:
                raise CancelledError
            with contextlib.suppress(CancelledError):
                self(depth - 1)
            return depth

    model, done = Mixed(), threading.Event()
    recorder = record(model, tmp_path / "t.tape")
    pair: Any = recorder._attachment

    def look() -> None:
        while not done.is_set():
            pair.settle(None)

    def work() -> None:
        for _ in range(150):
            model(3)

    looking = [threading.Thread(target=look) for _ in range(2)]
    working = [threading.Thread(target=work) for _ in range(3)]
    for thread in looking + working:
        thread.start()
    for thread in working:
        thread.join()
    done.set()
    for thread in looking:
        thread.join()
    recorder.close()
    calls = read(tmp_path / "t.tape").calls
    assert sorted(call.record.call for call in calls) == list(range(3 * 150 * 4))
    for call in calls:
        assert (call.record.error is not None) == (call.scalar(call.args[0]) == 0)


@both
def test_inputs_are_recorded_as_they_were_before_the_call(tmp_path: Path, via: Via) -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
            cache.append(x.clone())
            return x.mul_(2)

    model, path, x = InPlace(), tmp_path / "t.tape", torch.ones(3)
    big = torch.ones(50_000)
    cache: list[torch.Tensor] = []
    with record(model, path, via=via):
        for _ in range(3):
            model(x, cache)
            x.add_(1)
            model(big, [])
            big.zero_()
    calls = read(path).calls
    assert [call.input(0)[0].item() for call in calls[::2]] == [1, 3, 7]
    assert [call.output(0)[0].item() for call in calls[::2]] == [2, 6, 14]
    assert [len(call.args[1].children) for call in calls[::2]] == [0, 1, 2]
    assert [call.input(0).sum().item() for call in calls[1::2]] == [50_000, 0, 0]
    assert [call.output(0).sum().item() for call in calls[1::2]] == [100_000, 0, 0]


@both
def test_nothing_of_torch_s_state_changes(tmp_path: Path, via: Via) -> None:
    model = Identity()
    x = torch.randn(4, 4, requires_grad=True)
    y = (x * 2).t()
    generator = torch.get_rng_state()
    versions = (x._version, y._version)
    with record(model, tmp_path / "t.tape", via=via):
        out = model([x, y, y.expand(3, 4, 4)])
        with torch.inference_mode():
            model(torch.ones(2))
            assert torch.is_inference_mode_enabled()
        with torch.no_grad():
            model(x)
            assert not torch.is_grad_enabled()
    assert (x._version, y._version) == versions
    assert torch.equal(generator, torch.get_rng_state())
    assert out[1].grad_fn is y.grad_fn
    out[1].sum().backward()
    assert torch.equal(x.grad, torch.full((4, 4), 2.0))  # type: ignore[arg-type]


def test_backward_through_a_recorded_model_is_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = Two()
    recorded = copy.deepcopy(plain)
    x = torch.randn(3, 4)
    plain(x).sum().backward()
    with record(recorded, tmp_path / "t.tape"), record(recorded.middle, tmp_path / "u.tape"):
        recorded(x).sum().backward()
    for p, q in zip(plain.parameters(), recorded.parameters(), strict=False):
        assert torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


class Watching(TorchDispatchMode):
    """Sees every operator of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class WatchingFunctions(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@both
@pytest.mark.parametrize("mode", [Watching, WatchingFunctions])
def test_modes_see_the_host_only(tmp_path: Path, via: Via, mode: type[Any]) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    x = torch.randn(3, 4).t()
    z = torch.randn(2, dtype=torch.complex64).conj()
    with record(model, path, via=via), mode() as watching:
        model([x, z, x.expand(2, 4, 3)])
        seen = list(watching.seen)
    with mode() as plain:
        Identity()([x, z, x.expand(2, 4, 3)])
    assert seen == plain.seen
    call = read(path).calls[0]
    assert torch.equal(call.input(0), x)
    assert torch.equal(call.input(1), z)


def test_stand_ins_for_tensors_are_counted_and_not_recorded(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "t.tape") as recorder:
        with FakeTensorMode() as mode:
            model(mode.from_tensor(x), mode.from_tensor(x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.jit.trace(model, (x, x), check_trace=False)
        make_fx(model)(x, x)
        torch.func.vmap(model)(x, x)
        torch.func.grad(lambda a: model(a, a).sum())(x)
        traced = recorder.stats()
        assert traced.dropped == {"tracing": traced.seen}
        assert traced.seen >= 5
        model(x, x)
    assert recorder.stats().kept == 1


@both
@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_recorded_model(tmp_path: Path, via: Via, strict: bool) -> None:
    model, x = Two(), torch.ones(2, 4)
    expected = torch.export.export(model, (x,), strict=strict).graph_module.code
    with record(model, tmp_path / "t.tape", via=via) as recorder:
        code = torch.export.export(model, (x,), strict=strict).graph_module.code
        assert code == expected
        assert recorder.stats().kept == 0
        assert set(recorder.stats().dropped) <= {"tracing"}


def test_nested_calls_of_one_module_are_paired(tmp_path: Path) -> None:
    model, path = Nested(), tmp_path / "t.tape"
    with record(model, path):
        model(torch.zeros(1), 3)
    by_number = sorted(read(path).calls, key=lambda call: call.record.call)
    assert [call.input(0).item() for call in by_number] == [0, 1, 2, 3]
    assert [call.output(0).item() for call in by_number] == [6, 6, 6, 6]
    durations = [call.record.duration_ns or 0 for call in by_number]
    assert durations == sorted(durations, reverse=True)


def test_an_interrupted_inner_call_does_not_take_the_outer_one_s_place(tmp_path: Path) -> None:
    class Retry(torch.nn.Module):
        def forward(self, x: torch.Tensor, again: bool) -> torch.Tensor:
            if again:
                raise KeyboardInterrupt
            with contextlib.suppress(KeyboardInterrupt):
                self(x + 10, True)
            return x + 1

    model, path = Retry(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        for value in (1.0, 2.0):
            assert model(torch.tensor([value]), False).item() == value + 1
        assert recorder.flush()
        assert recorder.stats().queued == 0
    calls = {call.record.call: call for call in read(path).calls}
    assert [calls[n].input(0).item() for n in range(4)] == [1, 11, 2, 12]
    assert [calls[n].record.error is None for n in range(4)] == [True, False, True, False]
    assert calls[2].output(0).item() == 3


def test_hooks_of_others_that_change_arguments_and_results(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        model.register_forward_pre_hook(lambda m, a, k: (a, dict(k)), with_kwargs=True)
        model.register_forward_hook(lambda m, a, out: out * 10)
        assert model(torch.ones(1), y=torch.ones(1)).item() == 20
    assert recorder.stats().kept == 1
    assert read(path).calls[0].output(0).item() == 2


def test_coroutines_and_threads_interleave(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"

    async def one(n: int) -> None:
        for step in range(5):
            await asyncio.sleep(0)
            value = torch.tensor([float(n * 10 + step)])
            assert (await asyncio.to_thread(model, value, value)).item() == value.item() * 2

    async def all_of_them() -> None:
        await asyncio.gather(*(one(n) for n in range(8)))

    with record(model, path):
        asyncio.run(all_of_them())
    calls = read(path).calls
    assert len(calls) == 40
    assert all(call.output(0).item() == 2 * call.input(0).item() for call in calls)


def test_trouble_in_the_recorder_is_counted_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("broken")

    model = Add()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr("calltape_recorder.tap.see_as", broken)
        for _ in range(3):
            assert model(torch.ones(1), torch.ones(1)).item() == 2
        monkeypatch.undo()
        monkeypatch.setattr("calltape_recorder.tap.capture_output", broken)
        model(torch.ones(1), torch.ones(1))
        monkeypatch.undo()
        recorder.flush()
        monkeypatch.setattr("calltape_recorder.encoding.leaf_document", broken)
        model(torch.ones(7), torch.ones(7))
        recorder.flush()
    assert recorder.stats().dropped == {"internal": 4}
    calls = read(tmp_path / "t.tape").calls
    assert [call.record.outputs_missing for call in calls] == ["internal"]
    assert len(caplog.records) == 2


def test_an_interrupt_within_the_recorder_passes_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    model = Add()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr("calltape_recorder.tap.see_as", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1), torch.ones(1))
        monkeypatch.undo()
        assert model(torch.ones(1), torch.ones(1)).item() == 2
    assert recorder.stats().dropped == {"interrupted": 1}
    assert recorder.stats().kept == 1


def test_recording_two_modules_of_one_model_to_two_tapes(tmp_path: Path) -> None:
    model = Two()
    with record(model, tmp_path / "o.tape"), record(model.middle, tmp_path / "i.tape"):
        model(torch.ones(2, 4))
    for name in ("o", "i"):
        assert len(read(tmp_path / f"{name}.tape").calls) == 1


def test_duration_thread_and_time(tmp_path: Path) -> None:
    import time

    class Slow(torch.nn.Module):
        def forward(self) -> None:
            time.sleep(0.02)

    model, path = Slow(), tmp_path / "t.tape"
    begun = time.time_ns()
    with record(model, path):
        model()
    call = read(path).calls[0].record
    assert 20_000_000 <= (call.duration_ns or 0) < 2_000_000_000
    assert begun <= call.time_ns <= time.time_ns()
    assert call.thread == threading.get_ident()


def test_importing_the_recorder_imports_no_compiler_and_no_library_of_the_host() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import calltape_recorder;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "assert 'torch._dynamo' not in sys.modules or 'torch._dynamo' in before;"
        "print(sorted(new & {'transformers', 'onnx', 'numpy', 'pandas', 'sympy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
