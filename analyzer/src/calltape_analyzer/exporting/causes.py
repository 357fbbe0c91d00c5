"""Why a trace failed, in one sentence: where in the model, and what to do.

torch's own messages have pages, and name lines of torch. In comes the error. Out goes its first
sentence, the line of the model's code, and for known patterns a way out.
"""

from __future__ import annotations

import contextlib
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from calltape_analyzer.exporting.python_values import reads_values
from calltape_analyzer.programs.attempts import error_text

__all__ = ["cause_of", "place_in_the_model"]

_MAX_CODE = 100
_OWN = Path(__file__).parents[1]
_CALLING = str(Path(__file__).with_name("tracing.py"))
_END_OF_SENTENCE = re.compile(r"\s+\((?:unhinted|Size-like)|\s+consider using|\. |\n")

# What torch says of a model that makes a nested tensor.
_NESTED = re.compile(r"cast NotImplemented to Tensor|nested_tensor_from")

# What torch says of lengths that become sizes, which no other way of tracing helps.
_SIZES_OF_A_TENSOR = re.compile(r"must be tuple of ints,but got FakeTensor")

# What stands in the model's line tells what to do.
_WAYS_OUT = (
    (re.compile(r"pack_padded_sequence|pad_packed_sequence"),
     "pass padded sequences, and mask what follows them"),
    (re.compile(r"\.tolist\(|\.item\(|\bint\(|\bfloat\(|\.numpy\("),
     "keep it a tensor, or pass the number as an argument"),
    (re.compile(r"^\s*(?:el)?if\b|\bif\b.*\belse\b|^\s*while\b|^\s*assert\b|\.any\(|\.all\("),
     "use torch.where or torch.cond, or leave the check out while torch.compiler.is_exporting()"),
    (re.compile(r"\bnonzero\(|\bmasked_select\(|\bunique\(|\[\s*mask\s*\]"),
     "multiply by the mask instead of selecting"),
    (re.compile(r"\bfor\b.+\bin\b|\brange\("),
     "the number of rounds has to be known: loop over a size"),
)  # fmt: skip


def cause_of(error: BaseException) -> str:
    """The first sentence of an error, where in the model it was raised, and for a model that reads
    values with Python what can be done.

    Args:
        error: of a trace, with its traceback.
    """
    text = error_text(error)
    frame = next(_frames_of_the_model(error), None)
    if frame is None:
        return text
    code = (frame.line or "").strip()
    place = _place(frame)
    if _NESTED.search(text):
        return (
            f"{text.partition(': ')[0]}: the model makes a nested tensor at {place}, which "
            "torch.export does not trace (compute on values and offsets, or on padded tensors with "
            "a mask)"
        )
    if not (reads_values(text) or _SIZES_OF_A_TENSOR.search(text)):
        return f"{text} (at {place})"
    kind, _, message = text.partition(": ")
    sentence = _END_OF_SENTENCE.split(message, maxsplit=1)[0].rstrip(".")
    advice = next((way for pattern, way in _WAYS_OUT if pattern.search(code)), None)
    needed = f"{kind}: {sentence}: the model needs the value of a tensor at {place}"
    return f"{needed} ({advice})" if advice else needed


def place_in_the_model(stack: Iterable[traceback.FrameSummary]) -> str | None:
    """The innermost line of the model on a stack, with its file and function; None if there is
    none.

    Args:
        stack: the frames, the innermost last.
    """
    others = _folders_of_others()
    frames = list(stack)
    # Beyond our own call of the model is whoever asked for the export.
    called = max((i for i, frame in enumerate(frames) if frame.filename == _CALLING), default=-1)
    own = [frame for frame in frames[called + 1 :] if not _is_below(frame.filename, others)]
    return _place(own[-1]) if own else None


def _place(frame: traceback.FrameSummary) -> str:
    code = (frame.line or "").strip()
    shown = f"{code[:_MAX_CODE]}{'...' if len(code) > _MAX_CODE else ''}"
    return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}: {shown}"


def _folders_of_others() -> list[str]:
    import torch

    stdlib = Path(sysconfig.get_paths()["stdlib"])
    return [str(folder) for folder in (Path(torch.__file__).parent, _OWN, stdlib)]


def _frames_of_the_model(error: BaseException) -> Iterator[traceback.FrameSummary]:
    """The lines of the model that an error, or what it was raised from, went through; the innermost
    first."""
    others = _folders_of_others()
    known: set[int] = set()
    found: list[traceback.FrameSummary] = []
    one: BaseException | None = error
    while one is not None and id(one) not in known:
        known.add(id(one))
        with contextlib.suppress(Exception):  # sources that cannot be read
            frames = reversed(traceback.extract_tb(one.__traceback__))
            found[:0] = [f for f in frames if not _is_below(f.filename, others)]
        one = one.__cause__ or one.__context__
    return iter(found)


def _is_below(name: str, folders: list[str]) -> bool:
    if name.startswith("<"):  # generated code
        return True
    own = "site-packages"
    return any(name.startswith(f"{f}/") and own not in name[len(f) :] for f in folders)
