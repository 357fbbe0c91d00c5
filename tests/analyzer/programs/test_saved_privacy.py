"""The table of privacy is true of saved programs: secrets in the calls that they were made of,
searched for in every byte of what is saved, of what is said and of the log, packed or not."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape, export
from tests.analyzer.exported import call, taped
from tests.recorder.privacy_table import InPrograms, Told

MODES: dict[str, Any] = {
    "all": "all", "none": "none",
    "path": {"*": "all", "prompt": "none", "mode": "none", "ids": "none", "image": "none",
             "outputs": "none"},
}  # fmt: skip
PROMPTS = [f"prompt {n} of <wombat>" for n in range(3)]
# Without their text no program can be made that takes them.
WITHHELD = ["prompt", "mode"]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(90_000, 4)

    def forward(self, ids: Any, image: Any, more: Any, prompt: str = "", mode: str = "") -> Any:
        if mode == "<wombat> raises":
            raise ValueError("a message of <wombat>")
        found = self.embedding(ids) * image.mean() + next(iter(more.values()))
        return {"found": found, "said": "text of <wombat> that is returned"}


def traffic() -> tuple[list[Any], dict[InPrograms, list[bytes]]]:
    """The calls, and per row of the table the bytes that betray it."""
    ids = [torch.randint(70_000, 90_000, (2, size)) for size in (3, 5, 7)]
    images = [torch.randn(3, 8) for _ in ids]
    calls = [
        call(i, image, {"key of <wombat>": torch.ones(4)}, prompt=prompt, mode="mode of <wombat>")
        for i, image, prompt in zip(ids, images, PROMPTS, strict=True)
    ]
    return calls, {
        InPrograms.ELEMENTS: [x.numpy().tobytes()[:16] for x in (*ids, *images)],
        InPrograms.SAME_TEXT: [b"mode of <wombat>"],
        InPrograms.OTHER_TEXT: [prompt.encode() for prompt in PROMPTS[1:]],
        InPrograms.KEYS: [b"key of <wombat>"],
        InPrograms.RETURNED_TEXT: [b"text of <wombat> that is returned"],
        InPrograms.MESSAGES: [b"a message of <wombat>"],
    }


def pieces(folder: Path) -> Iterator[bytes]:
    """All that is in the files, unpacked as well."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()
        if path.suffix == ".pt2":
            with zipfile.ZipFile(path) as archive:
                yield from map(archive.read, archive.namelist())
        if path.suffix == ".json":
            yield from unpacked(json.loads(path.read_text()))


def unpacked(document: Any) -> Iterator[bytes]:
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        for part in document:
            yield from unpacked(part)
    elif isinstance(document, str):
        with contextlib.suppress(ValueError):
            yield base64.b64decode(document, validate=True)


def saved(tape: Tape, model: Model, folder: Path, *, withheld: bool) -> list[bytes]:
    """The bytes of programs, and the words said of them."""
    if withheld:
        tape.remove_inputs(WITHHELD)
    programs = export(tape, model)
    programs.save(folder)
    said = [repr(programs), programs.verify().table(), *programs]
    said += [repr(note) for program in programs.values() for note in program.all_notes]
    said += [f"{attempt!r} {attempt.what}" for attempt in programs.attempts]
    return [*pieces(folder), *(text.encode() for text in said)]


@pytest.mark.integration
@pytest.mark.parametrize("mode", MODES)
def test_saved_programs_hold_what_the_table_says(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="calltape_analyzer")
    calls, secrets = traffic()
    model = Model().eval()
    raising = call(*calls[0][0], mode="<wombat> raises")
    tape = taped(tmp_path, model, [*calls, raising], values=MODES[mode])
    places = saved(tape, model, tmp_path / "saved", withheld=mode != "all")
    places += [record.getMessage().encode() for record in caplog.records]
    assert secrets.keys() == set(InPrograms)
    wrong = []
    for row, traces in secrets.items():
        is_there = any(trace in place for place in places for trace in traces)
        if is_there != (row.told(mode) is Told.YES):
            wrong.append(f"{row}: {is_there}")
    assert not wrong
