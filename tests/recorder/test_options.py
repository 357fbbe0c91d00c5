"""Options and paths that are refused, and files that stay as they were."""

from __future__ import annotations

import functools
import typing
from pathlib import Path
from typing import Any

import pytest

from calltape_recorder import (
    Every,
    First,
    FlightRecorder,
    Keywords,
    Options,
    Recorder,
    TapeError,
    record,
)
from calltape_recorder.bounds import MAX_COUNT, MAX_PATTERN_CHARACTERS, MAX_PATTERNS
from calltape_recorder.options import check_options, help_of, parse_options
from tests.raising import raises
from tests.recorder.models import Add


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


@pytest.mark.parametrize("how", [Recorder, functools.partial(record, Add())])
def test_what_is_refused_leaves_no_file(tmp_path: Path, how: Any) -> None:
    with raises("usage"):
        how(tmp_path / "t.tape", max_calls=-1)
    assert not list(tmp_path.iterdir())
    for path in ("a\0b", None, 3.5):
        with raises("usage"):
            how(path)


def test_an_existing_path_is_refused_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "t.tape"
    Recorder(path).close()
    before = path.read_bytes()
    with raises("exists") as caught:
        Recorder(path)
    assert "overwrite=True" in str(caught.value)
    assert path.read_bytes() == before
    Recorder(path, overwrite=True).close()
    assert path.read_bytes() != before


def test_overwriting_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "t.tape").symlink_to(tmp_path / "target")
    with pytest.raises(TapeError, match="already"):
        Recorder(tmp_path / "t.tape")
    Recorder(tmp_path / "t.tape", overwrite=True).close()
    assert (tmp_path / "target").read_text() == "precious"


# --- the table ------------------------------------------------------------------------------------


def test_the_keywords_are_those_of_the_table() -> None:
    assert typing.get_type_hints(Keywords) == {
        name: field.annotation for name, field in Options.model_fields.items()
    }
    assert list(Keywords.__annotations__) == list(Options.model_fields)
    assert not Keywords.__required_keys__


def test_each_option_has_a_sentence_and_a_text() -> None:
    found = help_of()
    assert found.keys() == Options.model_fields.keys() - {"overwrite"}
    for says in found.values():
        sentence, _, text = says.rpartition(": ")
        assert sentence
        assert text
    assert found["max_share"].endswith("such as 1%")
    assert "`" not in "".join(found.values())


RIGHT: dict[str, list[Any]] = {
    "overwrite": [True], "outputs": [False], "write_ahead": [True],
    "values": ["none", {}, {"*": "none", "a.*": "all"}, {"a" * MAX_PATTERN_CHARACTERS: "all"}],
    "keep": [First(3)], "flight_recorder": [None, FlightRecorder(calls=1)],
    "max_calls": [None, 0, MAX_COUNT], "max_queue_bytes": [0], "max_disk_bytes": [None, 2**17],
    "min_free_bytes": [0], "segment_bytes": [1], "max_seconds": [1, 0.5], "max_share": [1, 0.01],
    "segment_seconds": [None, 3], "max_age_seconds": [3600],
    "when_full": ["stop"], "file_mode": [0o640, 0o777], "control": [None],
    "via": ["hook", "method"], "method": ["forward"],
}  # fmt: skip

WRONG: dict[str, list[Any]] = {
    "overwrite": [None, 1], "outputs": ["true"], "write_ahead": [0],
    "values": [True, 3, [], {"a": "some"}, {3: "all"}, {"a" * (MAX_PATTERN_CHARACTERS + 1): "all"},
               {str(number): "all" for number in range(MAX_PATTERNS + 1)}],
    "keep": [None, "every()", First, 3], "flight_recorder": [True, 3, {"calls": 3}],
    "max_calls": [True, 1.0, "3", -1, MAX_COUNT + 1], "max_queue_bytes": [None, -1, 1.5],
    "max_disk_bytes": [-1, 2**17 - 1, 1e6], "min_free_bytes": [-1, "1"],
    "segment_bytes": [-1, True], "max_seconds": [0, -1, True, "3", float("nan"), float("inf")],
    "max_share": [0, 1.5, True, "1%", float("nan")], "segment_seconds": [0],
    "max_age_seconds": [10**400], "when_full": [None, "burst"],
    "file_mode": [None, 0o400, True, "640"], "control": [3], "via": [None, "air"],
    "method": [None, "", 3, b"run"],
}  # fmt: skip


@pytest.mark.parametrize("name", Options.model_fields)
def test_each_option_takes_right_values_and_rejects_wrong_ones(name: str) -> None:
    for value in RIGHT[name]:
        assert getattr(check_options({name: value}), name) == value
    for value in WRONG[name]:
        with raises("usage") as caught:
            check_options({name: value})
        assert caught.value.advice
        assert name in str(caught.value) or name == "control"
        assert len(str(caught.value)) < 400
        assert not {"pydantic", "documentation"} & set(str(caught.value).split())


def test_an_unknown_option_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(TypeError, match="max_call'; did you mean 'max_calls'"):
        check_options({"max_call": 3})


def test_options_follow_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_options({"method": "generate"}).via == "method"
    assert check_options({}).via == "hook"
    monkeypatch.chdir(tmp_path)
    assert check_options({"control": Path("c.json")}).control == str(tmp_path / "c.json")
    rolling = check_options({"when_full": "delete_oldest", "max_disk_bytes": 2**20})
    assert rolling.max_segment_bytes == 2**17
    assert check_options({"max_age_seconds": 80}).max_segment_seconds == 10.0
    with pytest.raises(TapeError, match="more than one file"):
        check_options({"when_full": "delete_oldest"})


def test_the_manifest_notes_the_options(tmp_path: Path) -> None:
    policy = check_options(
        {"max_calls": 3, "max_share": 0.5, "values": {"*": "none", "a": "all"}, "keep": First(2),
         "flight_recorder": FlightRecorder(4, 5), "write_ahead": True, "segment_seconds": 6}
    ).policy()  # fmt: skip
    assert policy.model_dump(exclude_defaults=True) == {
        "max_calls": 3, "max_share": 0.5, "leaf_values": (("*", "none"), ("a", "all")),
        "keep": "first(2)", "flight_recorder": {"calls": 4, "bytes": 5}, "write_ahead": True,
        "max_queue_bytes": 2**28, "segment_seconds": 6.0,
    }  # fmt: skip
    plain = check_options({"keep": Every(), "values": "none"}).policy()
    assert (plain.values, plain.leaf_values, plain.keep) == ("none", (), None)


def test_json_gives_numbers_where_the_text_has_words() -> None:
    said = {"max_share": 0.01, "max_calls": 3, "max_seconds": 1.5, "segment_bytes": 10}
    assert parse_options(said) == said
    for wrong in (True, "", "x", []):
        with pytest.raises(TapeError, match="max_share"):
            parse_options({"max_share": wrong})
