"""Vision: classifiers, detectors, segmentation, and pairs of picture and text."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import images
from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import made
from tests.zoo.language import VOCAB, built

__all__ = ["CASES"]

_VIT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 32, "eos_token_id": VOCAB - 1,
    "bos_token_id": 0, "pad_token_id": 1,
}  # fmt: skip

_vit = partial(built, "ViTForImageClassification", "ViTConfig", **_VIT)
_dinov2 = partial(built, "Dinov2Model", "Dinov2Config", **_VIT, layerscale_value=0.5)
_clip = partial(
    built, "CLIPModel", "CLIPConfig", text_config=_TEXT, vision_config=_VIT, projection_dim=16
)
_siglip = partial(built, "SiglipModel", "SiglipConfig", text_config=_TEXT, vision_config=_VIT)


def _resnet() -> nn.Module:
    return built(
        "ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16],
        depths=[1, 1], layer_type="basic",
    )  # fmt: skip


def _convnext() -> nn.Module:
    return built(
        "ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[8, 16], depths=[1, 1],
        num_stages=2, patch_size=2, layer_scale_init_value=0.5,
    )  # fmt: skip


def _swin() -> nn.Module:
    return built(
        "SwinModel", "SwinConfig", image_size=32, patch_size=2, embed_dim=8, depths=[2, 1],
        num_heads=[2, 2], window_size=4,
    )  # fmt: skip


def _segformer() -> nn.Module:
    return built(
        "SegformerForSemanticSegmentation", "SegformerConfig", hidden_sizes=[8, 16],
        depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1, 2], sr_ratios=[2, 1],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16,
    )  # fmt: skip


def _detr() -> nn.Module:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        out_features=["stage2"],
    )  # fmt: skip
    return built(
        "DetrForObjectDetection", "DetrConfig", use_timm_backbone=False, backbone=None,
        backbone_config=backbone, use_pretrained_backbone=False, d_model=32, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, num_queries=5,
    )  # fmt: skip


def _yolos() -> nn.Module:
    return built(
        "YolosForObjectDetection", "YolosConfig", **{**_VIT, "image_size": [16, 16]},
        num_detection_tokens=4, use_mid_position_embeddings=False,
    )  # fmt: skip


def _sam() -> nn.Module:
    small = {"hidden_size": 32, "num_attention_heads": 4}
    return built(
        "SamModel", "SamConfig",
        vision_config={
            **small, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8, "mlp_dim": 48,
            "output_channels": 32, "window_size": 2, "global_attn_indexes": [1],
            "num_pos_feats": 16,
        },
        prompt_encoder_config={"hidden_size": 32, "image_size": 32, "patch_size": 8,
                               "image_embedding_size": 4, "mask_input_channels": 4},
        mask_decoder_config={**small, "mlp_dim": 48, "num_hidden_layers": 2,
                             "iou_head_hidden_dim": 16},
    )  # fmt: skip


class ConvNet(nn.Module):
    """Batch normalization and adaptive pooling: any size of picture, one size of output."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.AdaptiveAvgPool2d((2, 2)),
        )  # fmt: skip
        self.head = nn.Linear(32, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).flatten(1))


class Detector(nn.Module):
    """Pictures of different sizes in one list: padded together, one dict of boxes for each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.boxes = nn.Conv2d(8, 5, 1)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        height = max(image.shape[1] for image in images)
        width = max(image.shape[2] for image in images)
        padded = torch.stack(
            [
                nn.functional.pad(image, (0, width - image.shape[2], 0, height - image.shape[1]))
                for image in images
            ]
        )
        found = self.boxes(self.stem(padded).relu()).flatten(2).transpose(1, 2)
        scores, best = found[..., 4].sigmoid().topk(3, dim=1)
        boxes = found[..., :4].gather(1, best[..., None].expand(-1, -1, 4))
        return [{"boxes": b, "scores": s} for b, s in zip(boxes, scores, strict=True)]


def _square(rows: int) -> Arguments:
    return (), {"pixel_values": torch.randn(rows, 3, 16, 16)}


def _swin_square(rows: int) -> Arguments:
    return (), {"pixel_values": torch.randn(rows, 3, 32, 32)}


def _interpolated(rows: int, height: int, width: int) -> Arguments:
    pixels = torch.randn(rows, 3, height, width)
    return (), {"pixel_values": pixels, "interpolate_pos_encoding": True}


def _padded(rows: int, height: int, width: int) -> Arguments:
    mask = torch.ones(rows, height, width, dtype=torch.long)
    mask[0, -4:] = 0
    return (), {"pixel_values": torch.randn(rows, 3, height, width), "pixel_mask": mask}


def _pair(pictures: int, texts: int, length: int) -> Arguments:
    ids = torch.randint(2, VOCAB - 1, (texts, length))
    ids[:, -1] = VOCAB - 1  # clip pools where the end of the text is
    kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return (), {**kwargs, "pixel_values": torch.randn(pictures, 3, 16, 16)}


def _points(rows: int, points: int) -> Arguments:
    pixels = torch.randn(rows, 3, 32, 32)
    where = torch.rand(rows, 1, points, 2) * 32
    labels = torch.ones(rows, 1, points, dtype=torch.long)
    return (), {"pixel_values": pixels, "input_points": where, "input_labels": labels}


def _pictures(*sizes: tuple[int, int]) -> Arguments:
    return ([torch.randn(3, height, width) for height, width in sizes],), {}


_ROWS: dict[str, Any] = {"seen": [(2,), (3,), (5,)], "unseen": [(4,), (7,)]}
_SIZES: dict[str, Any] = {
    "seen": [(2, 32, 48), (3, 64, 32), (2, 48, 40)], "unseen": [(4, 40, 64), (5, 56, 32)]
}  # fmt: skip
_PAIRS: dict[str, Any] = {"seen": [(2, 3, 5), (3, 2, 8), (4, 5, 6)],
                          "unseen": [(5, 4, 7), (2, 6, 10)]}  # fmt: skip
_ONE: dict[str, Any] = {"seen": [(1, 32, 48), (1, 64, 32), (1, 48, 40)],
                        "unseen": [(1, 40, 64), (1, 56, 32)]}  # fmt: skip

CASES: list[Case] = [
    simple("vit", _vit, _square, **_ROWS),
    simple("vit_any_size", _vit, _interpolated, **_SIZES, note="interpolated positions"),
    simple("dinov2", _dinov2, images, **_SIZES, note="interpolates its positions by itself"),
    simple("resnet", _resnet, images, **_SIZES),
    simple("resnet_batch_one", _resnet, images, **_ONE, note="always batch 1"),
    simple("convnext", _convnext, images, **_SIZES),
    simple("conv_net", made(ConvNet), images, **_SIZES),
    simple("swin", _swin, _swin_square, **_ROWS),
    simple("swin_any_size", _swin, images, **_SIZES, note="pads to whole windows"),
    simple("segformer", _segformer, images, **_SIZES),
    simple("detr", _detr, _padded, **_SIZES, note="mask of pixels"),
    simple("detr_unmasked", _detr, images, **_SIZES),
    simple("yolos", _yolos, images, **_SIZES),
    simple("sam", _sam, _points, seen=[(2, 3), (3, 2), (2, 5)], unseen=[(4, 4), (3, 7)]),
    simple("clip", _clip, _pair, **_PAIRS, note="as many texts as you like per picture"),
    simple("siglip", _siglip, _pair, **_PAIRS),
    simple(
        "detector_image_list", made(Detector), _pictures,
        seen=[((16, 20), (24, 12)), ((18, 14), (12, 26)), ((20, 16), (14, 22))],
        unseen=[((28, 18), (16, 30)), ((12, 14), (22, 10))],
    ),
    simple(
        "detector_any_number", made(Detector), _pictures,
        seen=[((16, 20), (24, 12)), ((18, 14), (12, 26), (10, 10)), ((20, 16), (14, 22)),
              ((22, 12), (16, 16), (14, 24))],
        unseen=[((28, 18), (16, 30)), ((12, 14), (22, 10), (16, 18))],
        note="two or three pictures per call",
    ),
]  # fmt: skip
