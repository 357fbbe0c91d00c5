"""Exports as a person would write them, of what the zoo does not export, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tests.zoo import CASES, audio, encoder_decoder, multimodal, ragged, recurrent
from tests.zoo.case import Arguments
from tests.zoo.language import prompt

__all__ = ["ATTEMPTS", "Attempt", "Written"]


@dataclass(frozen=True)
class Written:
    """What a person writes to export a model.

    Attributes:
        module: the model, or a wrapper that takes and returns tensors.
        arguments: to trace with.
        shapes: which dimensions are free.
        others: calls that the program should serve as well, as the case asks for them.
    """

    module: nn.Module
    arguments: Arguments
    shapes: Any
    others: list[Arguments]


@dataclass(frozen=True)
class Attempt:
    """One export by hand.

    Attributes:
        case: of the zoo.
        tried: in words.
        written: given the hint for what is free, what a person would write.
        words: a pattern that torch's error has.
        free: the hint, ``DYNAMIC`` or ``AUTO``.
        strict: how to trace.
        to: ``torch`` or ``onnx``.
    """

    case: str
    tried: str
    written: Callable[[Any], Written]
    words: str
    free: str = "DYNAMIC"
    strict: bool = False
    to: str = "torch"

    @property
    def name(self) -> str:
        """Unique among the attempts."""
        mode = "strict" if self.strict else "non-strict"
        return f"{self.case}, {self.tried}: {self.to}, {mode}, Dim.{self.free}"


class Logits(nn.Module):
    """A model of transformers by name of its tensors: no cache, no output class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class FromText(Logits):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


class FromPicture(Logits):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> Tensor:
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values
        ).logits


class FromGrid(Logits):
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        pixel_values: Tensor,
        image_grid_thw: Tensor,
        mm_token_type_ids: Tensor,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        return self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            pixel_values=pixel_values,
            image_grid_thw=image_grid_thw,
            mm_token_type_ids=mm_token_type_ids,
            **({} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}),
        ).logits


class Loss(Logits):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
        return outputs.loss, outputs.logits


class Hidden(Logits):
    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.model(pixel_values).last_hidden_state


class Codes(Logits):
    def forward(self, input_values: Tensor) -> Tensor:
        return self.model(input_values).audio_values


class Repacked(nn.Module):
    """A packed sequence as the tensors in it, which is what a program can take."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Tensor, sizes: Tensor, order: Tensor, back: Tensor) -> Tensor:
        return self.model(PackedSequence(data, sizes, order, back))


def _text(case: str, free: Any) -> Written:
    plane = {0: free, 1: free}
    shapes = {"input_ids": plane, "attention_mask": plane}
    others: list[Arguments] = [((), prompt(4, 7)), ((), prompt(5, 12))]
    return Written(FromText(CASES[case].make()), ((), prompt(3, 9)), shapes, others)


def _pictures(free: Any) -> Written:
    plane = {0: free, 1: free}
    shapes = {"input_ids": plane, "attention_mask": plane, "pixel_values": {0: free}}
    given = multimodal.llava_inputs
    others: list[Arguments] = [((), given(4, 7)), ((), given(5, 12))]
    module = FromPicture(CASES["llava_manual"].make())
    return Written(module, ((), given(3, 9)), shapes, others)


def _grids(free: Any, sums: bool = False) -> Written:
    def given(batch: int, length: int) -> dict[str, Tensor]:
        found = multimodal.qwen2_vl_inputs(batch, length)
        if sums:
            patches = found["image_grid_thw"].prod(1).cumsum(0, dtype=torch.int32)
            found["cu_seqlens"] = nn.functional.pad(patches, (1, 0))
        return found

    shapes = {
        name: {0: free} if name in ("pixel_values", "image_grid_thw", "cu_seqlens")
        else {0: free, 1: free}
        for name in given(3, 9)
    }  # fmt: skip
    module = FromGrid(CASES["qwen2_vl_manual"].make())
    return Written(module, ((), given(3, 9)), shapes, [((), given(2, 7))])


def _fixed_grids(_: Any) -> Written:
    given = multimodal.qwen2_vl_inputs(3, 9)
    return Written(FromGrid(CASES["qwen2_vl_manual"].make()), ((), given), None, [((), given)])


def _labels(free: Any, length: int = 4) -> Written:
    given, plane = encoder_decoder.labelled, {0: free, 1: free}
    shapes = {"input_ids": plane, "attention_mask": plane, "labels": plane}
    others = [given(4, 6, 5), given(5, 12, 2)]
    return Written(Loss(CASES["t5_loss"].make()), given(3, 9, length), shapes, others)


def _padded(free: Any) -> Written:
    given, shapes = recurrent.padded, ({0: free, 1: free}, {0: free})
    return Written(CASES["packs_inside"].make(), given(3, 9), shapes, [given(5, 6), given(2, 12)])


def _packed(batch: int, length: int) -> Arguments:
    return tuple(recurrent.packed(batch, length)[0][0]), {}


def _repacked(free: Any) -> Written:
    module = Repacked(CASES["packed_sequence"].make())
    return Written(module, _packed(3, 9), ({0: free},) * 4, [_packed(5, 6), _packed(2, 12)])


def _sounds(free: Any) -> Written:
    given = audio.coded
    shapes = {"input_values": {0: free, 2: free}}
    return Written(Codes(CASES["encodec"].make()), given(3, 240), shapes, [given(4, 280)])


def _fixed_sounds(_: Any) -> Written:
    given = audio.coded(3, 240)
    return Written(Codes(CASES["encodec"].make()), given, None, [given])


def _windows(free: Any) -> Written:
    """Only the height is free: with both it takes torch minutes."""
    module = Hidden(CASES["swin_any_size"].make())
    seen, other = (((torch.randn(2, 3, height, 32),), {}) for height in (64, 40))
    return Written(module, seen, ({2: free},), [other])


def _half(free: Any) -> Written:
    case = CASES["bfloat16"]
    seen, other = case.unseen(case.make())
    return Written(case.make(), seen, ({0: free},), [other])


def _nested(name: str, free: Any) -> Written:
    case = CASES[name]
    seen, other = case.unseen(case.make())
    return Written(case.make(), seen, None, [seen, other])


def _nested_inside(free: Any) -> Written:
    case = CASES["ragged_encoder"]
    seen, other = case.unseen(case.make())
    return Written(ragged.RaggedInside().eval(), seen, ({0: free}, {0: free}), [other])


_SPECIALIZED = r"as dynamic but your code specialized it to be a constant"
_GUARD = r"another size: AssertionError: Guard failed"
_DATA = r"Could not guard on data-dependent expression"


def _modes(
    case: str,
    tried: str,
    written: Callable[[Any], Written],
    *,
    dynamic: str,
    auto: str,
    strict: str,
) -> list[Attempt]:
    """The three ways to ask torch for the same."""
    return [
        Attempt(case, tried, written, dynamic),
        Attempt(case, tried, written, auto, free="AUTO"),
        Attempt(case, tried, written, strict, strict=True),
    ]


_SPECIALIZES = {"dynamic": _SPECIALIZED, "auto": _GUARD, "strict": _SPECIALIZED}
_READS = {"dynamic": _DATA, "auto": _DATA, "strict": _DATA}

ATTEMPTS: list[Attempt] = [
    *_modes("mamba", "a prompt", partial(_text, "mamba"), **_SPECIALIZES),
    *_modes("jamba", "a prompt", partial(_text, "jamba"), **_SPECIALIZES),
    *_modes("llava_manual", "prompt and pictures", _pictures, **_SPECIALIZES),
    *_modes("t5_loss", "labels of 4", _labels, dynamic=_GUARD, auto=_GUARD, strict=_GUARD),
    Attempt("t5_loss", "labels of 2", partial(_labels, length=2), _SPECIALIZED),
    *_modes("qwen2_vl_manual", "prompt, patches and grids", _grids, **_READS),
    Attempt("qwen2_vl_manual", "nothing free", _fixed_grids, _DATA),
    Attempt(
        "qwen2_vl_manual", "lengths of the pictures passed", partial(_grids, sums=True), _DATA,
        free="AUTO",
    ),
    *_modes(
        "packs_inside", "sequences and lengths", _padded,
        dynamic=r"zeros\(\): argument 'size'", auto=r"zeros\(\): argument 'size'",
        strict="pack_padded_sequence",
    ),
    *_modes(
        "packed_sequence", "the tensors in it", _repacked,
        dynamic="Could not extract specialized integer", strict=_DATA,
        auto="Could not extract specialized integer",
    ),
    *_modes("encodec", "sounds", _sounds, dynamic=_DATA, auto=_DATA,
            strict="Data-dependent branching"),
    Attempt("encodec", "nothing free", _fixed_sounds, _DATA),
    *(
        Attempt(name, "a nested tensor", partial(_nested, name), "NestedIntNode")
        for name in ("nested_encoder", "nested_pool")
    ),
    Attempt(
        "nested_encoder", "a nested tensor", partial(_nested, "nested_encoder"), _DATA, strict=True
    ),
    # torch makes a program of it, and cannot run it.
    Attempt(
        "nested_pool", "a nested tensor", partial(_nested, "nested_pool"),
        "SyntaxError: invalid syntax", strict=True,
    ),
    Attempt(
        "nested_encoder", "made of values and offsets", _nested_inside, "does not support tracing",
        free="AUTO",
    ),
    Attempt(
        "nested_encoder", "made of values and offsets", _nested_inside, "NotImplemented",
        free="AUTO", strict=True,
    ),
    Attempt("swin_any_size", "heights", _windows, _GUARD, free="AUTO"),
    Attempt("bfloat16", "rows", _half, r"Could not find an implementation for Gemm", to="onnx"),
]  # fmt: skip
