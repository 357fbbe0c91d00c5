"""Why the zoo's models fail, in words, and what a person's own export does."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["NOT_TRIED", "REASONS", "Cause", "Reason", "reason_for"]

NOT_TRIED = "not tried"


class Cause(Enum):
    """What stops an export: a row of the table on the page."""

    GUARDS = "Guards of `torch.export` exclude sizes that the traced call did not have"
    LOOPS = "A Python loop or length fixes the number of tokens, frames, rows, or images"
    VALUES = "The model branches on values in a tensor, or splits by them"
    RECORDED_SIZES = "The program accepts only recorded sizes"
    STATE = "Outputs depend on random numbers, or on state that the program does not keep"
    UNSUPPORTED = "The exporter rejects a type or an operator"


class Reason(NamedTuple):
    """Why one model fails.

    Attributes:
        cause: what it has in common with others.
        why: in words; empty where what the exporter said has to do.
        by_hand: what an export without calltape does.
    """

    cause: Cause
    why: str = ""
    by_hand: str = NOT_TRIED


_TOKENS = "a Python loop scans the tokens: the program is for one prompt length"
_IMAGES = "a Python loop over the images: the program is for one number of images"
_SCAN = Reason(Cause.LOOPS, _TOKENS, "fails as well: the length is specialized")
_LOOP = Reason(Cause.LOOPS, _TOKENS)
_NESTED = Reason(
    Cause.UNSUPPORTED,
    "torch.export takes no nested tensors; calltape says so before it starts, and what to do",
    "fails as well, also where the model makes the nested tensor of values and offsets",
)
_GUARDS, _VALUES = Reason(Cause.GUARDS), Reason(Cause.VALUES)
_RECORDED = Reason(Cause.RECORDED_SIZES)

REASONS: dict[tuple[str, str], Reason] = {
    ("mamba", ""): _SCAN,
    ("jamba", ""): _SCAN,
    ("falcon_mamba", ""): _LOOP,
    ("zamba", ""): _LOOP,
    ("rwkv", ""): _LOOP,
    ("greedy_transducer", ""): Reason(
        Cause.LOOPS, "a Python loop over the frames: the program is for one number of frames"
    ),
    ("loop_over_rows", ""): Reason(
        Cause.LOOPS, "a Python loop over the rows: the program is for one number of rows"
    ),
    ("llava_manual", ""): Reason(
        Cause.LOOPS, _IMAGES, "fails as well: the number of images is specialized"
    ),
    ("qwen_image", ""): Reason(Cause.LOOPS),
    ("packed_sequence", ""): Reason(
        Cause.LOOPS,
        "the layer reads the batch sizes with Python: each is a constant of the program",
        "fails as well, also with the tensors of the `PackedSequence` as arguments",
    ),
    ("minimax", ""): _GUARDS,
    ("xlstm", ""): _GUARDS,
    ("xlnet_memories", ""): _GUARDS,
    ("longformer", "torch"): _GUARDS,
    ("big_bird", "torch"): _GUARDS,
    ("funnel", ""): _GUARDS,
    ("canine", ""): _GUARDS,
    ("timm_maxvit", ""): _GUARDS,
    ("faster_rcnn", ""): _GUARDS,
    ("keypoint_rcnn", ""): _GUARDS,
    ("grounding_dino", ""): _GUARDS,
    ("raft", "torch"): _GUARDS,
    ("mask2former", ""): _GUARDS,
    ("wavlm_speakers", ""): _GUARDS,
    ("vae_decode_tiled", ""): _GUARDS,
    ("grid_cache", ""): _GUARDS,
    ("t5_loss", ""): Reason(
        Cause.GUARDS,
        "two labels are the boundary: shifted by one, a single one is left, which torch"
        " specializes",
        "fails as well: traced with 4 labels it takes 3 or more, traced with 2 it takes only 2",
    ),
    ("granite_speech", ""): Reason(
        Cause.GUARDS,
        "the model pads sounds whose length is not a multiple of its block, and no recorded sound"
        " had such a length",
    ),
    ("longformer", "onnx"): _VALUES,
    ("mask_rcnn", ""): _VALUES,
    ("times_net", ""): _VALUES,
    ("lumina2", ""): Reason(
        Cause.VALUES,
        "the model builds each row by its length, which the mask tells: some programs are for the"
        " lengths of their trace",
    ),
    ("qwen2_vl_manual", ""): Reason(
        Cause.VALUES,
        "the vision tower splits the patches where the data of the grids says",
        "fails as well, also with every size fixed, and with the lengths of the images passed",
    ),
    ("packs_inside", ""): Reason(
        Cause.VALUES, "`pack_padded_sequence` needs the values of the lengths", "fails as well"
    ),
    ("encodec", ""): Reason(
        Cause.VALUES,
        "the padding of a convolution is an `if` on the value of a tensor",
        "fails as well, also with every size fixed",
    ),
    ("longformer_local", ""): _RECORDED,
    ("timm_condconv", ""): _RECORDED,
    ("timm_naflex", ""): _RECORDED,
    ("raft", "onnx"): _RECORDED,
    ("recurrent_gemma", ""): Reason(
        Cause.STATE,
        "the model keeps its recurrent state in Python attributes, which no program has",
    ),
    ("streamed_convolution", ""): Reason(Cause.STATE),
    ("reformer", ""): Reason(Cause.STATE),
    ("scripted_part", ""): Reason(
        Cause.UNSUPPORTED,
        "a part is a TorchScript module; calltape says so before it starts, and what to export",
        "fails as well",
    ),
    ("batch_statistics", "onnx"): Reason(
        Cause.UNSUPPORTED,
        "a batch norm in training mode has no ONNX translation; calltape says what to do",
        "gives other values: torch.onnx takes the running statistics",
    ),
    ("quantized_dynamic", ""): Reason(
        Cause.UNSUPPORTED, "torch.export does not take the packed weights of `quantize_dynamic`"
    ),
    ("big_bird", "onnx"): Reason(Cause.UNSUPPORTED),
    ("nested_encoder", ""): _NESTED,
    ("nested_pool", ""): _NESTED,
}
"""By case and target; an empty target stands for both."""


def reason_for(case: str, target: str) -> Reason | None:
    """Why a case fails with a target, if somebody has found out."""
    return REASONS.get((case, target)) or REASONS.get((case, ""))
