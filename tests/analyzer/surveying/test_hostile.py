"""Files that lie or are broken cost their own answer only: tapes among others, and surveys."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, open_tape, read_survey, survey, write_survey
from calltape_analyzer.pytree.memory_limit import granted
from calltape_analyzer.reading import files
from calltape_analyzer.surveying import inputs_table, survey_file
from calltape_analyzer.surveying.executors import Loop
from calltape_analyzer.surveying.inputs_table import InputsTable
from calltape_analyzer.surveying.survey_file import survey_from_json, survey_to_json
from calltape_analyzer.writing.tape_writer import TapeWriter
from calltape_schema.endings import Coverage
from tests.analyzer.reading.test_summaries import Model, some
from tests.analyzer.tapes import write_tape
from tests.fixture_files import FIXTURES


def fleet(folder: Path, count: int = 6) -> list[Path]:
    return [
        write_tape(
            folder / f"{n}.tape",
            some(5 + n),
            target=Model(),
            table=n != 2,
            tape_id=bytes([n] * 16),
        )
        for n in range(count)
    ]


def test_each_hostile_fixture_among_good_tapes(tmp_path: Path) -> None:
    good = fleet(tmp_path)
    expected = survey_to_json(survey(good, Loop()))
    variants = [one.findings for one in survey(good, Loop()).tape().variants()]
    hostile = sorted(p for p in (FIXTURES / "hostile").iterdir() if p.suffix == ".tape")
    assert len(hostile) > 20
    found = survey([*good, *hostile], Loop())
    assert expected != survey_to_json(found)
    mine = next(tape for tape in found.tapes if tape.paths[0] == str(good[0]))
    assert [one.findings for one in mine.variants()] == variants
    assert {tape.name for tape in found.tapes} > {mine.name}
    assert found.unreadable
    for tape in found.tapes:
        tape.variants()
        assert all(str(error).isprintable() for error in tape.damage)
    assert survey_to_json(survey_from_json(survey_to_json(found))) == survey_to_json(found)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    good = fleet(tmp_path)
    (tmp_path / "empty.tape").write_bytes(b"")
    (tmp_path / "text.tape").write_text("hello" * 300)
    (tmp_path / "gone.tape").symlink_to(tmp_path / "nothing")
    found = survey(tmp_path, Loop())
    assert len(found.tape()) == len(survey(good, Loop()).tape())
    assert [error.kind for error in found.unreadable] == ["not_a_tape", "not_found", "not_a_tape"]
    assert "3 files could not be read" in str(found.tape().damage[-1])


def test_a_forged_summary_is_told_by_a_scan(tmp_path: Path) -> None:
    def more(summary: Any) -> Any:
        return summary.model_copy(update={"tensor_bytes": 10**12, "closed_ns": 5})

    good = fleet(tmp_path)
    forged = write_tape(tmp_path / "z.tape", some(9), target=Model(), forge=more)
    assert not survey([*good, forged], Loop()).tape().damage
    found = survey([*good, forged], Loop(), scan=True).tape()
    assert ["forged or stale summary" in str(error) for error in found.damage] == [True]
    assert found.damage[0].path == str(forged)


class TestSurveyFiles:
    def test_a_survey_that_is_written_and_read_again(self, tmp_path: Path) -> None:
        found = survey(fleet(tmp_path), Loop())
        for name in ("s.json", "s.json.gz"):
            write_survey(found, tmp_path / name)
            assert survey_to_json(read_survey(tmp_path / name)) == survey_to_json(found)
            with pytest.raises(TapeError, match="it is there already"):
                write_survey(found, tmp_path / name)
            write_survey(found, tmp_path / name, overwrite=True)
        assert not [p for p in tmp_path.iterdir() if p.suffix not in (".tape", ".json", ".gz")]
        with pytest.raises(TapeError, match=r"End it with \.json"):
            write_survey(found, tmp_path / "s.txt")

    def test_what_is_no_survey(self, tmp_path: Path) -> None:
        path = tmp_path / "s.json"
        for text in ("", "[]", "{}", '{"format": "x"}', "[" * 100_000, '{"a":' * 50_000, "\0"):
            path.write_text(text)
            with pytest.raises(TapeError) as caught:
                read_survey(path)
            assert caught.value.kind in ("not_a_tape", "limit")
        path.write_text('{"format": "calltape-survey", "version": 2, "targets": []}')
        with pytest.raises(TapeError, match="version"):
            read_survey(path)

    def test_a_bomb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(survey_file, "MAX_SURVEY_BYTES", 10_000)
        path = tmp_path / "s.json.gz"
        path.write_bytes(gzip.compress(bytes(2_000_000)))
        with pytest.raises(TapeError, match="more than 10,000 bytes"):
            read_survey(path)
        (tmp_path / "s.json").write_bytes(bytes(20_000))
        with pytest.raises(TapeError, match="larger than 10,000 bytes"):
            read_survey(tmp_path / "s.json")
        path.write_bytes(gzip.compress(b"{}")[:-3])
        with pytest.raises(TapeError, match="cut short"):
            read_survey(path)

    @pytest.mark.parametrize(
        ("text", "said"),
        [('"",', "values"), ("0,", "values"), ("{},", "values"), ("[],", "values"), (" ", "bytes")],
    )
    def test_little_becomes_not_much(self, tmp_path: Path, text: str, said: str) -> None:
        """What 45 KB of gzip may take: they have millions of values, or blanks."""
        path = tmp_path / "s.json.gz"
        heads = b'{"format":"calltape-survey","version":1,"targets":[{"heads":['
        size = 10_000_000 if said == "values" else 60_000_000
        path.write_bytes(gzip.compress(heads + text.encode() * size, 9))
        assert path.stat().st_size < 500_000
        with pytest.raises(TapeError) as caught:
            read_survey(path)
        assert caught.value.kind == "limit"
        assert said in caught.value.reason
        assert "--max-memory" in caught.value.advice

    def test_a_field_that_is_missing_costs_nothing(self) -> None:
        """An error of pydantic for a missing field holds all that is there: of 25 fields that are
        missing, 25 times."""
        rest = b'"z":[' + b'{"aa":"bb"},' * 100_000 + b"1]"
        for inner in (
            b'"targets":[{%s}]' % rest,
            b'"targets":[{"files":[{%s}]}]' % rest,
            b'"targets":[{"files":[{"dumps":[{%s}]}]}]' % rest,
            b'"targets":[{"final":{"rows":[{%s}]}}]' % rest,
            rest,
        ):
            data = b'{"format":"calltape-survey","version":1,%s}' % inner
            tracemalloc.start()
            with pytest.raises(TapeError):
                survey_from_json(data)
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert most < 100 * 2**20, (inner[:50], most)

    def test_a_pipe_a_device_and_a_link(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "p.json")
        (tmp_path / "d.json").symlink_to("/dev/zero")
        (tmp_path / "f.json").mkdir()
        for name in "pdf":
            with pytest.raises(TapeError, match="it is no file"):
                read_survey(tmp_path / f"{name}.json")
        with pytest.raises(TapeError) as caught:
            read_survey(tmp_path / "gone.json")
        assert caught.value.kind == "not_found"
        write_survey(survey(fleet(tmp_path), Loop()), tmp_path / "monday.json")
        (tmp_path / "latest.json").symlink_to("monday.json")
        assert len(read_survey(tmp_path / "latest.json").tapes) == 1

    def test_each_part_may_lie(self, tmp_path: Path) -> None:
        """Whatever is changed: it is read, or refused with a TapeError."""
        document = json.loads(survey_to_json(survey(fleet(tmp_path), Loop())))
        places = list(_places(document))
        rng = random.Random(3)
        refused = 0
        for _ in range(400):
            changed = json.loads(json.dumps(document))
            for place in rng.sample(places, rng.randint(1, 2)):
                _change(changed, place, rng)
            try:
                found = survey_from_json(json.dumps(changed).encode())
                for tape in found.tapes:
                    tape.variants()
                    tape.coverage  # noqa: B018
                    str(tape.damage)
            except TapeError:
                refused += 1
        assert 100 < refused < 400

    def test_more_calls_than_the_files_have(self, tmp_path: Path) -> None:
        document = json.loads(survey_to_json(survey(fleet(tmp_path), Loop())))
        document["targets"][0]["final"]["rows"][0]["calls"] += 1
        with pytest.raises(TapeError, match="inputs of 46 calls, of files with 45"):
            survey_from_json(json.dumps(document).encode())


def _places(document: Any, path: tuple[Any, ...] = ()) -> Any:
    if path:
        yield path
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        yield from _places(value, (*path, key))


def _change(document: Any, path: tuple[Any, ...], rng: random.Random) -> None:
    for key in path[:-1]:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return
    try:
        old = document[path[-1]]
        new = rng.choice(
            [None, -1, 0, 1, 2**63, 2**70, "", "AAAA", "x", [], {}, True, 1.5, old, old]
        )
        document[path[-1]] = old + 1 if isinstance(old, int) and rng.random() < 0.3 else new
    except (KeyError, IndexError, TypeError):
        return


def test_too_many_inputs_are_left_out_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are left out does not depend on the order, and how many calls they are is told."""
    monkeypatch.setattr(inputs_table, "MAX_ROWS", 3)
    paths = fleet(tmp_path)
    texts = set()
    for seed in range(6):
        random.Random(seed).shuffle(paths)
        found = survey(paths[:3], Loop()).merge(survey(paths[3:], Loop()))
        texts.add(survey_to_json(found))
        tape = found.tape()
        kept = sum(seen.calls for seen in tape.calls.by_inputs())
        assert len(list(tape.calls.by_inputs())) == 3
        assert f"the inputs of {len(tape) - kept} calls are left out" in str(tape.damage[0])
    assert len(texts) == 1


def test_bytes_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_table, "MAX_BYTES", 300)
    paths = fleet(tmp_path)
    tables = []
    for seed in range(6):
        random.Random(seed).shuffle(paths)
        table = InputsTable()
        for path in paths:
            table.add_all(survey(path, Loop()).targets.popitem()[1].inputs())
        tables.append((list(table), table.limit))
    assert tables[0][1] is not None
    assert all(one == tables[0] for one in tables)


def test_a_directory_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    write_tape(tmp_path / "a.tape", [((torch.zeros(2, 4),), {})])
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(files.os, "scandir", scandir)
    found = survey(tmp_path, executor=Loop())
    assert [error.path for error in found.unreadable] == [str(tmp_path / "closed")]


def test_a_file_that_was_compressed_meanwhile_is_read(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", [((torch.zeros(2, 4),), {})])
    (tmp_path / "a.tape.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    found = survey(path, executor=Loop())  # its name was read before
    assert not found.unreadable
    assert found.tape().coverage.kept == 1


def test_a_tape_that_claims_too_many_calls_costs_its_own_answer_only(tmp_path: Path) -> None:
    good, most = fleet(tmp_path, 2), 2**63 - 1
    with (
        open_tape(good[0]) as tape,
        TapeWriter(tmp_path / "claims.tape", tape.manifest.model_copy(update={"tape": bytes(16)}))
        as writer,
    ):  # fmt: skip
        dropped = dict.fromkeys(("x", "y", "z"), most)
        writer.seal(Coverage.model_construct(seen=most, kept=0, dropped=dropped))
    found = survey([*good, tmp_path / "claims.tape"], jobs=1)
    (tape,) = found.tapes
    assert len(tape) == sum(map(len, map(open_tape, good)))
    assert survey_to_json(survey_from_json(survey_to_json(found))) == survey_to_json(found)


def document_of(tmp_path: Path) -> Any:
    return json.loads(survey_to_json(survey(fleet(tmp_path, 2), Loop())))


@pytest.mark.parametrize("dtypes", [[], ["A" * 1000], ["float32"] * 100])
def test_a_group_that_breaks_its_own_rules(tmp_path: Path, dtypes: list[str]) -> None:
    document = document_of(tmp_path)
    kind = {"structure": 0, "calls": 1, "dtypes": dtypes, "leaves": [[]], "scalars": []}
    document["targets"][0]["kinds"] = [kind]
    with pytest.raises(TapeError) as refused:
        survey_from_json(json.dumps(document).encode())
    assert refused.value.kind == "invalid"


@pytest.mark.parametrize("field", ["targets", "files", "parts", "rows", "unreadable"])
def test_a_long_list_of_wrong_things_costs_one_error(tmp_path: Path, field: str) -> None:
    document = document_of(tmp_path)
    target = document["targets"][0]
    holders = {"targets": document, "unreadable": document, "rows": target["final"]}
    holders.get(field, target)[field] = [{}] * 100_000
    data = json.dumps(document).encode()
    tracemalloc.start()
    with pytest.raises(TapeError) as refused:
        survey_from_json(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(refused.value.problems) < 100
    assert peak < 10 * len(data)


def test_more_values_than_memory_was_granted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = survey_to_json(survey(fleet(tmp_path), Loop()))
    with granted(10_000), pytest.raises(TapeError, match="values") as refused:
        survey_from_json(data)
    assert refused.value.kind == "limit"
    survey_from_json(data)
    monkeypatch.setattr(survey_file, "MAX_VALUES", 100)
    with pytest.raises(TapeError, match="at most 100"):
        survey_from_json(data)
