"""More of torchvision: videos, modules ready to quantize, extracted features, parts of heads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import images, pictures
from tests.zoo.case import Arguments, Case, lively, simple
from tests.zoo.containers import made

__all__ = ["CASES"]


def _video_mvit() -> nn.Module:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    torch.manual_seed(0)
    one = {"kernel_q": [3, 3, 3], "kernel_kv": [3, 3, 3], "stride_kv": [1, 2, 2]}
    blocks = [
        MSBlockConfig(num_heads=1, input_channels=8, output_channels=8, stride_q=[1, 1, 1], **one),
        MSBlockConfig(num_heads=2, input_channels=8, output_channels=16, stride_q=[1, 2, 2], **one),
    ]
    return lively(
        MViT(spatial_size=(32, 32), temporal_size=8, block_setting=blocks, residual_pool=True,
             residual_with_cls_embed=False, rel_pos_embed=True, proj_after_attn=True,
             num_classes=5)
    )  # fmt: skip


def _r2plus1d() -> nn.Module:
    from torchvision.models.video.resnet import (
        BasicBlock,
        Conv2Plus1D,
        R2Plus1dStem,
        VideoResNet,
    )

    torch.manual_seed(0)
    return lively(VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [1, 1, 1, 1], R2Plus1dStem, 5))


def _quantizable(name: str, **options: Any) -> nn.Module:
    """Ready to be quantized: stubs and additions that observers could watch."""
    import torchvision

    torch.manual_seed(0)
    build = getattr(torchvision.models.quantization, name)
    return lively(build(weights=None, quantize=False, num_classes=5, **options))


def _quantizable_mobilenet() -> nn.Module:
    return _quantizable("mobilenet_v2", width_mult=0.25)


def _quantizable_shufflenet() -> nn.Module:
    return _quantizable("shufflenet_v2_x0_5")


def _swin(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision.models import swin_transformer as swin

        torch.manual_seed(0)
        version = {"v2": (swin.SwinTransformerBlockV2, swin.PatchMergingV2)}
        block, merging = version[name]
        return lively(
            swin.SwinTransformer(
                patch_size=[4, 4], embed_dim=8, depths=[2, 1], num_heads=[2, 2], num_classes=5,
                window_size=[4, 4], stochastic_depth_prob=0.0, block=block,
                downsample_layer=merging,
            )
        )  # fmt: skip

    return make


def _maxvit() -> nn.Module:
    from torchvision.models import MaxVit

    torch.manual_seed(0)
    return lively(
        MaxVit(input_size=(32, 32), stem_channels=8, partition_size=4, block_channels=[8, 16],
               block_layers=[1, 1], head_dim=4, stochastic_depth_prob=0.0, num_classes=5)
    )  # fmt: skip


def _lraspp() -> nn.Module:
    from torchvision.models import mobilenet_v3_small
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation import LRASPP

    torch.manual_seed(0)
    body = mobilenet_v3_small(width_mult=0.25).features[:5]
    backbone = IntermediateLayerGetter(body, {"1": "low", "4": "high"})
    with torch.no_grad():
        found = backbone(torch.zeros(1, 3, 64, 64))
    return lively(LRASPP(backbone, found["low"].shape[1], found["high"].shape[1], 5, 8))


def _extracted() -> nn.Module:
    """Named features of a network that was traced with symbols (torch.fx)."""
    import torchvision
    from torchvision.models.feature_extraction import create_feature_extractor

    torch.manual_seed(0)
    whole = torchvision.models.ResNet(
        torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=5
    )
    return lively(create_feature_extractor(whole, {"layer1": "low", "layer3": "high"}))


def _densenet() -> nn.Module:
    from torchvision.models import DenseNet

    torch.manual_seed(0)
    return lively(
        DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, memory_efficient=True,
                 num_classes=5)
    )  # fmt: skip


def _ssdlite() -> nn.Module:
    """As torchvision builds it, from a picture of any size."""
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    torch.manual_seed(0)
    return lively(
        ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=5, score_thresh=0.05,
            topk_candidates=20, detections_per_img=10,
        )
    )  # fmt: skip


class Pyramid(nn.Module):
    """Features by name in, a pyramid with two more levels out."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.ops import FeaturePyramidNetwork
        from torchvision.ops.feature_pyramid_network import LastLevelP6P7

        self.inner = FeaturePyramidNetwork([4, 8], 6, extra_blocks=LastLevelP6P7(8, 6))

    def forward(self, maps: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.inner(maps)


class RegionHead(nn.Module):
    """Boxes of each picture, pooled from the level of the pyramid that fits their size."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.ops import MultiScaleRoIAlign

        self.pool = MultiScaleRoIAlign(["0", "1"], 3, 2, canonical_scale=16, canonical_level=3)
        self.head = nn.Linear(4 * 9, 5)

    def forward(
        self, maps: dict[str, Tensor], boxes: list[Tensor], sizes: list[tuple[int, int]]
    ) -> Tensor:
        return self.head(self.pool(maps, boxes, sizes).flatten(1))


class Detected(nn.Module):
    """What is done after a head: scores above a threshold, suppression by class, the best few."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, features: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from torchvision.ops import batched_nms, clip_boxes_to_image, remove_small_boxes

        scores, labels = self.head(features).softmax(-1).max(-1)
        boxes = clip_boxes_to_image(boxes, (40, 40))
        keep = remove_small_boxes(boxes, 1.0)
        boxes, scores, labels = boxes[keep], scores[keep], labels[keep]
        keep = torch.where(scores > 0.35)[0]
        boxes, scores, labels = boxes[keep], scores[keep], labels[keep]
        keep = batched_nms(boxes, scores, labels, 0.5)[:5]
        return boxes[keep], scores[keep], labels[keep]


def _clip(rows: int, frames: int, side: int) -> Arguments:
    return (torch.randn(rows, 3, frames, side, side),), {}


def _clips(rows: int) -> Arguments:
    return _clip(rows, 8, 32)


def _square(rows: int) -> Arguments:
    return images(rows, 32, 32)


def _maps(rows: int, height: int, width: int) -> Arguments:
    low = torch.randn(rows, 4, 2 * height, 2 * width)
    return (OrderedDict(c2=low, c3=torch.randn(rows, 8, height, width)),), {}


def _boxes(count: int, side: int) -> Tensor:
    corner = torch.rand(count, 2) * side / 2
    return torch.cat([corner, corner + 2 + torch.rand(count, 2) * 14], dim=1)


def _regions(*counts: int) -> Arguments:
    rows = len(counts)
    maps = {"0": torch.randn(rows, 4, 16, 16), "1": torch.randn(rows, 4, 8, 8)}
    return (maps, [_boxes(count, 32) for count in counts], [(32, 32)] * rows), {}


def _scored(count: int) -> Arguments:
    return (torch.randn(count, 8) * 2, _boxes(count, 40)), {}


_ANY: dict[str, Any] = {
    "seen": [(2, 64, 96), (3, 96, 64), (2, 80, 72)], "unseen": [(4, 72, 112), (5, 128, 64)]
}  # fmt: skip
_ROWS: dict[str, Any] = {"seen": [(2,), (3,), (5,)], "unseen": [(4,), (7,)]}

CASES: list[Case] = [
    simple("video_mvit", _video_mvit, _clips, **_ROWS, note="pools on three axes"),
    simple("video_r2plus1d", _r2plus1d, _clip, seen=[(2, 4, 24), (1, 6, 32), (3, 8, 28)],
           unseen=[(2, 5, 36), (4, 7, 24)]),
    simple("quantizable_mobilenet", _quantizable_mobilenet, images, **_ANY),
    simple("quantizable_shufflenet", _quantizable_shufflenet, images, **_ANY),
    simple("swin_v2_of_torchvision", _swin("v2"), images, **_ANY, note="pads to whole windows"),
    simple("maxvit_of_torchvision", _maxvit, _square, **_ROWS),
    simple("lraspp", _lraspp, images, **_ANY),
    simple("extracted_features", _extracted, images, **_ANY, note="a graph module of torch.fx"),
    simple("densenet", _densenet, images, **_ANY, note="checkpoints for memory it does not need"),
    simple("ssdlite", _ssdlite, pictures, seen=[((200, 300),), ((320, 240),), ((260, 280),)],
           unseen=[((300, 220),), ((240, 360),)], note="the real one, 320 x 320"),
    simple("feature_pyramid", made(Pyramid), _maps, seen=[(2, 6, 8), (3, 8, 5), (2, 7, 10)],
           unseen=[(4, 9, 6), (5, 6, 11)], note="an ordered dict in and out"),
    simple("region_levels", made(RegionHead), _regions, seen=[(3, 2), (4, 5), (2, 6)],
           unseen=[(5, 3), (7, 4)], note="the level by the size of the box; keeps its scales"),
    simple("kept_boxes", made(Detected), _scored, seen=[(12,), (20,), (16,)],
           unseen=[(18,), (30,)], note="what is left depends on the values"),
]  # fmt: skip
