"""What the tapes of a served model have, in terms of the requests that were sent."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from calltape_analyzer import Tape, open_tape
from tests.servers.service import NEW_TOKENS, ROOT, Answer, prompt

__all__ = ["adds_up", "altered", "analysis", "missing", "tape_of", "tapes"]

_CLASSES = [DynamicCache, CausalLMOutputWithPast]


def tapes(what: Path | Iterable[Path]) -> Tape:
    """A file, or everything in a folder or in some files."""
    paths = str(what) if isinstance(what, Path) else [str(path) for path in what]
    return open_tape(paths, classes=_CLASSES)


def tape_of(folder: Path, worker: int) -> Tape:
    """Everything that one worker wrote."""
    name = re.compile(rf"\w+-p?{worker}[.-]")
    files = [path for path in sorted(folder.glob("*.tape")) if name.match(path.name)]
    return open_tape([str(path) for path in files], classes=_CLASSES)


def adds_up(tape: Tape) -> bool:
    """Every call that was seen is on the tape, or counted as not there. A process that is killed
    may have written a call that began after one that had not ended yet."""
    coverage = tape.coverage
    return coverage.kept == len(tape) == coverage.seen - sum(coverage.dropped.values())


def altered(answers: Iterable[Answer]) -> list[int]:
    """The numbers of those requests that were answered otherwise than the model answers here, where
    nobody records it."""
    spec = importlib.util.spec_from_file_location(
        "model", ROOT / "examples/fastapi_server/model.py"
    )
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model = example.tiny_llama()
    return [answer.number for answer in answers if _generated(model, answer.number) != answer.ids]


def _generated(model: Any, number: int) -> tuple[int, ...]:
    ids = torch.tensor([prompt(number)])
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        tokens = model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False
        )
    return tuple(tokens[0, ids.shape[1] :].tolist())


def missing(tape: Tape, answers: Iterable[Answer]) -> list[int]:
    """The numbers of those requests of which the tape lacks a call of the model, or has results
    that are not what was answered."""
    generations = _generations(tape)
    return [
        answer.number
        for answer in answers
        if generations.get(tuple(prompt(answer.number))) != answer.ids
    ]


def _generations(tape: Tape) -> dict[tuple[int, ...], tuple[int, ...]]:
    """What was generated for each prompt, as the recorded logits tell."""
    under_way: dict[tuple[str, int], tuple[tuple[int, ...], list[int]]] = {}
    done: dict[tuple[int, ...], tuple[int, ...]] = {}
    # One thread answers one request after the other; among the threads the calls mix.
    for call in sorted(tape, key=lambda call: (call.path, call.number)):
        thread = (call.path, call.thread)
        ids = tuple(call.inputs.kwargs["input_ids"][0].tolist())
        if len(ids) > 1:
            under_way[thread] = (ids, [])
        if thread not in under_way:
            continue  # its prompt is on no tape
        if call.error is not None:
            del under_way[thread]
            continue
        start, tokens = under_way[thread]
        tokens.append(int(call.outputs.logits[0, -1].argmax()))
        if len(tokens) == NEW_TOKENS:
            done[start] = tuple(tokens)
    return done


def analysis(tape: Tape) -> dict[str, int]:
    """The variants and how many calls each has; that the analysis finds what a person would."""
    variants = tape.variants()
    prefill = variants[0]
    ids = prefill.infer_dynamic_shapes()["input_ids"]
    assert list(ids) == [1], ids  # the batch was always 1, the length varied
    cache = tape.infer_dynamic_shapes()["cache"]
    assert {tuple(axes) for axes in cache} == {(2,)}, cache
    return {variant.name: len(variant) for variant in variants}
