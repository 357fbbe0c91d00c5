"""Backbones of timm: any size of picture, bags of patches, feature maps as a list."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import images
from tests.zoo.case import Arguments, Case, lively, simple

__all__ = ["CASES"]


def _timm(name: str, **options: Any) -> nn.Module:
    """A model by its name in timm's registry, with random weights."""
    import timm

    torch.manual_seed(0)
    return lively(timm.create_model(name, pretrained=False, **options))


_SMALL: dict[str, Any] = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}

_same = partial(_timm, "test_efficientnet", pad_type="same", num_classes=5)
_mobilenet = partial(_timm, "mobilenetv3_small_050", features_only=True)
_mobilevit = partial(_timm, "mobilevit_xxs", num_classes=5)
_maxvit = partial(_timm, "test_maxvit", num_classes=5, img_size=64)
_vit = partial(_timm, "test_vit", **_SMALL, img_size=32, patch_size=8)
_eva = partial(
    _timm, "eva02_tiny_patch14_224", **_SMALL, img_size=32, patch_size=8, dynamic_img_size=True
)
_xcit = partial(_timm, "xcit_nano_12_p8_224", **_SMALL, cls_attn_layers=1, img_size=32)
_swin = partial(
    _timm, "swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4, embed_dim=8,
    depths=(2, 2), num_heads=(2, 2), num_classes=5, dynamic_img_size=True, strict_img_size=False,
)  # fmt: skip
_hiera = partial(
    _timm, "hiera_tiny_224", img_size=(64, 64), embed_dim=16, stages=(1, 1, 1), q_pool=2,
    mask_unit_attn=(True, True, False), num_classes=5,
)  # fmt: skip
_sequencer = partial(
    _timm, "sequencer2d_s", layers=(1, 1), patch_sizes=(4, 2), embed_dims=(16, 24),
    hidden_sizes=(8, 8), mlp_ratios=(2.0, 2.0), num_classes=5,
)  # fmt: skip


def _levit() -> nn.Module:
    from timm.models.levit import Levit

    torch.manual_seed(0)
    return lively(
        Levit(img_size=64, embed_dim=(32, 48), key_dim=8, depth=(1, 1), num_heads=(2, 3),
              num_classes=5)
    )  # fmt: skip


def _condconv() -> nn.Module:
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.efficientnet import EfficientNet

    torch.manual_seed(0)
    blocks = [["ds_r1_k3_s1_e1_c16_se0.25"], ["ir_r2_k5_s2_e3_c24_se0.25_cc4"]]
    return lively(
        EfficientNet(decode_arch_def(blocks, experts_multiplier=1), num_classes=5,
                     num_features=32, stem_size=8, pad_type="same")
    )  # fmt: skip


def _naflex(**options: Any) -> nn.Module:
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

    torch.manual_seed(0)
    config = NaFlexVitCfg(
        patch_size=4, embed_dim=32, depth=2, num_heads=2, pos_embed_grid_size=(4, 4),
        global_pool="avg", class_token=True, **options,
    )  # fmt: skip
    return lively(NaFlexVit(config, num_classes=5))


_naflex_sampled = partial(_naflex, pos_embed_use_grid_sample=True)


def _square(side: int) -> Callable[[int], Arguments]:
    return lambda rows: ((torch.randn(rows, 3, side, side),), {})


def _patches(*grids: tuple[int, int], most: int = 0) -> Arguments:
    """Pictures of their own sizes as patches, padded to as many as the largest has."""
    most = max(most, *(height * width for height, width in grids))
    where = torch.zeros(len(grids), most, 2, dtype=torch.long)
    valid = torch.zeros(len(grids), most, dtype=torch.bool)
    for row, (height, width) in enumerate(grids):
        place = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        where[row, : len(place)], valid[row, : len(place)] = place, True
    patches: Tensor = torch.randn(len(grids), most, 4 * 4 * 3) * valid[..., None]
    return ({"patches": patches, "patch_coord": where, "patch_valid": valid},), {}


_ANY: dict[str, Any] = {
    "seen": [(2, 64, 96), (3, 96, 64), (2, 80, 72)], "unseen": [(4, 72, 112), (5, 128, 64)]
}  # fmt: skip
_GRID: dict[str, Any] = {
    "seen": [(2, 32, 48), (3, 64, 32), (2, 48, 40)], "unseen": [(4, 40, 64), (5, 56, 32)]
}  # fmt: skip
_ROWS: dict[str, Any] = {"seen": [(2,), (3,), (5,)], "unseen": [(4,), (7,)]}
_BAGS: dict[str, Any] = {
    "seen": [((3, 4), (5, 2)), ((4, 4), (2, 6), (3, 3)), ((2, 3), (3, 5), (4, 2))],
    "unseen": [((5, 4), (3, 3)), ((4, 3), (2, 4), (5, 5), (3, 6))],
}  # fmt: skip

CASES: list[Case] = [
    simple(
        "timm_efficientnet_same", _same, images,
        seen=[(2, 64, 96), (3, 97, 63), (2, 80, 75)], unseen=[(4, 71, 113), (5, 128, 64)],
        note="pads as TensorFlow does, by as much as the size needs",
    ),
    simple("timm_condconv", _condconv, images, **_ANY, note="kernels of their own per picture"),
    simple("timm_mobilenet_features", _mobilenet, images, **_ANY, note="a list of maps"),
    simple("timm_mobilevit", _mobilevit, images, **_ANY, note="resizes to whole patches"),
    simple(
        "timm_maxvit", _maxvit, images,
        seen=[(2, 64, 128), (3, 128, 64), (2, 64, 64)], unseen=[(4, 128, 128), (5, 64, 192)],
    ),
    simple("timm_vit", _vit, images, **_GRID, note="interpolates its positions"),
    simple("timm_eva", _eva, images, **_GRID, note="rotary over the grid"),
    simple("timm_xcit", _xcit, images, **_GRID, note="attention across channels"),
    simple("timm_swin", _swin, images, **_GRID, note="pads to whole windows"),
    simple("timm_hiera", _hiera, _square(64), **_ROWS, note="unrolls mask units"),
    simple("timm_levit", _levit, _square(64), **_ROWS, note="keeps its biases in a dict"),
    simple("timm_sequencer", _sequencer, images, **_GRID, note="recurrent along both axes"),
    simple("timm_naflex", _naflex, _patches, **_BAGS, note="positions by each picture's grid"),
    simple("timm_naflex_sampled", _naflex_sampled, _patches, **_BAGS, note="positions sampled"),
]  # fmt: skip
