"""What the tapes of a served model have, in terms of the requests that were sent."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from calltape_analyzer import Tape, open_tape
from tests.servers.service import NEW_TOKENS, ROOT, Answer, acknowledged, prompt

__all__ = ["adds_up", "altered", "analysis", "check_killed", "check_stopped", "missing", "tapes"]


def tapes(what: Path | Iterable[Path]) -> Tape:
    """A file, or everything in a folder or in some files."""
    from transformers import DynamicCache
    from transformers.modeling_outputs import CausalLMOutputWithPast

    paths = str(what) if isinstance(what, Path) else [str(path) for path in what]
    return open_tape(paths, classes=[DynamicCache, CausalLMOutputWithPast])


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
    import torch

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


def check_stopped(folder: Path, answers: Sequence[Answer]) -> tuple[Tape, dict[str, int]]:
    """After an orderly stop, everything that was answered is on the tapes. Returns them, and their
    variants."""
    assert altered(answers) == []
    tape = tapes(folder)
    assert tape.sealed
    assert not tape.damage
    assert missing(tape, answers) == []
    assert tape.coverage.seen == tape.coverage.kept == len(tape)
    variants = analysis(tape)
    print(f"\nSIGTERM: {len(answers)} answers, {len(tape)} calls, 0 missing, {variants}")
    return tape, variants


def check_killed(folder: Path, answers: Sequence[Answer]) -> None:
    """After SIGKILL, the tape of each worker has what it said is there."""
    for worker, known in acknowledged(answers).items():
        name = re.compile(rf"\w+-p?{worker}[.-]")
        tape = tapes([path for path in sorted(folder.glob("*.tape")) if name.match(path.name)])
        assert not tape.sealed
        assert tape.verify() == []
        assert missing(tape, known) == []
        assert adds_up(tape)
        given = [answer for answer in answers if answer.worker == worker]
        print(
            f"\nSIGKILL: {len(known)} answers acknowledged, 0 missing; of all {len(given)} that"
            f" this worker gave, {len(missing(tape, given))}"
        )
    assert altered(answers) == []
    analysis(tapes(folder))
