"""What a person sees of an export that fails, or that succeeds and is of no use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from tests.analyzer.cli.commands import run

pytestmark = pytest.mark.integration

SOURCE = '''
import logging, sys
import torch

class Loud(torch.nn.Module):
    """Cannot be traced, and prints a lot."""
    def forward(self, x):
        for number in range(3000):
            print("line", number)
        logging.getLogger("torch.export").error("from torch")
        print("an error", file=sys.stderr)
        return torch.from_numpy(x.numpy()) + 1

class Sizes(torch.nn.Module):
    """Each size is a model of its own."""
    def forward(self, x):
        size = int(str(int(x.shape[0])))
        return torch.zeros(size) + x.reshape(size, -1).sum(1) * size

def loud():
    return Loud()

def sizes():
    return Sizes()
'''


@pytest.fixture
def odd(folder: Path) -> Callable[[str], tuple[Any, ...]]:
    """Records a model of :data:`SOURCE`; gives the words of a command that exports it."""

    def arguments(name: str, sizes: Iterable[int] = (2, 3, 5)) -> tuple[Any, ...]:
        (folder / "odd_models.py").write_text(SOURCE)
        scope: dict[str, Any] = {"__name__": "odd_models"}
        exec(SOURCE, scope)
        model = scope[name]().eval()
        with record(model, folder / "odd.tape"):
            for rows in sizes:
                model(torch.ones(rows, 4))
        return ("export", folder / "odd.tape", "--model", f"odd_models:{name}")

    return arguments


def test_a_failed_export_fits_on_a_screen(
    odd: Callable[[str], tuple[Any, ...]], capfd: pytest.CaptureFixture[str]
) -> None:
    words = odd("loud")
    capfd.readouterr()
    code, out, err = run(*words)
    assert code == 1
    assert out.splitlines()[0].split()[:2] == ["variant", "tried"]
    assert 2 <= len(out.splitlines()) <= 24
    assert len(err.splitlines()) == 2
    assert "nothing could be exported" in err
    named = re.search(r"the output of torch and the model is in (\S+)", err)
    assert named is not None
    log = Path(named[1])
    text = log.read_text()
    log.unlink()
    assert "line 2999" in text
    assert "an error" in text
    assert "line 2999" not in capfd.readouterr().err


def test_a_failed_export_prints_its_error_and_attempts_as_json(
    odd: Callable[[str], tuple[Any, ...]],
) -> None:
    code, out, _ = run(*odd("loud"), "--json")
    assert code == 1
    document = json.loads(out)
    assert document["programs"] == []
    assert document["error"].startswith("nothing could be exported")
    assert document["attempts"]


def test_programs_for_one_size_each_are_no_success(odd: Callable[[str], tuple[Any, ...]]) -> None:
    words = odd("sizes")
    code, out, err = run(*words)
    assert "3 of 3 recorded calls reproduced" in out
    *_, verdict, advice = out.splitlines()
    assert verdict == (
        "recorded sizes only: main: 3 of 3 recorded sizes have a program each for that one only"
    )
    assert "pass --allow-constants" in advice
    assert code == 1
    code, out, err = run(*words, "--allow-constants")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == verdict


def test_an_export_makes_at_most_three_programs_that_take_one_size_each(
    odd: Callable[..., tuple[Any, ...]],
) -> None:
    words = odd("sizes", range(2, 9))
    code, out, _ = run(*words, "--json")
    document = json.loads(out)
    assert code == 1
    assert len(document["programs"]) == 3
    (verdict,) = document["verdicts"]
    assert verdict["scope"] == "recorded sizes only"
    assert (verdict["sizes"], verdict["constant"], verdict["rejected"]) == (7, 3, 4)
    reason = verdict["reason"]
    assert (reason["code"], reason["most"]) == ("each_alone", 3)
    assert reason["text"].startswith("each of them would need a program of its own")
    assert run(*words, "--allow-constants").code == 1  # four recorded calls have no program
