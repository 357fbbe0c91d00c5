"""Why a trace failed: where in the model, and what to do.

torch's messages fill pages and name lines of torch. Takes the error; returns its meaning, the line
of the model's code, and advice for known patterns.
"""

from __future__ import annotations

import contextlib
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from calltape_analyzer.facts import Fact
from calltape_analyzer.foreign_errors import ErrorMeaning, failure_of, meanings_of
from calltape_analyzer.programs.reasons import Advice, Cause, CauseKind

__all__ = ["cause_of", "place_in_the_model"]

_MAX_CODE = 100
_CALLTAPE = Path(__file__).parents[1]
_TRACING = str(Path(__file__).with_name("tracing.py"))
# The code in the model's line shows what to do.
_ADVICE = (
    (Advice.PAD, re.compile(r"pack_padded_sequence|pad_packed_sequence")),
    (Advice.KEEP_TENSOR, re.compile(r"\.tolist\(|\.item\(|\bint\(|\bfloat\(|\.numpy\(")),
    (Advice.USE_WHERE, re.compile(
        r"^\s*(?:el)?if\b|\bif\b.*\belse\b|^\s*while\b|^\s*assert\b|\.any\(|\.all\("
    )),
    (Advice.MULTIPLY, re.compile(r"\bnonzero\(|\bmasked_select\(|\bunique\(|\[\s*mask\s*\]")),
    (Advice.LOOP_OVER_SIZE, re.compile(r"\bfor\b.+\bin\b|\brange\(")),
)  # fmt: skip


def cause_of(error: BaseException) -> Fact:
    """Why a trace failed: the error, the line of the model that raised it, and advice for a model
    that reads values with Python. Without a line of the model, the error alone.

    Args:
        error: of a trace, with its traceback.
    """
    why = failure_of(error)
    frame = next(_frames_of_the_model(error), None)
    if frame is None:
        return why
    place = _place(frame)
    kinds = tuple(dict.fromkeys((*why.kinds, *meanings_of(place))))
    if ErrorMeaning.NESTED_TENSOR in why.kinds:
        return Cause(CauseKind.NESTED_TENSOR, why, place, kinds=kinds)
    if not {ErrorMeaning.NEEDS_VALUE, ErrorMeaning.SIZES_OF_TENSOR}.intersection(why.kinds):
        return Cause(CauseKind.ERROR, why, place, kinds=kinds)
    code = (frame.line or "").strip()
    advice = next((advice for advice, pattern in _ADVICE if pattern.search(code)), None)
    return Cause(CauseKind.NEEDS_VALUE, why, place, advice, kinds)


def place_in_the_model(stack: Iterable[traceback.FrameSummary]) -> str | None:
    """The innermost line of the model on a stack, with its file and function; None if there is
    none.

    Args:
        stack: the frames, the innermost last.
    """
    other_folders = _folders_of_others()
    frames = list(stack)
    # Frames outside of our own call of the model belong to the caller of the export.
    called = max((i for i, frame in enumerate(frames) if frame.filename == _TRACING), default=-1)
    model_frames = [
        frame for frame in frames[called + 1 :] if not _is_below(frame.filename, other_folders)
    ]
    return _place(model_frames[-1]) if model_frames else None


def _place(frame: traceback.FrameSummary) -> str:
    code = (frame.line or "").strip()
    shown = f"{code[:_MAX_CODE]}{'...' if len(code) > _MAX_CODE else ''}"
    return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}: {shown}"


def _folders_of_others() -> list[str]:
    import torch

    stdlib = Path(sysconfig.get_paths()["stdlib"])
    return [str(folder) for folder in (Path(torch.__file__).parent, _CALLTAPE, stdlib)]


def _frames_of_the_model(error: BaseException) -> Iterator[traceback.FrameSummary]:
    """The lines of the model in the traceback of an error and of its causes, the innermost
    first."""
    other_folders = _folders_of_others()
    seen: set[int] = set()
    frames_of_model: list[traceback.FrameSummary] = []
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        with contextlib.suppress(Exception):  # sources that cannot be read
            frames = reversed(traceback.extract_tb(cause.__traceback__))
            frames_of_model[:0] = [f for f in frames if not _is_below(f.filename, other_folders)]
        cause = cause.__cause__ or cause.__context__
    return iter(frames_of_model)


def _is_below(name: str, folders: list[str]) -> bool:
    if name.startswith("<"):  # generated code
        return True
    installed = "site-packages"
    return any(name.startswith(f"{f}/") and installed not in name[len(f) :] for f in folders)
