"""Which tapes are asked, and which models are exported.

There are two kinds: a tape that is in the repository (``v1/calls``, ``hostile/map_twice``), and a
model that is recorded for each run (``zoo/gpt2``, ``small/padding_mask``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.answers.exported import EXPORTED, TO_ONNX
from tests.answers.small import SMALL
from tests.zoo import CASES
from tests.zoo.case import Case

__all__ = ["GOLDEN", "ROOT", "Subject", "chosen", "subjects"]

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
_FIXTURES = "v1", "future", "hostile"


@dataclass(frozen=True)
class Subject:
    """One tape, and the answers about it.

    Attributes:
        name: ``folder/name``, as its file in ``golden/``.
        next: the name of the tape that it is compared with, of the same folder.
        case: the model that is recorded; None for a tape in the repository.
        targets: the runtimes that the model is exported for.
    """

    name: str
    next: str
    case: Case | None = None
    targets: tuple[str, ...] = ()

    @property
    def golden(self) -> Path:
        """The file with its answers, below a folder of such files."""
        return Path(f"{self.name}.json")


@cache
def subjects() -> dict[str, Subject]:
    """Everything that is asked, by name."""
    found: dict[str, Subject] = {}
    for folder in _FIXTURES:
        names = sorted(path.stem for path in (ROOT / "fixtures" / folder).glob("*.tape"))
        for name, following in _with_next(names):
            found[f"{folder}/{name}"] = Subject(f"{folder}/{name}", f"{folder}/{following}")
    for folder, cases in (("zoo", CASES), ("small", SMALL)):
        for name, following in _with_next(list(cases)):
            targets = ("torch",) if folder == "small" or name in EXPORTED else ()
            targets += ("onnx",) if name in TO_ONNX else ()
            subject = f"{folder}/{name}"
            found[subject] = Subject(subject, f"{folder}/{following}", cases[name], targets)
    return found


def _with_next(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each name with the one behind it; the first one stands behind the last."""
    return list(zip(names, [*names[1:], *names[:1]], strict=True))


def chosen(words: Sequence[str]) -> list[Subject]:
    """The subjects of some names; a folder, or a name without its folder, stands for all of them.

    Raises:
        KeyError: there is no such name.
    """
    every = subjects()
    if not words:
        return list(every.values())
    found: dict[str, Subject] = {}
    for word in words:
        fitting = {
            name: one
            for name, one in every.items()
            if word in (name, *name.split("/", 1))
        }  # fmt: skip
        if not fitting:
            raise KeyError(word)
        found |= fitting
    return list(found.values())
