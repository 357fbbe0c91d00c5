"""Redacted tapes: nothing private is in their bytes, and the analysis says the same of them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from calltape_analyzer import Call, TapeError, UsageError, open_tape, redact, replay
from calltape_schema.end import Coverage
from calltape_schema.storage import BytesSink
from calltape_schema.writer import TapeWriter
from tests.analyzer.redacting.answers import assert_same
from tests.analyzer.redacting.leaks import leaked
from tests.analyzer.redacting.random_calls import CALLS, Model, arguments_of, written
from tests.analyzer.tapes import Recorded, new_call, reader_of, refer, write_tape
from tests.fixture_files import FIXTURES, WITH_CALLS


def is_sound(call: Call) -> bool:
    with contextlib.suppress(TapeError):
        call.check()
        return True
    return False


@pytest.mark.parametrize("source", WITH_CALLS, ids=lambda path: path.stem)
def test_a_redacted_golden_tape_leaks_nothing(source: Path, tmp_path: Path) -> None:
    result = tmp_path / "redacted.tape"
    with open_tape(source) as tape:
        report = redact(tape, result)
        assert report.calls == sum(map(is_sound, tape.calls))
    with open_tape(result, verify=True) as tape:
        assert tape.damage == []
        assert tape.sealed
        assert tape.manifests[0].producer.host is None
        assert tape.manifests[0].history[-1].verb == "redact"  # type: ignore[index]
    # The names in the format and in the tests' own code are no data.
    data = {"value", "plain", "first", "second", "tensor", "inputs"}
    assert [one for one in leaked(source, result, least=6) if one not in data] == []


@pytest.mark.integration
@pytest.mark.parametrize("way", ["keep", "shapes_only"])
def test_golden_tapes_are_redacted_with_each_option(way: str, tmp_path: Path) -> None:
    """Also of dtypes that torch cannot compute with."""
    for source in WITH_CALLS:
        options: dict[str, Any] = {way: "*"}
        with open_tape(source) as tape:
            redact(tape, tmp_path / source.name, **options)


@settings(max_examples=15)
@given(CALLS)
def test_a_redacted_random_tape_leaks_nothing_and_answers_the_same(
    tmp_path_factory: pytest.TempPathFactory, given_calls: Any
) -> None:
    folder = tmp_path_factory.mktemp("random")
    source = written(folder / "a.tape", arguments_of(given_calls))
    result = folder / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result)
    assert leaked(source, result) == []
    assert_same(source, result)


@pytest.mark.integration
@given(CALLS)
def test_a_random_tape_of_shapes_only_leaks_nothing(
    tmp_path_factory: pytest.TempPathFactory, given_calls: Any
) -> None:
    folder = tmp_path_factory.mktemp("random")
    source = written(folder / "a.tape", arguments_of(given_calls))
    result = folder / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result, shapes_only="*")
    assert leaked(source, result) == []
    with open_tape(result) as tape:
        assert {type(call.inputs.args[2]).__name__ for call in tape} == {"Placeholder"}


def test_answers_are_the_same(tmp_path: Path) -> None:
    calls: list[Any] = []
    for number in range(12):
        ids = torch.randint(1000, 9000, (1 + number % 3, 4 + number))
        calls.append(((ids, torch.ones_like(ids), f"secret {number}"), {"mode": "sum"}))
        calls.append(((ids,), {"prompt": f"secret {number}", "n": ids.shape[1]}))
    source, result = written(tmp_path / "a.tape", calls), tmp_path / "b.tape"
    with open_tape(source) as tape:
        report = redact(tape, result)
    assert any("mode" in note for note in report.notes)
    assert_same(source, result)
    assert leaked(source, result) == []
    with open_tape(result) as tape:
        modes = {call.inputs.kwargs.get("mode", "mean") for call in tape}
        assert len(modes) == 2
        assert "sum" not in modes
        assert replay(tape, Model()).ok


def test_what_is_no_call_is_redacted_too(tmp_path: Path) -> None:
    source = written(tmp_path / "named after bob.tape", [((torch.ones(2),), {"prompt": "raise x"})])
    result = tmp_path / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result)
    data = result.read_bytes()
    assert b"named after bob" not in data
    assert b"cannot read" not in data
    with open_tape(result) as tape:
        call = tape.calls[0]
        assert call.error is not None
        assert call.error.message == "(21 characters, not kept)"
        assert call.thread not in (0, __import__("threading").get_ident())
        assert 0 <= call.time - 946_684_800 < 3600
        assert tape.manifests[0].producer.platform in ("Linux-x86_64", "Linux-aarch64")
    assert stat.S_IMODE(os.stat(result).st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["b.tape", "named after bob.tape"]


def test_a_number_is_omitted_beside_a_nan(tmp_path: Path) -> None:
    """A NaN equals nothing, and has the same bytes on both tapes."""
    calls: list[Any] = [
        ((torch.ones(2), float("nan")), {"n": 123456789}),
        ((torch.ones(3), 0.123456), {"n": 987654321}),
    ]
    with open_tape(written(tmp_path / "a.tape", calls)) as tape:
        redact(tape, tmp_path / "b.tape")
    with open_tape(tmp_path / "b.tape") as tape:
        scalars = [value for call in tape for value in call.record.inputs.scalars]
    assert not {123456789, 987654321, 0.123456} & set(scalars)


def test_a_variant_is_redacted(tmp_path: Path) -> None:
    """What is said of it has the other variants as evidence, which the new tape lacks."""
    calls: list[Any] = [
        ((torch.ones(n, *more),), {"mode": mode})
        for n in (2, 3, 4)
        for mode, more in (("sum", ()), ("max", (2,)))
    ]
    with open_tape(written(tmp_path / "a.tape", calls)) as tape:
        for variant in tape.variants():
            redact(tape.only(variant=variant.name), tmp_path / "b.tape", overwrite=True)
            with open_tape(tmp_path / "b.tape") as part:
                assert len(part) == 3


def test_the_numbers_of_a_long_list_are_omitted_even_if_they_are_sizes(tmp_path: Path) -> None:
    calls = [((torch.ones(n, 3),), {"lengths": [n] * 9}) for n in (2000, 3000, 5000)]
    source, result = written(tmp_path / "a.tape", calls), tmp_path / "b.tape"
    with open_tape(source) as tape:
        notes = redact(tape, result).notes
        assert any("the numbers at lengths." in note for note in notes)
        assert_same(source, result)
        redact(tape, result, keep="lengths", overwrite=True)
    with open_tape(result) as tape:
        assert [call.inputs.kwargs["lengths"] for call in tape] == [
            [2000] * 9,
            [3000] * 9,
            [5000] * 9,
        ]


def test_redact_rejects_its_own_source_and_an_empty_path(tmp_path: Path) -> None:
    source = written(tmp_path / "a.tape", [((torch.ones(2),), {})])
    with open_tape(source) as tape:
        with pytest.raises(UsageError, match="one of the tapes"):
            redact(tape, source, overwrite=True)
        with pytest.raises(UsageError, match="empty"):
            redact(tape, tmp_path / "b.tape", keep="")
        report = redact(tape, tmp_path / "b.tape", keep="nothing")
        assert "no value has a path like nothing" in report.notes
        with pytest.raises(TapeError, match="already"):
            redact(tape, tmp_path / "b.tape")


@pytest.mark.parametrize("pattern", ["prompt", "kwargs.prompt"])
def test_a_text_is_kept_by_each_of_its_names(tmp_path: Path, pattern: str) -> None:
    source = written(tmp_path / "a.tape", [((torch.ones(2),), {"prompt": "a text, once"})])
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape", keep=[pattern, "outputs.echo"])
    with open_tape(tmp_path / "b.tape") as tape:
        assert tape.calls[0].inputs.kwargs["prompt"] == "a text, once"


def test_a_text_is_kept_by_its_position(tmp_path: Path) -> None:
    source = written(tmp_path / "a.tape", [((torch.ones(2), None, "a text, once"), {})])
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape", keep=["args.2", "outputs.echo"])
    with open_tape(tmp_path / "b.tape") as tape:
        assert tape.calls[0].inputs.args[2] == "a text, once"


@pytest.mark.parametrize(
    ("keep", "missing"), [((), "policy"), (("*",), "dtype posit16")], ids=["nothing", "everything"]
)
def test_a_tensor_of_a_later_version_costs_itself(
    tmp_path: Path, keep: tuple[str, ...], missing: str
) -> None:
    """It cost its call."""
    with open_tape(FIXTURES / "future" / "dtype_in_a_blob.tape") as tape:
        report = redact(tape, tmp_path / "b.tape", keep=keep)
    assert (report.calls, report.lost) == (3, ())
    note = "1 tensor without values: only a later version knows the dtype"
    assert (note in report.notes) is bool(keep)
    with open_tape(tmp_path / "b.tape", verify=True) as tape:
        assert tape.damage == []
        facts = [leaf for call in tape.calls for leaf in call.record.inputs.facts()]
    assert [leaf.missing for leaf in facts if leaf.dtype == "posit16"] == [missing]
    others = {leaf.missing for leaf in facts if leaf.dtype != "posit16"}
    assert others == ({None} if keep else {"policy"})


def test_a_broken_record_is_left_out_and_the_ranges_stay(tmp_path: Path) -> None:
    """Under checksums that hold. The analysis leaves the call out, and knows the ranges of others.
    They were lost here, and the proof refused the tape."""
    calls = [((torch.arange(n * 2000, n * 2000 + 900 + n),), {}) for n in (2, 3, 4)]
    source = written(tmp_path / "a.tape", calls)
    reader, sink = reader_of(source), BytesSink()
    documents = [reader.document(at) for at in range(3)]
    places = [reader.blob_member(reader.record(at)) for at in range(3)]
    blobs = [reader.source.read_at(place.start, place.size) for place in places]
    tree = documents[1]["inputs"]
    tree["structure"] = tree["structure"].replace(b"leaf", b"leak")
    writer = TapeWriter(sink, reader.manifest)
    for number, document in enumerate(documents):
        plain = {k: v for k, v in document.items() if k != "blob"}
        writer.append([new_call(number, plain, blobs[number])])
    writer.seal(Coverage(seen=3, kept=3))
    source.write_bytes(sink.data)
    with open_tape(source) as tape:
        report = redact(tape, tmp_path / "b.tape")
    assert report.calls == 2
    assert "leaf" in report.lost[0]
    with open_tape(tmp_path / "b.tape") as tape:
        (variant,) = tape.variants()
        assert variant.findings.tensors[0].range == (4000, 8903)


@pytest.mark.parametrize("options", [{}, {"keep": ["ids"]}, {"keep": ["w"]}], ids=str)
def test_values_of_earlier_calls_are_redacted_as_own_ones(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """A tape on which calls refer to bytes of earlier ones: what stays is the same, and no more."""
    secret, ids = torch.tensor([3.14159265, 2.71828182]), torch.tensor([101, 55555, 102])
    given = [
        Recorded(kwargs={"w": secret, "ids": ids, "x": torch.ones(n, 2)}, outputs=(secret * 2, ids))
        for n in (2, 3, 4)
    ]
    made = []
    for name in ("own", "shared"):
        path = write_tape(tmp_path / f"{name}.tape", given)
        if name == "shared":
            refer(path)
        out = tmp_path / f"{name}.redacted.tape"
        with open_tape(path) as tape:
            redact(tape, out, **options)
        with open_tape(out) as tape:
            assert tape.verify() == []
            calls = [(repr(call.inputs), repr(call.outputs), call.record) for call in tape.calls]
            made.append([(i, o, r.inputs, r.outputs) for i, o, r in calls])
        kept = [one in out.read_bytes() for one in map(_bytes_of, (secret, ids, secret * 2))]
        assert kept == ["w" in options.get("keep", ()), "ids" in options.get("keep", ()), False]
    assert made[0] == made[1]


def _bytes_of(value: torch.Tensor) -> bytes:
    return bytes(value.untyped_storage().tolist())
