"""A value for every pixel, or vision at any size: masks, depth, flow, poses, videos."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import images
from tests.zoo.case import Arguments, Case, lively, simple
from tests.zoo.language import VOCAB, built

__all__ = ["CASES"]

_VIT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip


def _deeplab() -> nn.Module:
    from torchvision.models import mobilenet_v3_small
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation import DeepLabV3
    from torchvision.models.segmentation.deeplabv3 import DeepLabHead
    from torchvision.models.segmentation.fcn import FCNHead

    torch.manual_seed(0)
    body = mobilenet_v3_small(width_mult=0.25).features[:4]
    backbone = IntermediateLayerGetter(body, {"3": "out", "1": "aux"})
    with torch.no_grad():
        found = backbone(torch.zeros(1, 3, 32, 32))
    heads = DeepLabHead(found["out"].shape[1], 5, (2, 4)), FCNHead(found["aux"].shape[1], 5)
    return lively(DeepLabV3(backbone, *heads))


def _raft() -> nn.Module:
    from torchvision.models.optical_flow.raft import BottleneckBlock
    from torchvision.models.optical_flow.raft import _raft as raft

    torch.manual_seed(0)
    return lively(
        raft(
            feature_encoder_layers=(8, 8, 12, 16, 24), feature_encoder_block=BottleneckBlock,
            feature_encoder_norm_layer=nn.InstanceNorm2d, context_encoder_layers=(8, 8, 12, 16, 32),
            context_encoder_block=BottleneckBlock, context_encoder_norm_layer=None,
            corr_block_num_levels=2, corr_block_radius=2, motion_encoder_corr_layers=(16,),
            motion_encoder_flow_layers=(16, 8), motion_encoder_out_channels=18,
            recurrent_block_hidden_state_size=16, recurrent_block_kernel_size=(3,),
            recurrent_block_padding=(1,), flow_head_hidden_size=16, use_mask_predictor=False,
        )
    )  # fmt: skip


def _video_swin() -> nn.Module:
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    torch.manual_seed(0)
    return lively(
        SwinTransformer3d(patch_size=[2, 4, 4], embed_dim=12, depths=[2, 1], num_heads=[2, 2],
                          window_size=[2, 4, 4], num_classes=5, stochastic_depth_prob=0.0)
    )  # fmt: skip


def _mask2former() -> nn.Module:
    import transformers

    backbone = transformers.SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[2, 2, 2, 2],
        window_size=4, out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    return built(
        "Mask2FormerModel", "Mask2FormerConfig", backbone_config=backbone,
        feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=48,
        encoder_layers=1, decoder_layers=3, num_attention_heads=4, dim_feedforward=48,
        num_queries=6,
    )  # fmt: skip


def _dpt() -> nn.Module:
    return built(
        "DPTForDepthEstimation", "DPTConfig", **{**_VIT, "num_hidden_layers": 4}, image_size=32,
        patch_size=8, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
    )  # fmt: skip


def _depth_anything() -> nn.Module:
    import transformers

    backbone = transformers.Dinov2Config(
        **{**_VIT, "num_hidden_layers": 4}, image_size=32, patch_size=8,
        out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False,
    )  # fmt: skip
    return built(
        "DepthAnythingForDepthEstimation", "DepthAnythingConfig", backbone_config=backbone,
        patch_size=8, reassemble_hidden_size=32, neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16, head_hidden_size=8,
    )  # fmt: skip


def _vitpose() -> nn.Module:
    import transformers

    backbone = transformers.VitPoseBackboneConfig(
        **{**_VIT, "intermediate_size": 64}, image_size=[32, 24], patch_size=[8, 8], num_experts=3,
        part_features=8, mlp_ratio=2, out_features=["stage2"],
    )  # fmt: skip
    return built(
        "VitPoseForPoseEstimation", "VitPoseConfig", backbone_config=backbone, num_labels=4
    )


def _sam2() -> nn.Module:
    backbone = {
        "model_type": "sam2_hiera_det_model", "hidden_size": 8, "num_attention_heads": 1,
        "image_size": [64, 64], "blocks_per_stage": [1, 1, 2, 1],
        "embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 2, 4, 8],
        "window_size_per_stage": [4, 2, 2, 2], "global_attention_blocks": [3],
        "window_positional_embedding_background_size": [2, 2],
    }  # fmt: skip
    return built(
        "Sam2Model", "Sam2Config",
        vision_config={
            "backbone_config": backbone, "backbone_channel_list": [64, 32, 16, 8],
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]], "fpn_hidden_size": 32,
        },
        prompt_encoder_config={"hidden_size": 32, "image_size": 64, "patch_size": 16},
        mask_decoder_config={"hidden_size": 32, "mlp_dim": 48, "num_attention_heads": 4,
                             "iou_head_hidden_dim": 16},
    )  # fmt: skip


def _swin2sr() -> nn.Module:
    return built(
        "Swin2SRForImageSuperResolution", "Swin2SRConfig", image_size=16, embed_dim=16,
        depths=[2], num_heads=[2], window_size=4, upscale=2,
    )  # fmt: skip


def _pixtral() -> nn.Module:
    return built("PixtralVisionModel", "PixtralVisionConfig", **_VIT, image_size=64, patch_size=8)


def _siglip2() -> nn.Module:
    text = {**_VIT, "vocab_size": VOCAB, "max_position_embeddings": 16, "projection_size": 32}
    vision = {**_VIT, "patch_size": 4, "num_patches": 16}
    return built("Siglip2Model", "Siglip2Config", text_config=text, vision_config=vision)


def _dinov3() -> nn.Module:
    return built("DINOv3ViTModel", "DINOv3ViTConfig", **_VIT, patch_size=8, num_register_tokens=2)


def _frames(rows: int, height: int, width: int, updates: int = 2) -> Arguments:
    first, second = (torch.rand(rows, 3, height, width) * 2 - 1 for _ in range(2))
    return (first, second), {"num_flow_updates": updates}


def _video(rows: int, frames: int, height: int, width: int) -> Arguments:
    return (torch.randn(rows, 3, frames, height, width),), {}


def _labelled_rows(rows: int) -> Arguments:
    """Which of the datasets it was trained on a picture resembles."""
    pixels = torch.randn(rows, 3, 32, 24)
    return (), {"pixel_values": pixels, "dataset_index": torch.arange(rows) % 3}


def _points(rows: int, points: int) -> Arguments:
    pixels = torch.randn(rows, 3, 64, 64)
    where = torch.rand(rows, 1, points, 2) * 64
    labels = torch.ones(rows, 1, points, dtype=torch.int)
    return (), {"pixel_values": pixels, "input_points": where, "input_labels": labels}


def _sized(*sizes: tuple[int, int]) -> Arguments:
    """Padded together, and how large each one is."""
    most = [max(size[axis] for size in sizes) for axis in (0, 1)]
    pixels = torch.zeros(len(sizes), 3, *most)
    for row, (height, width) in enumerate(sizes):
        pixels[row, :, :height, :width] = torch.randn(3, height, width)
    return (), {"pixel_values": pixels, "image_sizes": torch.tensor(sizes)}


def _bags(*grids: tuple[int, int], length: int = 6, most: int = 20) -> Arguments:
    """Pictures as patches, each with its own grid, and as many texts."""
    pixels = torch.zeros(len(grids), most, 3 * 4 * 4)
    mask = torch.zeros(len(grids), most, dtype=torch.int32)
    for row, (height, width) in enumerate(grids):
        pixels[row, : height * width] = torch.randn(height * width, 3 * 4 * 4)
        mask[row, : height * width] = 1
    ids: Tensor = torch.randint(2, VOCAB, (len(grids), length))
    return (), {
        "input_ids": ids, "pixel_values": pixels, "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor(grids),
    }  # fmt: skip


_ROWS: dict[str, Any] = {"seen": [(2,), (3,), (5,)], "unseen": [(4,), (7,)]}
_SIZES: dict[str, Any] = {
    "seen": [(2, 64, 96), (3, 96, 64), (2, 80, 72)], "unseen": [(4, 72, 112), (5, 128, 64)]
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "seen": [(2, 32, 48), (3, 64, 32), (2, 48, 40)], "unseen": [(4, 40, 64), (5, 56, 32)]
}  # fmt: skip

CASES: list[Case] = [
    simple("deeplab", _deeplab, images, **_SIZES, note="upsampled to the picture, with aux"),
    simple(
        "raft", _raft, _frames, seen=[(2, 128, 136), (3, 144, 128), (2, 136, 152)],
        unseen=[(4, 128, 160), (1, 152, 136)], note="looks up correlations, several times",
    ),
    simple(
        "video_swin", _video_swin, _video, seen=[(2, 4, 32, 48), (1, 6, 48, 32), (2, 8, 40, 36)],
        unseen=[(3, 6, 36, 56), (2, 10, 52, 40)], note="pads to whole windows on three axes",
    ),
    simple(
        "mask2former", _mask2former, images,
        seen=[(2, 64, 96), (3, 96, 64), (2, 128, 96)], unseen=[(4, 96, 128), (1, 64, 160)],
        note="attends where the last mask was",
    ),
    simple(
        "dpt", _dpt, images, seen=[(2, 32, 32), (3, 48, 48), (2, 64, 64)],
        unseen=[(4, 40, 40), (5, 56, 56)], note="squares only: the root of how many patches",
    ),
    simple("depth_anything", _depth_anything, images, **_SMALL),
    simple("vitpose_experts", _vitpose, _labelled_rows, **_ROWS, note="an expert per picture"),
    simple("sam2", _sam2, _points, seen=[(2, 3), (3, 2), (2, 5)], unseen=[(4, 4), (3, 7)]),
    simple(
        "swin2sr", _swin2sr, images, seen=[(2, 16, 20), (3, 24, 16), (2, 20, 28)],
        unseen=[(4, 20, 32), (5, 28, 16)], note="pads, and crops what it enlarged",
    ),
    simple(
        "pixtral_vision", _pixtral, _sized,
        seen=[((32, 48), (24, 16)), ((40, 24), (32, 32), (16, 24)), ((24, 24), (48, 40))],
        unseen=[((56, 32), (24, 40)), ((32, 40), (16, 16), (48, 24))],
        note="crops every picture to its size, one sequence of them all",
    ),
    simple(
        "siglip2", _siglip2, _bags,
        seen=[((4, 5), (3, 4)), ((2, 6), (4, 4), (5, 3)), ((3, 5), (5, 4), (4, 2), (6, 3))],
        unseen=[((4, 3), (2, 5), (3, 3), (5, 4), (6, 2)), ((5, 2),) * 6],
        note="positions resized to each picture's grid",
    ),
    simple("dinov3", _dinov3, images, **_SMALL, note="rotary over the grid"),
]  # fmt: skip
