"""Detectors: lists of pictures of any size in, as many boxes as there are things out."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import images, pictures
from tests.zoo.case import Arguments, Case, lively, simple
from tests.zoo.containers import made
from tests.zoo.language import VOCAB, built

__all__ = ["CASES"]

_ACROSS = {"min_size": 48, "max_size": 80}
"""As large as torchvision's detectors make a picture before they look at it."""


def _pyramid(width: int = 16) -> nn.Module:
    """A small ResNet with a feature pyramid, as torchvision builds it."""
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.models.resnet import BasicBlock

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(
                nn.Conv2d(3, 8, 7, stride=2, padding=3), nn.BatchNorm2d(8), nn.ReLU(),
                nn.MaxPool2d(3, 2, 1),
            )  # fmt: skip
            self.layer1 = BasicBlock(8, 8)
            down = nn.Sequential(nn.Conv2d(8, 16, 1, stride=2), nn.BatchNorm2d(16))
            self.layer2 = BasicBlock(8, 16, 2, down)

    return BackboneWithFPN(Body(), {"layer1": "0", "layer2": "1"}, [8, 16], width)


def _anchors(levels: int = 3) -> Any:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    sizes = tuple((8 * 2**level,) for level in range(levels))
    return AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * levels)


def _faster_rcnn(kind: str = "FasterRCNN", **options: Any) -> nn.Module:
    import torchvision

    torch.manual_seed(0)
    return lively(
        getattr(torchvision.models.detection, kind)(
            _pyramid(), 5, **_ACROSS, rpn_anchor_generator=_anchors(), rpn_pre_nms_top_n_test=40,
            rpn_post_nms_top_n_test=20, box_detections_per_img=10, **options,
        )
    )  # fmt: skip


_mask_rcnn = partial(_faster_rcnn, "MaskRCNN")
_keypoint_rcnn = partial(_faster_rcnn, "KeypointRCNN", num_keypoints=3)


def _retinanet() -> nn.Module:
    from torchvision.models.detection import RetinaNet

    torch.manual_seed(0)
    return lively(
        RetinaNet(_pyramid(), 5, **_ACROSS, anchor_generator=_anchors(), detections_per_img=10,
                  topk_candidates=30, score_thresh=0.015)
    )  # fmt: skip


def _fcos() -> nn.Module:
    from torchvision.models.detection import FCOS
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    torch.manual_seed(0)
    anchors = AnchorGenerator(((8,), (16,), (32,)), ((1.0,),) * 3)
    return lively(
        FCOS(_pyramid(32), 5, **_ACROSS, anchor_generator=anchors, detections_per_img=10,
             topk_candidates=30)
    )  # fmt: skip


def _ssd() -> nn.Module:
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD

    torch.manual_seed(0)
    backbone: Any = _pyramid()
    backbone.out_channels = [16, 16, 16]
    return lively(
        SSD(backbone, DefaultBoxGenerator([[2], [2], [2]]), (48, 48), 5, detections_per_img=10,
            topk_candidates=30)
    )  # fmt: skip


class RegionPooling(nn.Module):
    """The head of a detector by itself: pictures, and one tensor of boxes for each."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8 * 9, 5)

    def forward(self, images: Tensor, boxes: list[Tensor]) -> tuple[Tensor, Tensor]:
        from torchvision.ops import nms, roi_align

        maps = self.body(images).relu()
        found = self.head(roi_align(maps, boxes, 3, spatial_scale=0.5).flatten(1))
        kept = nms(torch.cat(boxes), found[:, 0], 0.5)
        return found[kept].softmax(-1), kept


class Deformable(nn.Module):
    """Convolutions whose taps move, twice."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.ops import DeformConv2d

        self.offsets = nn.Conv2d(3, 18, 3, padding=1)
        self.masks = nn.Conv2d(3, 9, 3, padding=1)
        self.bend = DeformConv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        bent = self.bend(image, self.offsets(image), self.masks(image).sigmoid())
        return self.head(bent.relu().mean((2, 3)))


def _resnet() -> Any:
    import transformers

    return transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        out_features=["stage1", "stage2"],
    )  # fmt: skip


_LAYERS: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 6,
    "disable_custom_kernels": True,
}  # fmt: skip


def _deformable_detr(**options: Any) -> nn.Module:
    return built(
        "DeformableDetrForObjectDetection", "DeformableDetrConfig", backbone_config=_resnet(),
        **_LAYERS, num_feature_levels=3, **options,
    )  # fmt: skip


_two_stage = partial(
    _deformable_detr, two_stage=True, two_stage_num_proposals=6, with_box_refine=True
)


def _rt_detr() -> nn.Module:
    import transformers

    backbone = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    return built(
        "RTDetrForObjectDetection", "RTDetrConfig", backbone_config=backbone,
        **{**_LAYERS, "encoder_in_channels": [12, 16, 24]}, encoder_hidden_dim=32,
        decoder_in_channels=[32, 32, 32], num_denoising=0,
    )  # fmt: skip


def _grounding_dino() -> nn.Module:
    import transformers

    backbone = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4,
        out_features=["stage1", "stage2"],
    )  # fmt: skip
    text = transformers.BertConfig(
        vocab_size=2000, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64,
    )  # fmt: skip
    return built(
        "GroundingDinoForObjectDetection", "GroundingDinoConfig", backbone_config=backbone,
        text_config=text, **_LAYERS, num_feature_levels=3, max_text_len=16,
    )  # fmt: skip


def _owlvit() -> nn.Module:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
             "intermediate_size": 48}  # fmt: skip
    return built(
        "OwlViTForObjectDetection", "OwlViTConfig", projection_dim=32,
        vision_config={**small, "image_size": 32, "patch_size": 8},
        text_config={**small, "vocab_size": VOCAB, "max_position_embeddings": 16},
    )  # fmt: skip


def _boxed(height: int, width: int, *counts: int) -> Arguments:
    boxes = []
    for count in counts:
        corner = torch.rand(count, 2) * torch.tensor([width, height]) / 2
        boxes.append(torch.cat([corner, corner + 2 + torch.rand(count, 2) * 12], dim=1))
    return (torch.randn(len(counts), 3, height, width), boxes), {}


def _masked(rows: int, height: int, width: int) -> Arguments:
    mask = torch.ones(rows, height, width, dtype=torch.long)
    mask[0, -8:] = 0
    return (), {"pixel_values": torch.randn(rows, 3, height, width), "pixel_mask": mask}


def _grounded(rows: int, height: int, width: int, length: int) -> Arguments:
    """A text of several phrases; 1012 ends one."""
    ids = torch.randint(1100, 1900, (rows, length))
    ids[:, 0], ids[:, length // 2], ids[:, -2], ids[:, -1] = 101, 1012, 1012, 102
    _, kwargs = _masked(rows, height, width)
    return (), {
        **kwargs, "input_ids": ids, "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
    }  # fmt: skip


def _queried(rows: int, queries: int, length: int) -> Arguments:
    """As many texts for each picture."""
    ids = torch.randint(1, VOCAB - 1, (rows * queries, length))
    ids[:, -1] = VOCAB - 1
    return (), {
        "input_ids": ids, "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(rows, 3, 32, 32),
    }  # fmt: skip


_TWO: dict[str, Any] = {
    "seen": [((48, 64), (60, 40)), ((56, 44), (48, 72)), ((64, 48), (52, 50))],
    "unseen": [((68, 56), (44, 60)), ((50, 74), (66, 42))],
}
_SINGLE: dict[str, Any] = {
    "seen": [((48, 64),), ((60, 40),), ((56, 72),)], "unseen": [((68, 56),), ((44, 60),)]
}  # fmt: skip
_SIZES: dict[str, Any] = {
    "seen": [(2, 64, 96), (3, 96, 64), (2, 80, 72)], "unseen": [(4, 72, 112), (5, 128, 64)]
}  # fmt: skip

CASES: list[Case] = [
    simple("faster_rcnn", _faster_rcnn, pictures, **_TWO, note="as many boxes as it finds"),
    simple("faster_rcnn_single", _faster_rcnn, pictures, **_SINGLE, note="one picture per call"),
    simple("mask_rcnn", _mask_rcnn, pictures, **_SINGLE, note="masks pasted into the picture"),
    simple("keypoint_rcnn", _keypoint_rcnn, pictures, **_SINGLE, note="heat maps resized per box"),
    simple("retinanet", _retinanet, pictures, **_SINGLE),
    simple("fcos", _fcos, pictures, **_SINGLE),
    simple("ssd", _ssd, pictures, **_TWO, note="resizes every picture to one size"),
    simple(
        "region_pooling", made(RegionPooling), _boxed,
        seen=[(24, 32, 3, 2), (32, 20, 4, 5), (28, 28, 2, 6)],
        unseen=[(36, 24, 5, 3), (20, 40, 7, 4)], note="boxes as a list, and what nms keeps",
    ),
    simple(
        "deformable_convolution", made(Deformable), images,
        seen=[(2, 16, 20), (3, 24, 12), (2, 18, 26)], unseen=[(4, 22, 18), (5, 14, 30)],
    ),
    simple("deformable_detr", _deformable_detr, _masked, **_SIZES, note="samples several levels"),
    simple("deformable_detr_two_stage", _two_stage, _masked, **_SIZES),
    simple(
        "rt_detr", _rt_detr, images, seen=[(2, 64, 96), (3, 96, 64), (2, 128, 96)],
        unseen=[(4, 96, 128), (5, 64, 160)], note="anchors made from the sizes",
    ),
    simple(
        "grounding_dino", _grounding_dino, _grounded,
        seen=[(2, 64, 96, 7), (3, 96, 64, 9), (2, 80, 72, 12)],
        unseen=[(4, 72, 112, 8), (5, 128, 64, 11)], note="a mask of phrases, found in the text",
    ),
    simple(
        "owlvit", _owlvit, _queried, seen=[(2, 2, 6), (3, 2, 8), (2, 4, 7)],
        unseen=[(4, 3, 9), (3, 5, 6)], note="several texts per picture",
    ),
]  # fmt: skip
