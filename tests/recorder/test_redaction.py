"""``redact=``: what may not be told is never written."""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calltape_analyzer import diagnose, merge_tapes, open_tape, private_data
from calltape_analyzer.cli.recordings import policy_text
from calltape_analyzer.editing.recorded_pseudonyms import RecordedPseudonyms
from calltape_recorder import FlightRecorder, Novelty, Recorder, TapeError, When, record
from calltape_schema.packing import pack
from tests.unpacked import readable


class Model(torch.nn.Module):
    def forward(self, ids: Any, prompt: Any = None, mode: Any = None, n: int = 0) -> Any:
        if n < 0:
            raise ValueError(f"cannot read {prompt}")
        return {"ids": ids + 1, "echo": prompt}


IDS = torch.tensor([[4021, 977, 31337, 1234]])


def written(path: Path, **options: Any) -> bytes:
    model = Model()
    with record(model, path, **options):
        for mode in ("mean", "sum", "mean"):
            model(IDS, "secret prompt", mode=mode, n=3)
        with pytest.raises(ValueError, match="secret"):
            model(IDS, "secret prompt", n=-1)
    return readable(path.read_bytes())


def test_nothing_private_is_written(tmp_path: Path) -> None:
    data = written(
        tmp_path / "a.tape", redact=True, write_ahead=True, keep=When(lambda args, kwargs: True)
    )
    assert b"secret" not in data
    assert b"When" not in data
    assert IDS.numpy().tobytes() not in data
    assert (IDS + 1).numpy().tobytes() not in data
    with open_tape(tmp_path / "a.tape") as tape:
        prompts = {call.inputs.args[1] for call in tape}
        modes = [call.inputs.kwargs.get("mode") for call in tape]
        assert len(prompts) == 1, "equal texts stay equal"
        assert modes[0] == modes[2] != modes[1]
        assert [call.inputs.kwargs["n"] for call in tape] == [3, 3, 3, -1]
        assert tape.calls[3].error is not None
        assert tape.calls[3].error.message == "(25 characters, not kept)"
        assert {call.thread for call in tape}.isdisjoint({0, threading.get_ident()})
        assert tape.calls[0].outputs["echo"] != "secret prompt"


def test_a_message_that_looks_like_a_length_is_replaced(tmp_path: Path) -> None:
    class Quoting(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise ValueError("(4111 characters, not kept)")

    model = Quoting()
    with record(model, tmp_path / "a.tape", redact=True), pytest.raises(ValueError, match="4111"):
        model(IDS)
    assert b"4111" not in readable((tmp_path / "a.tape").read_bytes())


def test_paths_choose(tmp_path: Path) -> None:
    redact = {"keep": ["mode", "ids"], "shapes_only": "prompt"}
    data = written(tmp_path / "a.tape", redact=redact)
    assert b"secret" not in data
    with open_tape(tmp_path / "a.tape") as tape:
        call = tape.calls[0]
        assert call.inputs.kwargs["mode"] == "mean"
        assert torch.equal(call.inputs.args[0], IDS)
        assert "13 characters" in repr(call.inputs.args[1])


class Numbers(torch.nn.Module):
    def forward(self, x: Any, *numbers: Any, **others: Any) -> Any:
        return x


LONG: list[Any] = [
    987_654_321, -4_111_111_111_111_111, 2**70 + 12_345, 1_700_000_000, 52.520_008, -1234.5678,
]  # fmt: skip
SHORT: list[Any] = [0, -100, 50_257, 2**20, -(2**20), 0.7, 1e-05, 1234.0, True, float("inf")]


@pytest.mark.parametrize("redact", [True, {"shapes_only": "*"}, {"keep": "x"}])
def test_a_long_number_is_not_written(tmp_path: Path, redact: Any) -> None:
    model = Numbers()
    with record(model, tmp_path / "a.tape", redact=redact, write_ahead=True, keep=Novelty()):
        for _ in range(3):
            model(IDS, *LONG[:4], phone=LONG[0], at={"place": LONG[4]})
            model(IDS, *LONG[4:], c=complex(LONG[4], 1), few=LONG[:2], numpy=np.int64(LONG[0]))
    data = readable((tmp_path / "a.tape").read_bytes())
    for number in LONG:
        assert pack(number) not in data, number
        assert repr(number).encode() not in data
        assert type(number) is int or struct.pack("<d", number) not in data
    with open_tape(tmp_path / "a.tape") as tape:
        call = tape.calls[0].inputs
        others, named = [int(one) for one in call.args[1:]], call.kwargs["phone"]
        assert others[0] == named, "equal numbers stay equal"
        assert [one.bit_length() for one in others] == [one.bit_length() for one in LONG[:4]]
        assert [one < 0 for one in others] == [one < 0 for one in LONG[:4]]
        assert 0 <= call.kwargs["at"]["place"] < 1


def test_short_numbers_are_written(tmp_path: Path) -> None:
    model = Numbers()
    with record(model, tmp_path / "a.tape", redact=True):
        model(IDS, *SHORT[:4], **{f"n{i}": one for i, one in enumerate(SHORT[4:])})
    with open_tape(tmp_path / "a.tape") as tape:
        found = tape.calls[0].inputs
        assert [*found.args[1:], *found.kwargs.values()] == SHORT


def test_what_the_recorder_replaced_is_no_finding(tmp_path: Path) -> None:
    """It is said to be redacted, but for what was kept; as are tapes that are not of a recorder."""
    for name, redact in (("all", True), ("part", {"keep": "prompt"}), ("none", False)):
        written(tmp_path / f"{name}.tape", redact=redact)
    with open_tape(tmp_path / "all.tape") as tape:
        found = private_data(tape)
        assert found.pseudonyms
        assert {one.kind for one in found.findings} == {"time", "policy", "module"}
        assert "texts" not in str(diagnose(tape))
        assert policy_text(tape.manifest.policy).startswith("redacted by the recorder, outputs")
    with open_tape(tmp_path / "part.tape") as tape:
        places = {one.place for one in private_data(tape).findings if one.kind == "text"}
        assert places == {"prompt"}
        assert "texts" in str(diagnose(tape))
        assert "redacted by the recorder, but for prompt" in policy_text(tape.manifest.policy)
    with open_tape([tmp_path / "all.tape", tmp_path / "none.tape"]) as both:
        merge_tapes(both, tmp_path / "merged.tape")
    with open_tape(tmp_path / "merged.tape") as tape:
        found = private_data(tape)
        assert not found.pseudonyms
        assert "text" in {one.kind for one in found.findings}


def test_a_file_that_is_not_redacted_beside_one_that_is(tmp_path: Path) -> None:
    """A recorder writes all its files in one way. Whoever puts others beside them hides nothing."""
    written(tmp_path / "a.tape", redact=True)
    with open_tape(tmp_path / "a.tape") as tape:
        one = tape.manifest
        policy = one.policy.model_copy(update={"redacts": False})
        other = one.model_copy(update={"policy": policy})
    assert RecordedPseudonyms([one]).at(one.tape, ["prompt"])
    for manifests in ([one, other], [other, one]):
        found = RecordedPseudonyms(manifests)
        assert (found.some, found.every, found.at(one.tape, ["prompt"])) == (False, False, False)


def test_paths_choose_for_long_numbers(tmp_path: Path) -> None:
    model, number = Model(), LONG[0]
    ways: dict[str, Any] = {"keep": {"keep": ["n"]}, "none": {"shapes_only": "n"}}
    for name, redact in ways.items():
        with record(model, tmp_path / f"{name}.tape", redact=redact):
            model(IDS, n=number)
    assert pack(number) in readable((tmp_path / "keep.tape").read_bytes())
    with open_tape(tmp_path / "none.tape") as tape:
        assert not isinstance(tape.calls[0].inputs.kwargs["n"], int)


def test_the_reason_of_a_dump_is_left_out(tmp_path: Path) -> None:
    model = Model()
    options: dict[str, Any] = {"redact": True, "flight_recorder": FlightRecorder(calls=2)}
    with record(
        model, tmp_path / "a.tape", keep=When(lambda args, kwargs: False), **options
    ) as recorder:
        model(IDS, "secret prompt")
        recorder.dump("secret of bob")
    assert b"secret" not in readable((tmp_path / "a.tape").read_bytes())
    with open_tape(tmp_path / "a.tape") as tape:
        assert tape.dumps[0].reason == "(13 characters, not kept)"


@pytest.mark.parametrize(
    "redact", ["all", {"noise": ["x"]}, {"keep": [3]}, {"keep": ""}, 1, {"keep": ["x"] * 1001}]
)
def test_misuse(tmp_path: Path, redact: Any) -> None:
    with pytest.raises(TapeError, match="redact"):
        Recorder(tmp_path / "a.tape", redact=redact)


def test_one_path_in_two_ways(tmp_path: Path) -> None:
    redact: Any = {"keep": ["prompt"], "shapes_only": ["mode", "prompt"]}
    with pytest.raises(TapeError, match="'prompt' under 'keep' and under 'shapes_only'") as found:
        Recorder(tmp_path / "a.tape", redact=redact)
    assert found.value.kind == "usage"
    Recorder(tmp_path / "a.tape", redact={"keep": ["mode", "mode"]}).close()


def test_two_ways_to_say_it_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match="two ways"):
        Recorder(tmp_path / "a.tape", redact=True, values="none")
