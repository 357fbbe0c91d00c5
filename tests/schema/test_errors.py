"""Messages of the one error, in the words of whoever reads."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import get_args

import pytest

from calltape_schema import ErrorKind, Problem, TapeError
from calltape_schema.remedies import Remedy, reader, told_to


@pytest.mark.parametrize("kind", get_args(ErrorKind))
def test_every_message_ends_with_what_to_do(kind: ErrorKind) -> None:
    message = str(TapeError(kind, "something is wrong"))
    reason, _, advice = message.partition(". ")
    assert reason == "something is wrong"
    assert advice[0].isupper() or advice[0] == "`"
    assert advice.endswith(".")
    assert str(TapeError(kind, "no", advice="turn it off and on")).endswith(". Turn it off and on.")


def test_where_it_happened_comes_first() -> None:
    error = TapeError(
        "damaged", "short", path="a.tape", member="calls/00000001.msgpack", offset=512
    )
    assert str(error).startswith("a.tape: calls/00000001.msgpack at byte 512: short. The other ")
    assert str(TapeError("damaged", "x", offset=0)).startswith("byte 0: x. ")
    assert str(TapeError("damaged", "x", member="m")).startswith("m: x. ")


def test_at_fills_in_only_what_is_missing() -> None:
    error = TapeError("damaged", "x", member="inner")
    assert error.at(path="p", member="outer", offset=3) is error
    assert (error.path, error.member, error.offset) == ("p", "inner", 3)


def test_problems_are_shown_and_counted() -> None:
    problems = [Problem(("root", 0, "leaf"), f"problem {index}") for index in range(5)]
    error = TapeError("invalid", "bad", problems=problems)
    assert "bad (root.0.leaf: problem 0; " in str(error)
    assert "problem 2; and 2 more)" in str(error)
    assert len(error.problems) == 5
    assert str(Problem((), "whole")) == "whole"


def test_text_of_a_stranger_stays_harmless() -> None:
    hostile = "\x1b[31m\r\n\u202e\ud800"
    problems = [Problem((hostile,), hostile + "x" * 10_000)]
    error = TapeError("invalid", hostile, member=hostile, path=hostile, problems=problems)
    assert str(error).isprintable()
    assert "\\x1b[31m\\r\\n\\u202e\\ud800" in str(error)
    assert len(str(error)) < 1000


def test_a_tape_error_survives_pickle_and_copy() -> None:
    error = TapeError("limit", "r", path="p", member="m", offset=1, problems=[Problem((1,), "x")])
    for other in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(other) is TapeError
        assert str(other) == str(error)
        assert other.__dict__ == error.__dict__


def test_a_subclass_with_another_signature_survives_pickle() -> None:
    error = NarrowError("reason")
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), other.kind, str(other)) == (NarrowError, "usage", str(error))


class NarrowError(TapeError, ValueError):
    def __init__(self, reason: str) -> None:
        super().__init__("usage", reason)


REMEDY = Remedy("overwrite=True", "--force").after("pass ").then(", or not")


def test_each_reader_has_words() -> None:
    assert str(REMEDY) == f"{REMEDY}" == "pass overwrite=True, or not"
    with told_to("command"):
        assert (str(REMEDY), reader()) == ("pass --force, or not", "command")
    assert (str(REMEDY), reader()) == ("pass overwrite=True, or not", "python")


def test_an_error_is_worded_when_it_is_told() -> None:
    error = TapeError("exists", "it is there already", advice=REMEDY)
    assert str(error) == "it is there already. Pass overwrite=True, or not."
    with told_to("command"):
        assert str(error) == "it is there already. Pass --force, or not."
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("kind", ["exists", "no_value", "usage"])
def test_no_kind_of_error_tells_the_command_an_option_of_python(kind: str) -> None:
    error = TapeError(kind, "no")  # type: ignore[arg-type]
    with told_to("command"):
        assert "=" not in str(error)
    assert str(error)[-1] == "."


def test_what_ends_the_command_ends_its_words() -> None:
    with pytest.raises(RuntimeError), told_to("command"):
        raise RuntimeError
    assert reader() == "python"


def test_a_thread_of_somebody_else_reads_python() -> None:
    found: list[str] = []
    with told_to("command"):
        thread = threading.Thread(target=lambda: found.append(str(REMEDY)))
        thread.start()
        thread.join()
    assert found == ["pass overwrite=True, or not"]
