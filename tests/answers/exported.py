"""Which cases of the zoo are exported: together they hit the strategies of the exporter, and none
takes long. Every small case is exported as well."""

from __future__ import annotations

__all__ = ["EXPORTED", "TO_ONNX"]

from tests.zoo import CORE

EXPORTED: tuple[str, ...] = (
    *CORE,
    *"""keypoint_rcnn rotary_grows grid_cache codebook top_experts unpadded boxes_above_threshold voxels cut_to_longest skips_full_mask masked_positions pillars float_every_call str_mode timm_naflex wavlm_speakers canine funnel loop_over_rows times_net memory_queue ring_cache carried_state lstm_streamed features_by_hooks timm_efficientnet_same paged_attention beam_step jagged weighted_bags dynamic_graph geometric_topk geometric_sag_pool conformer_longest greedy_transducer ddim_sampler product_of_sizes optional_mask multi_task either_ids_or_embeds kept_boxes region_pooling assisted qwen2_moe dac""".split(),
)
TO_ONNX: tuple[str, ...] = ()
