"""Why something in the zoo is not reproduced, in words, and what a person's own export does."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["REASONS", "Reason"]


class Reason(NamedTuple):
    """One line of the table, without its first columns."""

    why: str
    by_hand: str


_SCAN = Reason(
    "a Python loop scans the tokens: the length of the prompt is a constant of the program",
    "fails as well: the length is specialized",
)

_LOOP = Reason(_SCAN.why, "not tried")

_NESTED = Reason(
    "torch.export takes no nested tensor; the refusal says so at once, and what to do",
    "fails as well, and where the model makes one of values and offsets",
)

REASONS: dict[tuple[str, str], Reason] = {
    ("mamba", ""): _SCAN,
    ("jamba", ""): _SCAN,
    ("falcon_mamba", ""): _LOOP,
    ("zamba", ""): _LOOP,
    ("rwkv", ""): _LOOP,
    ("greedy_transducer", ""): Reason(
        "a Python loop over the frames: how many they are is a constant of the program", "not tried"
    ),
    ("recurrent_gemma", ""): Reason(
        "the model keeps its recurrent state in Python attributes, which no program has",
        "not tried",
    ),
    ("pixtral_vision", ""): Reason(
        "a Python loop over the pictures: their number is a constant of the program", "not tried"
    ),
    ("loop_over_rows", ""): Reason(
        "a Python loop over the rows: their number is a constant of the program", "not tried"
    ),
    ("lumina2", ""): Reason(
        "the model builds each row by its length, which the mask tells: some programs are for the"
        " lengths of their trace",
        "not tried",
    ),
    ("quantized_dynamic", ""): Reason(
        "torch.export does not take the packed weights of `quantize_dynamic`", "not tried"
    ),
    ("llava_manual", ""): Reason(
        "a Python loop over the pictures: their number is a constant of the program",
        "fails as well: the number of pictures is specialized",
    ),
    ("t5_loss", ""): Reason(
        "two labels are the boundary: shifted by one, a single one is left, which torch"
        " specializes",
        "fails as well: traced with 4 labels it takes 3 or more, traced with 2 it takes only 2",
    ),
    ("qwen2_vl_manual", ""): Reason(
        "the vision tower splits the patches where the data of the grids says",
        "fails as well, even with nothing free, and with the lengths of the pictures passed",
    ),
    ("packs_inside", ""): Reason(
        "`pack_padded_sequence` needs the values of the lengths", "fails as well"
    ),
    ("packed_sequence", ""): Reason(
        "the layer reads the batch sizes with Python: a constant of the program each",
        "fails as well, with the tensors of the `PackedSequence` as arguments too",
    ),
    ("encodec", ""): Reason(
        "the padding of a convolution is an `if` on the value of a tensor",
        "fails as well, even with nothing free",
    ),
    ("last_token_embedding", ""): Reason(
        "an `if` on the mask: torch makes a constant of the length where it knows the values",
        "not tried",
    ),
    ("granite_speech", ""): Reason(
        "the model pads only what is no multiple of its block, and no recorded sound was that",
        "not tried",
    ),
    ("nested_encoder", ""): _NESTED,
    ("nested_pool", ""): _NESTED,
}
"""By case and target; an empty target stands for both."""
