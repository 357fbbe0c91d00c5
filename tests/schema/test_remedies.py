"""What to do is said in the words of whoever reads."""

from __future__ import annotations

import pickle
import threading

import pytest

from calltape_schema.errors import TapeError
from calltape_schema.remedies import Remedy, reader, told_to

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
