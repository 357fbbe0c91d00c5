"""Tapes that a unit test makes up, and the assertion without pytest's help."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import TapeError, Tolerances, UsageError, open_tape, replay
from calltape_analyzer.testing import assert_replays, call, write_tape
from calltape_recorder import record


class Doubling(torch.nn.Module):
    def forward(self, x, mask=None, *, scale=1.0):
        if x.shape[0] == 13:
            raise ValueError("13 is unlucky")
        return {"y": x * 2 * scale if mask is None else x * mask, "n": x.shape[0]}


def test_a_made_tape_reads_like_a_recorded_one(tmp_path: Path) -> None:
    model = Doubling()
    x, mask = torch.randn(4, 3), torch.ones(4, 3)
    with record(model, tmp_path / "recorded.tape"):
        model(x)
        model(x, mask, scale=2.0)
        with pytest.raises(ValueError, match="13"):
            model(torch.ones(13, 3))
    calls = [
        call(x).returns(model(x)).takes(0.5),
        call(x, mask, scale=2.0).returns(model(x, mask, scale=2.0)),
        call(torch.ones(13, 3)).raises(ValueError("13 is unlucky")),
    ]
    path = write_tape(tmp_path / "made.tape", calls, model)
    with open_tape(path) as tape, open_tape(tmp_path / "recorded.tape") as recorded:
        assert tape.verify() == []
        assert tape.signature == recorded.signature
        assert tape.target.type == recorded.target.type
        for one, other in zip(tape.calls, recorded.calls, strict=True):
            assert one.record.inputs.structure == other.record.inputs.structure
            assert one.record.error == other.record.error
            if one.record.outputs is not None:
                assert one.record.outputs.structure == other.record.outputs.structure
        ours, theirs = ([v.infer_dynamic_shapes() for v in t.variants()] for t in (tape, recorded))
        assert str(ours) == str(theirs)
        assert tape.calls[0].duration == 0.5
        assert replay(tape, model).reproduced == 3


def test_tensors_lie_in_memory_as_recorded_ones(tmp_path: Path) -> None:
    class Joining(torch.nn.Module):
        def forward(self, *parts):
            return torch.cat([part.flatten() for part in parts])

    x, model = torch.arange(6.0), Joining()
    parts = x[0:4], x[2:6], torch.ones(2, 3).T, torch.ones(1, 2).expand(3, 2)
    with record(model, tmp_path / "recorded.tape"):
        model(*parts)
    path = write_tape(tmp_path / "made.tape", [call(*parts)], model)
    with open_tape(path) as tape, open_tape(tmp_path / "recorded.tape") as recorded:
        assert tape[0].record.inputs.facts() == recorded[0].record.inputs.facts()
        one, other, *_ = tape[0].inputs.args
        other[0] = 9.0
        assert one.tolist() == [0.0, 1.0, 9.0, 3.0]


def test_a_made_tape_has_what_it_is_given(tmp_path: Path) -> None:
    x = torch.ones(2)
    calls = [call(x), call(x).returns(None), call(a=(x, x), b="text").returns([x, 3])]
    with open_tape(write_tape(tmp_path / "a.tape", calls)) as tape:
        assert tape.calls[0].record.outputs is None
        assert tape.calls[1].record.outputs is not None
        (a, b) = tape.calls[2].inputs.kwargs.values()
        assert a[0] is a[1]  # one tensor at two places
        assert b == "text"
        assert tape.target is None
    with open_tape(write_tape(tmp_path / "b.tape", calls, values="none")) as tape:
        assert tape.calls[0].inputs.args[0].device.type == "meta"


def test_a_tape_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    write_tape(tmp_path / "a.tape", [])
    with pytest.raises(TapeError, match="there already"):
        write_tape(tmp_path / "a.tape", [])
    with pytest.raises(UsageError, match="a Tensor is not a call"):
        write_tape(tmp_path / "b.tape", [torch.ones(2)])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="no method 'encode'"):
        write_tape(tmp_path / "b.tape", [], Doubling(), method="encode")
    assert not (tmp_path / "b.tape").exists()


def test_tapes_of_a_function_and_a_method_replay(tmp_path: Path) -> None:
    def double(x: torch.Tensor, times: int = 2) -> torch.Tensor:
        return x * times

    x = torch.ones(2)
    assert_replays(write_tape(tmp_path / "f.tape", [call(x).returns(x * 2)], double), double)


def test_the_assertion_says_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    x = torch.arange(6.0).reshape(2, 3)
    write_tape("a b.tape", [call(x).returns({"y": x, "n": 2}), call(x).returns({"y": x, "n": 3})])

    def wrong(x):
        y = x.clone()
        y[1, 0] = float("nan")
        return {"y": y, "n": 2}

    with pytest.raises(AssertionError) as caught:
        assert_replays("a b.tape", wrong)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("call 0 of a b.tape: outputs.y: 1 of 6 elements differ")
    assert lines[1] == "  outputs.y[1, 0]  recorded 3  got nan"
    assert lines[2].startswith("call 1 of a b.tape: outputs.y: 1 of 6")
    assert "  outputs.n is 2 instead of 3" in lines
    assert lines[-2:] == [
        "to see it again: calltape replay 'a b.tape' --calls 0 --model PACKAGE.MODULE:FACTORY",
        "to see the call: calltape show 'a b.tape' 0",
    ]


def test_options_are_those_of_replay(tmp_path: Path) -> None:
    x = torch.ones(2)
    path = write_tape(tmp_path / "a.tape", [call(x).returns(x)])
    assert_replays(path, lambda x: x + 0.5, tolerances=Tolerances(atol=1.0))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_replays(path, lambda x: x + 0.5)
    with pytest.raises(AssertionError, match="in the fastest of 5 runs"):
        assert_replays(path, lambda x: x + 0, slower_than=1e-9)
    silent = write_tape(tmp_path / "b.tape", [call(x)])
    assert_replays(silent, lambda x: x, expect="success")
    with pytest.raises(AssertionError, match=r"the tape cannot be replayed: .*no outputs"):
        assert_replays(silent, lambda x: x)


def test_a_bad_tape_is_a_failure_in_words(tmp_path: Path) -> None:
    (tmp_path / "a.tape").write_text("no tape")
    for name in ("a.tape", "missing.tape"):
        with pytest.raises(AssertionError, match="the tape cannot be read"):
            assert_replays(tmp_path / name, Doubling())
    with pytest.raises(AssertionError, match="0 of 0 recorded calls"):
        assert_replays(write_tape(tmp_path / "b.tape", []), Doubling())


def test_text_of_a_tape_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    x = torch.ones(2)
    path = write_tape(tmp_path / "a.tape", [call(x).returns({"\x1b[2J": x, "t": "\x1b[31m"})])
    with pytest.raises(AssertionError) as caught:
        assert_replays(path, lambda x: {"\x1b[2J": x + 1, "t": ""})
    assert all(line.isprintable() for line in str(caught.value).splitlines())


@pytest.mark.integration
def test_many_failures_are_few_lines(tmp_path: Path) -> None:
    x = torch.ones(100)
    path = write_tape(tmp_path / "a.tape", [call(x).returns([x] * 50)] * 200)
    with pytest.raises(AssertionError) as caught:
        assert_replays(path, lambda x: [x + 1] * 50)
    assert len(str(caught.value)) < 5000
    assert "197 more calls fail" in str(caught.value)
