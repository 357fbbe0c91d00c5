"""Answers against the golden files: which question has another answer, in readable lines."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["changes", "differences", "read", "write"]

Answers = Mapping[str, Any]
_CONTEXT = 1
_MAX_WIDTH = 400


def read(folder: Path) -> dict[str, Answers]:
    """The golden answers in a folder, by the name of their subject."""
    paths = sorted(folder.rglob("*.json"))
    return {
        str(path.relative_to(folder).with_suffix("")): json.loads(path.read_text())
        for path in paths
    }  # fmt: skip


def write(folder: Path, answers: Mapping[str, Answers], removed: Sequence[str] = ()) -> None:
    """Writes answers into a folder, and removes the files of others."""
    for name, own in answers.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(own, indent=1, sort_keys=True, ensure_ascii=True) + "\n")
    for name in removed:
        (folder / f"{name}.json").unlink()


def differences(
    golden: Mapping[str, Answers], now: Mapping[str, Answers], *, whole: bool
) -> dict[str, list[str]]:
    """By subject, the lines that tell how its answers changed. Empty if none did.

    Args:
        golden: what was answered before.
        now: what is answered now.
        whole: whether ``now`` has every subject, so that one that is missing is a difference.
    """
    found = {name: changes(golden.get(name), own) for name, own in now.items()}
    if whole:
        found |= {name: ["no such tape any more"] for name in golden if name not in now}
    return {name: lines for name, lines in sorted(found.items()) if lines}


def changes(old: Answers | None, new: Answers) -> list[str]:
    """How the answers of one subject changed, in lines."""
    if old is None:
        return ["no golden file: these answers are new"]
    return [line for question in _in_order(old, new) for line in _of_question(question, old, new)]


def _in_order(old: Answers, new: Answers) -> list[str]:
    return sorted({**old, **new})


def _of_question(question: str, old: Answers, new: Answers) -> Iterator[str]:
    if question not in new:
        yield f"{question}: no longer answered"
        return
    before, now = _lines(old.get(question)), _lines(new[question])
    if question not in old:
        yield f"{question}: answered for the first time"
        return
    if before == now:
        return
    yield f"{question}:"
    shown = difflib.unified_diff(before, now, n=_CONTEXT, lineterm="")
    for line in list(shown)[2:]:
        if not line.startswith("@@"):
            yield f"  {line}"[:_MAX_WIDTH]


def _lines(answer: Any) -> list[str]:
    """An answer as lines. One that is nested is written as the places in it with their values, so
    that a line tells where it stands."""
    if isinstance(answer, list) and all(isinstance(one, str) for one in answer):
        return list(answer)
    return list(_places(answer, ""))


def _places(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, one in sorted(value.items()):
            yield from _places(one, f"{path} > {key}" if path else key)
    elif isinstance(value, list) and value and not _is_plain(value):
        for place, one in enumerate(value):
            yield from _places(one, f"{path}[{place}]")
    elif isinstance(value, list) and value:
        yield from (f"{path}: {one}" for one in value)
    else:
        yield f"{path}: {json.dumps(value)}" if not isinstance(value, str) else f"{path}: {value}"


def _is_plain(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
