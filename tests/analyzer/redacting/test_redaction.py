"""Redacted tapes: nothing private is in their bytes, and the analysis says the same of them."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from calltape_analyzer import RedactionError, TapeError, UsageError, open_tape, redact, replay
from calltape_analyzer.redacting import keyed_redaction
from calltape_recorder import record
from calltape_schema.end import Coverage
from calltape_schema.storage import BytesSink
from calltape_schema.writer import TapeWriter
from tests.analyzer.redacting.answers import answers, differing, programs_of, replaced_numbers
from tests.analyzer.redacting.leaks import leaked
from tests.analyzer.redacting.random_calls import CALLS, Model, arguments_of, written
from tests.analyzer.tapes import Recorded, new_call, reader_of, refer, write_tape
from tests.fixture_files import WITH_CALLS


def assert_same(source: Path, result: Path) -> None:
    """Two tapes give the same answers, but for the numbers that were replaced."""
    with open_tape(source) as old, open_tape(result) as new:
        replaced, programs = replaced_numbers(old, new), programs_of(old)
        before, after = (answers(tape, programs, replaced) for tape in (old, new))
    assert differing(before, after) == []


@pytest.mark.parametrize("source", WITH_CALLS, ids=lambda path: path.stem)
def test_golden_tapes(source: Path, tmp_path: Path) -> None:
    result = tmp_path / "redacted.tape"
    with open_tape(source) as tape:
        report = redact(tape, result)
        calls = len(tape.calls)  # without the damaged ones
    assert report.calls == calls
    with open_tape(result, verify=True) as tape:
        assert tape.damage == []
        assert tape.sealed
        assert tape.manifests[0].producer.host is None
        assert tape.manifests[0].history[-1].verb == "redact"  # type: ignore[index]
    # The names in the format and in the tests' own code are no data.
    data = {"value", "plain", "first", "second", "tensor", "inputs"}
    assert [one for one in leaked(source, result, least=6) if one not in data] == []


@pytest.mark.parametrize("way", ["hash", "permute", "noise", "shapes_only"])
def test_golden_tapes_in_every_way(way: str, tmp_path: Path) -> None:
    """Also of dtypes that torch cannot compute with, and of numbers that mean sizes."""
    for source in WITH_CALLS:
        options: dict[str, Any] = {way: "*"}
        with open_tape(source) as tape:
            redact(tape, tmp_path / source.name, **options)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CALLS)
def test_random_tapes(tmp_path_factory: pytest.TempPathFactory, given_calls: Any) -> None:
    folder = tmp_path_factory.mktemp("random")
    source = written(folder / "a.tape", arguments_of(given_calls))
    result = folder / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result)  # which compares the answers
    assert leaked(source, result) == []
    assert_same(source, result)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CALLS)
def test_random_tapes_without_texts(
    tmp_path_factory: pytest.TempPathFactory, given_calls: Any
) -> None:
    folder = tmp_path_factory.mktemp("random")
    source = written(folder / "a.tape", arguments_of(given_calls))
    result = folder / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result, shapes_only="*")  # the answers are those without these values
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


def test_values_are_kept_permuted_and_made_noise(tmp_path: Path) -> None:
    ids = [torch.randint(100, 9000, (2, 7 + n)) for n in range(3)]
    mask = [torch.tensor([[1] * (5 + n) + [0, 0], [1] * (7 + n)]) for n in range(3)]
    image = [torch.rand(2, 3, 4 + n) for n in range(3)]
    image[0][0, 0, 0] = float("nan")
    source = written(
        tmp_path / "a.tape",
        [((i, m), {"image": x, "offsets": torch.tensor([0, 3, i.shape[1]]), "prompt": "of bob"})
         for i, m, x in zip(ids, mask, image, strict=True)],
    )  # fmt: skip
    result = tmp_path / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result, permute=["ids", "offsets"], keep=["mask"], noise="image", special=True)
    offsets = {torch.tensor([0, 3, 7 + n]).numpy().tobytes() for n in range(3)}
    assert {*leaked(source, result)} == offsets, "no row of ids"
    with open_tape(result) as tape:
        known: dict[int, int] = {}
        for call, i, m, x in zip(tape, ids, mask, image, strict=True):
            found = call.inputs.args
            assert torch.equal(found[1], m)
            more = call.inputs.kwargs
            assert torch.equal(more["offsets"], torch.tensor([0, 3, i.shape[1]]))
            assert not torch.isclose(more["image"], x).float().mean() > 0.01
            assert torch.equal(more["image"].isnan(), x.isnan())
            assert more["image"].nan_to_num(0.5).min() >= 0
            assert more["image"].nan_to_num(0.5).max() <= 1
            for old, new in zip(i.flatten().tolist(), found[0].flatten().tolist(), strict=True):
                assert known.setdefault(old, new) == new
                assert 0 < new < 9000
        assert len(set(known.values())) == len(known)
        assert sum(old == new for old, new in known.items()) < 3


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_noise_of_narrow_floats_with_special_values(dtype: Any, tmp_path: Path) -> None:
    """torch compares some of them with nothing."""
    scores = torch.tensor([0.5, float("nan"), 3.0, -2.0]).to(dtype)
    source = written(tmp_path / "a.tape", [((torch.ones(2),), {"s": scores})] * 2)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape", noise="*", special=True)
    with open_tape(tmp_path / "b.tape") as tape:
        found = tape.calls[0].inputs.kwargs["s"].float()
    assert found.isnan().tolist() == [False, True, False, False]
    assert found[~found.isnan()].tolist() != [0.5, 3.0, -2.0]


def test_small_indices_beside_huge_ids_are_permuted(tmp_path: Path) -> None:
    """A walk through all numbers up to the largest id would hardly ever end below a size."""
    calls: Any = [
        ((torch.zeros(2, 41, dtype=torch.long),),
         {"order": torch.randperm(40), "hashes": torch.tensor([2**62 + 7 * n, 3])})
        for n in range(9)
    ]  # fmt: skip
    source = written(tmp_path / "a.tape", calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape", permute="*")
    with open_tape(tmp_path / "b.tape") as tape:
        for call in tape:
            assert sorted(call.inputs.kwargs["order"].tolist()) == list(range(40))


def test_ids_that_look_like_structure_are_permuted(tmp_path: Path) -> None:
    rows = {
        "begins_at_0": [torch.tensor([0, 1212, 3434, 5656, 7000 + n, 8888]) for n in range(3)],
        "order": [torch.randperm(40) for _ in range(3)],
        # Below the number of columns in the calls that the rules are learned from, not in all.
        "indices": [torch.randperm(40) + (900 if n == 1 else 0) for n in range(40)],
        # Rules are learned from the first call of each size.
        "segments": [torch.tensor([0, 0, 1, 1, 2])] + [torch.randint(99, 9999, (5,))] * 39,
    }
    calls: Any = [
        ((torch.zeros(2, 41, dtype=torch.long),),
         {name: found[n % len(found)] for name, found in rows.items()})
        for n in range(40)
    ]  # fmt: skip
    source, result = written(tmp_path / "a.tape", calls), tmp_path / "b.tape"
    with open_tape(source) as tape:
        redact(tape, result, permute=list(rows))
    data = result.read_bytes()
    assert rows["segments"].pop(0).numpy().tobytes() in data, "it says nothing"
    for name, found in rows.items():
        assert not [row for row in found if row.numpy().tobytes() in data], name
    with open_tape(result) as tape:
        for call in tape:
            more = call.inputs.kwargs
            assert more["begins_at_0"][0] == 0
            assert torch.equal(more["begins_at_0"], more["begins_at_0"].sort().values)
            assert torch.equal(more["order"].sort().values, torch.arange(40))


class Cached(torch.nn.Module):
    def forward(self, x: Any, past_key_values: Any = None) -> Any:
        past = x if past_key_values is None else torch.cat([past_key_values, x], 1)
        return {"past_key_values": past}


def test_a_tensor_has_no_pseudonym(tmp_path: Path) -> None:
    """What `hash` does to texts leaves nothing of a tensor either."""
    ids = torch.randint(1000, 9000, (2, 7))
    source = written(tmp_path / "a.tape", [((ids,), {"prompt": "secret of bob"})])
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape", hash=["*", "outputs.*"])
    assert leaked(source, tmp_path / "b.tape") == []
    with open_tape(tmp_path / "b.tape") as tape:
        assert tape.calls[0].inputs.args[0].is_meta


def test_what_is_far_larger_than_its_bytes_has_no_values(tmp_path: Path) -> None:
    """A tensor that was expanded may say that it has terabytes."""
    more = {"floats": torch.rand(3).expand(2**40, 3), "places": torch.arange(5).expand(2**58, 5)}
    source = written(tmp_path / "a.tape", [((torch.ones(1, 3),), more)])
    assert source.stat().st_size < 20_000
    with open_tape(source) as tape:
        report = redact(tape, tmp_path / "b.tape", noise="floats", permute="places")
    assert any("without values" in note for note in report.notes)


def test_noise_keeps_to_what_a_dtype_holds(tmp_path: Path) -> None:
    """Although all tensors of a pattern share a range."""
    few = {"half": torch.rand(9).half(), "bytes": torch.arange(20).byte(), "wide": torch.arange(9)}
    source = written(tmp_path / "a.tape", [((torch.rand(9) * 1e29,), few)])
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape", noise="*")
    with open_tape(tmp_path / "b.tape") as tape:
        made = tape.calls[0].inputs.kwargs
        assert made["half"].isfinite().all()
        assert made["wide"].min() >= 0
        assert made["bytes"].unique().numel() > 3


def test_numbers_that_were_replaced_are_no_answer_where_a_text_quotes_them(tmp_path: Path) -> None:
    calls: list[Any] = [((torch.ones(1, 3),), {"more": [n] * 9}) for n in (4041, 1001)]
    source = written(tmp_path / "a.tape", calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")
    assert_same(source, tmp_path / "b.tape")


def test_caches_stay_concatenations_of_earlier_ones(tmp_path: Path) -> None:
    model, past = Cached(), None
    with record(model, tmp_path / "a.tape"):
        for _ in range(4):
            past = model(torch.randn(1, 2, 8), past)["past_key_values"]
    with open_tape(tmp_path / "a.tape") as tape:
        redact(tape, tmp_path / "b.tape", noise="*past_key_values*")
        before = [call.outputs["past_key_values"] for call in tape]
    with open_tape(tmp_path / "b.tape") as tape:
        outputs = [call.outputs["past_key_values"] for call in tape]
        for call, earlier in zip(list(tape)[1:], outputs, strict=False):
            assert torch.equal(call.inputs.args[1], earlier)
        for shorter, longer in itertools.pairwise(outputs):
            assert torch.equal(longer[:, : shorter.shape[1]], shorter)
    assert not torch.isclose(before[-1], outputs[-1]).float().mean() > 0.01


def test_a_result_that_says_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(tmp_path / "a.tape", [((torch.ones(n, 3),), {}) for n in (2, 3)])
    with open_tape(source) as tape, monkeypatch.context() as patch:
        patch.setattr(keyed_redaction, "difference", lambda before, after: "variants")
        with pytest.raises(RedactionError, match="variants"):
            redact(tape, tmp_path / "b.tape")
        patch.setattr(keyed_redaction, "found_in", lambda path, values: [b"secret"])
        with pytest.raises(RedactionError, match="1 value"):
            redact(tape, tmp_path / "b.tape")
    assert os.listdir(tmp_path) == ["a.tape"]


def test_the_size_of_a_long_list_is_no_data(tmp_path: Path) -> None:
    """Numbers of a long list are replaced. If they meant a size, the proof notices it."""
    calls = [((torch.ones(n, 3),), {"lengths": [n] * 9}) for n in (2000, 3000, 5000)]
    source = written(tmp_path / "a.tape", calls)
    with open_tape(source) as tape:
        with pytest.raises(RedactionError, match="keep"):
            redact(tape, tmp_path / "b.tape")
        redact(tape, tmp_path / "b.tape", keep="lengths")
    assert_same(source, tmp_path / "b.tape")


def test_misuse(tmp_path: Path) -> None:
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


def test_a_tape_of_which_a_record_breaks_the_format(tmp_path: Path) -> None:
    """Under checksums that hold. The analysis leaves the call out, and knows the ranges of others.
    They were lost here, and the proof refused the tape."""
    calls = [((torch.arange(n * 2000, n * 2000 + 900 + n),), {}) for n in (2, 3, 4)]
    source = written(tmp_path / "a.tape", calls)
    reader, sink = reader_of(source), BytesSink()
    documents = [reader.document(at) for at in range(3)]
    places = [reader.blob_member(reader.record(at)) for at in range(3)]
    blobs = [reader.source.read_at(place.start, place.size) for place in places]
    tree = documents[1]["inputs"]
    tree["structure"] = tree["structure"].replace(b"tensor", b"lambda")
    writer = TapeWriter(sink, reader.manifest)
    for number, document in enumerate(documents):
        plain = {k: v for k, v in document.items() if k != "blob"}
        writer.append([new_call(number, plain, blobs[number])])
    writer.seal(Coverage(seen=3, kept=3))
    source.write_bytes(sink.data)
    with open_tape(source) as tape:
        report = redact(tape, tmp_path / "b.tape")
    assert report.calls == 2
    assert "lambda" in report.lost[0]
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
