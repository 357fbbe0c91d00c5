"""Tapes to survey, and surveys as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calltape_analyzer import survey
from calltape_analyzer.surveying.survey import Loop
from calltape_analyzer.surveying.target_survey import TargetSurvey
from tests.analyzer.reading.summarised import Model, some
from tests.analyzer.tapes import write_tape

__all__ = ["fleet", "of", "tape_of", "written"]


def tape_of(path: Path, count: int = 3, *, recording: int = 1, **options: Any) -> Path:
    """A tape of some calls of one model."""
    options.setdefault("target", Model())
    return write_tape(path, some(count), tape_id=bytes([recording]) * 16, **options)


def fleet(folder: Path, count: int = 6) -> list[Path]:
    """Sealed tapes, of which one has no table of inputs."""
    return [tape_of(folder / f"{n}.tape", 5 + n, recording=n, table=n != 2) for n in range(count)]


def of(*paths: Path) -> TargetSurvey:
    return survey(paths, Loop()).target()


def written(out: Path, *paths: Path) -> Path:
    survey(paths, Loop()).write(out, inputs=[str(path) for path in paths])
    return out
