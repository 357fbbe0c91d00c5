"""Which cases of the zoo are exported: most of its core, and others that need other strategies of
the exporter. Left out is what takes more than 15 s of processor time. Every small case is exported
as well."""

from __future__ import annotations

from tests.zoo import CORE

__all__ = ["EXPORTED", "TO_ONNX"]

_SLOW = {"jamba", "llava_manual", "mamba", "mistral_across_window", "qwen2_vl_manual"}

# fmt: off
EXPORTED: tuple[str, ...] = (
    *(name for name in CORE if name not in _SLOW),
    # ints and floats of tensors, results whose size only values tell
    "boxes_above_threshold", "codebook", "conformer_longest", "cut_to_longest",
    "geometric_sag_pool", "geometric_topk", "grid_cache", "jagged", "kept_boxes",
    "masked_positions", "paged_attention", "pillars", "skips_full_mask", "top_experts", "unpadded",
    "voxels", "weighted_bags",
    # several programs, or one for each size or value
    "either_ids_or_embeds", "float_every_call", "loop_over_rows", "multi_task", "optional_mask",
    "str_mode", "times_net",
    # state, loops, and sizes in Python
    "beam_step", "carried_state", "dynamic_graph", "features_by_hooks", "lstm_streamed",
    "memory_queue", "product_of_sizes", "region_pooling", "ring_cache", "rotary_grows",
    "timm_efficientnet_same",
)
"""To a program of torch."""

TO_ONNX: tuple[str, ...] = (
    "boxes", "ceiling", "conv_net", "dict_key_order", "float_branch", "int_slice", "lstm_state",
    "padding_mask", "squeezed", "suppressed_boxes", "ties", "two_kinds_of_bags", "vit_any_size",
)
"""To an ONNX model: of the zoo, and of the small cases."""
# fmt: on
