"""More backbones of timm: windows, pyramids, several scales, and attention that knows its size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.arguments import images
from tests.zoo.case import Arguments, Case, lively, simple

__all__ = ["CASES"]


def _timm(name: str, **options: Any) -> nn.Module:
    """A model by its name in timm's registry, with random weights."""
    import timm

    torch.manual_seed(0)
    return lively(timm.create_model(name, pretrained=False, num_classes=5, **options))


def _class(name: str, **options: Any) -> nn.Module:
    """One of timm's classes, for what its registry does not let one change."""
    import importlib

    file, _, kind = name.partition(".")
    torch.manual_seed(0)
    module = importlib.import_module(f"timm.models.{file}")
    return lively(getattr(module, kind)(num_classes=5, **options))


_davit = partial(
    _timm, "davit_tiny", depths=(1, 1), embed_dims=(16, 24), num_heads=(2, 2), window_size=4
)
_twins = partial(
    _timm, "twins_svt_small", img_size=64, patch_size=4, embed_dims=(16, 32), num_heads=(1, 2),
    mlp_ratios=(2, 2), depths=(2, 2), wss=(4, 4), sr_ratios=(2, 1),
)  # fmt: skip
_pvt = partial(
    _timm, "pvt_v2_b0", depths=(1, 1), embed_dims=(8, 16), num_heads=(1, 2), sr_ratios=(4, 2),
    mlp_ratios=(2, 2),
)  # fmt: skip
_edgenext = partial(
    _timm, "edgenext_xx_small", depths=(1, 2, 2, 1), dims=(16, 16, 24, 32), heads=(2, 2, 2, 2),
    global_block_counts=(0, 1, 1, 1),
)  # fmt: skip
_beit = partial(
    _timm, "beit_base_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2
)
_swin_v2 = partial(
    _timm, "swinv2_tiny_window8_256", img_size=32, patch_size=2, window_size=4, embed_dim=8,
    depths=(2, 2), num_heads=(2, 2), dynamic_img_size=True, strict_img_size=False,
)  # fmt: skip
_focal = partial(
    _class, "focalnet.FocalNet", embed_dim=8, depths=(1, 1), focal_levels=(2, 2),
    focal_windows=(3, 3),
)  # fmt: skip
_gcvit = partial(
    _class, "gcvit.GlobalContextVit", img_size=64, embed_dim=16, depths=(1, 1), num_heads=(2, 2),
    window_ratio=(8, 8),
)  # fmt: skip
_tiny_vit = partial(
    _timm, "tiny_vit_5m_224", embed_dims=(16, 24, 32), depths=(1, 1, 1), num_heads=(2, 2, 2),
    window_sizes=(4, 4, 4),
)  # fmt: skip
_volo = partial(
    _class, "volo.VOLO", img_size=64, layers=[1, 1], patch_size=8, stem_hidden_dim=8,
    embed_dims=[16, 32], num_heads=[2, 2], downsamples=(True, False),
    outlook_attention=(True, False),
)  # fmt: skip
_crossvit = partial(
    _timm, "crossvit_tiny_240", img_size=48, patch_size=(6, 8), img_scale=(1.0, 2 / 3),
    embed_dim=(16, 32), depth=((1, 1, 0), (1, 1, 0)), num_heads=(2, 2), mlp_ratio=(2.0, 2.0, 1.0),
)  # fmt: skip
_convit = partial(
    _timm, "convit_tiny", img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4,
    local_up_to_layer=2,
)  # fmt: skip
_hieradet = partial(
    _timm, "sam2_hiera_tiny", embed_dim=8, stages=(1, 2, 2, 1), global_att_blocks=(4,),
    window_spec=(4, 2, 4, 2), global_pos_size=(4, 4),
)  # fmt: skip
_sam_encoder = partial(
    _class, "vision_transformer_sam.VisionTransformerSAM", img_size=64, patch_size=8, embed_dim=16,
    depth=2, num_heads=2, use_rel_pos=True, window_size=3, global_attn_indexes=(1,), neck_chans=8,
)  # fmt: skip
_csat = partial(
    _timm, "csatv2", dims=(8, 16, 16, 24), depths=(1, 1, 1, 1), transformer_depths=(0, 0, 1, 1)
)
_nfnet = partial(_timm, "test_nfnet")
_mambaout = partial(_timm, "test_mambaout")


def _mvit() -> nn.Module:
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    torch.manual_seed(0)
    config = MultiScaleVitCfg(
        depths=(1, 1), embed_dim=8, stride_q=((1, 1), (2, 2)), stride_kv_adaptive=(2, 2)
    )
    return lively(MultiScaleVit(config, img_size=(64, 64), num_classes=5))


def _halo() -> nn.Module:
    """Blocks that see the pixels around them."""
    from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg

    torch.manual_seed(0)
    config = ByoModelCfg(
        blocks=(
            ByoBlockCfg(type="bottle", d=1, c=16, s=1, gs=0, br=0.5),
            ByoBlockCfg(type="self_attn", d=1, c=32, s=2, gs=0, br=0.5),
        ),
        stem_chs=8, self_attn_layer="halo", self_attn_kwargs={"block_size": 4, "halo_size": 1},
    )  # fmt: skip
    return lively(ByobNet(config, num_classes=5))


def _square(side: int) -> Callable[[int], Arguments]:
    return lambda rows: images(rows, side, side)


_ANY: dict[str, Any] = {
    "seen": [(2, 64, 96), (3, 96, 64), (2, 80, 72)], "unseen": [(4, 72, 112), (5, 128, 64)]
}  # fmt: skip
_WHOLE: dict[str, Any] = {
    "seen": [(2, 64, 96), (3, 96, 64), (2, 128, 96)], "unseen": [(4, 96, 160), (5, 128, 64)]
}  # fmt: skip
_GRID: dict[str, Any] = {
    "seen": [(2, 32, 48), (3, 64, 32), (2, 48, 40)], "unseen": [(4, 40, 64), (5, 56, 32)]
}  # fmt: skip
_ROWS: dict[str, Any] = {"seen": [(2,), (3,), (5,)], "unseen": [(4,), (7,)]}

CASES: list[Case] = [
    simple("timm_davit", _davit, images, **_ANY, note="windows, and attention over channels"),
    simple("timm_twins", _twins, images, **_ANY, note="windows, then all of it made smaller"),
    simple("timm_pvt", _pvt, images, **_ANY, note="keys of a smaller picture"),
    simple("timm_edgenext", _edgenext, images, **_WHOLE, note="position codes by Fourier"),
    simple("timm_beit", _beit, _square(32), **_ROWS, note="a bias for each pair of patches"),
    simple("timm_swin_v2", _swin_v2, images, **_GRID, note="a small network makes the bias"),
    simple("timm_focalnet", _focal, images, **_ANY, note="gates instead of attention"),
    simple("timm_gcvit", _gcvit, _square(64), **_ROWS, note="one query for all windows"),
    simple("timm_tiny_vit", _tiny_vit, images, **_ANY, note="pads only where windows need it"),
    simple("timm_volo", _volo, _square(64), **_ROWS, note="folds what it unfolded"),
    simple("timm_crossvit", _crossvit, _square(48), **_ROWS, note="the picture in two scales"),
    simple("timm_convit", _convit, _square(32), **_ROWS, note="keeps a table by length"),
    simple("timm_hieradet", _hieradet, images, **_WHOLE, note="positions of windows, tiled"),
    simple("timm_sam_encoder", _sam_encoder, images, **_ANY, note="relative positions, resized"),
    simple("timm_mvit", _mvit, _square(64), **_ROWS, note="attention that pools"),
    simple("timm_halo", _halo, images, **_WHOLE, note="overlapping blocks by unfold"),
    simple("timm_csat", _csat, images, **_WHOLE, note="a cosine transform of the picture"),
    simple("timm_nfnet", _nfnet, images, **_ANY, note="weights standardized in each call"),
    simple("timm_mambaout", _mambaout, images, **_ANY),
]  # fmt: skip
