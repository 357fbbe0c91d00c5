"""Models of diffusers: UNets, transformers for pictures and videos, and what decodes latents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, captured, lively, simple

__all__ = ["CASES"]

_TEXT = 16
"""Width of what an encoder of text would have said."""


def _built(name: str, **options: Any) -> nn.Module:
    """A model of diffusers from its config, with random weights."""
    import diffusers

    torch.manual_seed(0)
    return lively(getattr(diffusers, name)(**options))


_UNET: dict[str, Any] = {
    "block_out_channels": (8, 16), "layers_per_block": 1, "cross_attention_dim": _TEXT,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "norm_num_groups": 4,
    "attention_head_dim": 4,
}  # fmt: skip
_UP = {"up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}

_unet = partial(_built, "UNet2DConditionModel", **_UNET, **_UP, sample_size=16)
_sdxl = partial(
    _built, "UNet2DConditionModel", **_UNET, **_UP, use_linear_projection=True,
    addition_embed_type="text_time", addition_time_embed_dim=4,
    projection_class_embeddings_input_dim=6 * 4 + 12,
)  # fmt: skip
_controlnet = partial(
    _built, "ControlNetModel", **_UNET, conditioning_embedding_out_channels=(4, 8)
)
_unet_labelled = partial(
    _built, "UNet2DModel", block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"), num_class_embeds=7,
    up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4,
)  # fmt: skip
_sd3 = partial(
    _built, "SD3Transformer2DModel", sample_size=16, patch_size=2, in_channels=4, out_channels=4,
    num_layers=2, attention_head_dim=8, num_attention_heads=4, joint_attention_dim=_TEXT,
    caption_projection_dim=32, pooled_projection_dim=12, pos_embed_max_size=24,
)  # fmt: skip
_flux = partial(
    _built, "FluxTransformer2DModel", in_channels=16, num_layers=1, num_single_layers=1,
    attention_head_dim=16, num_attention_heads=2, joint_attention_dim=_TEXT,
    pooled_projection_dim=12, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
)  # fmt: skip
_qwen_image = partial(
    _built, "QwenImageTransformer2DModel", in_channels=16, out_channels=4, num_layers=2,
    attention_head_dim=16, num_attention_heads=2, joint_attention_dim=_TEXT,
    axes_dims_rope=(4, 6, 6),
)  # fmt: skip
_z_image = partial(
    _built, "ZImageTransformer2DModel", in_channels=4, dim=32, n_layers=1, n_refiner_layers=1,
    n_heads=2, n_kv_heads=2, cap_feat_dim=_TEXT, axes_dims=[4, 6, 6], axes_lens=[128, 64, 64],
)  # fmt: skip
_lumina = partial(
    _built, "Lumina2Transformer2DModel", sample_size=16, in_channels=4, hidden_size=32,
    num_layers=1, num_refiner_layers=1, num_attention_heads=2, num_kv_heads=1, multiple_of=8,
    axes_dim_rope=(4, 6, 6), axes_lens=(64, 32, 32), cap_feat_dim=_TEXT,
)  # fmt: skip
_pixart = partial(
    _built, "PixArtTransformer2DModel", num_attention_heads=2, attention_head_dim=16,
    num_layers=2, cross_attention_dim=32, caption_channels=_TEXT, sample_size=16,
    use_additional_conditions=False,
)  # fmt: skip
_sana = partial(
    _built, "SanaTransformer2DModel", in_channels=4, out_channels=4, num_attention_heads=2,
    attention_head_dim=16, num_layers=2, num_cross_attention_heads=2, cross_attention_head_dim=16,
    cross_attention_dim=32, caption_channels=_TEXT, sample_size=16,
)  # fmt: skip
_cogvideo = partial(
    _built, "CogVideoXTransformer3DModel", num_attention_heads=2, attention_head_dim=16,
    in_channels=4, out_channels=4, time_embed_dim=8, text_embed_dim=_TEXT, num_layers=2,
    sample_width=8, sample_height=8, sample_frames=9, max_text_seq_length=6,
    use_rotary_positional_embeddings=True,
)  # fmt: skip
_ltx = partial(
    _built, "LTXVideoTransformer3DModel", in_channels=8, out_channels=8, num_attention_heads=2,
    attention_head_dim=16, cross_attention_dim=32, num_layers=2, caption_channels=_TEXT,
)  # fmt: skip
_wan = partial(
    _built, "WanTransformer3DModel", num_attention_heads=2, attention_head_dim=16, in_channels=4,
    out_channels=4, text_dim=_TEXT, freq_dim=16, ffn_dim=48, num_layers=2, rope_max_seq_len=32,
)  # fmt: skip
_motion = partial(
    _built, "UNetMotionModel", block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
    down_block_types=("DownBlockMotion", "CrossAttnDownBlockMotion"), cross_attention_dim=_TEXT,
    up_block_types=("CrossAttnUpBlockMotion", "UpBlockMotion"), num_attention_heads=2,
    motion_num_attention_heads=2, motion_max_seq_length=16,
)  # fmt: skip


class Decoding(nn.Module):
    """What people export of an autoencoder: from latents to pictures."""

    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, latents: Tensor) -> Tensor:
        return self.autoencoder.decode(latents, return_dict=False)[0]


class Encoding(Decoding):
    """And back: the mean of the distribution."""

    def forward(self, pixels: Tensor) -> Tensor:
        return self.autoencoder.encode(pixels).latent_dist.mode()


def _autoencoder(tiled: bool = False) -> Any:
    found: Any = _built(
        "AutoencoderKL", block_out_channels=(8, 16), norm_num_groups=4, sample_size=32,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    if tiled:
        found.enable_tiling()
    return found


def _wan_autoencoder() -> Any:
    return _built(
        "AutoencoderKLWan", base_dim=4, z_dim=4, dim_mult=[1, 2], num_res_blocks=1,
        temperal_downsample=[True], latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip


def _vq() -> nn.Module:
    return _built(
        "VQModel", block_out_channels=(8, 16), norm_num_groups=4, num_vq_embeddings=32,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip


def _decoding(**options: Any) -> nn.Module:
    return Decoding(_autoencoder(**options)).eval()


def _encoding() -> nn.Module:
    return Encoding(_autoencoder()).eval()


def _video_decoding() -> nn.Module:
    return Decoding(_wan_autoencoder()).eval()


def _sampled(module: Any, rows: int, height: int, width: int) -> None:
    """Stable Diffusion as its pipeline runs it: guided, so every batch is doubled."""
    import diffusers

    generator = torch.Generator().manual_seed(rows)
    pipeline = diffusers.StableDiffusionPipeline(
        vae=_autoencoder(), text_encoder=None, tokenizer=None, unet=module,
        scheduler=diffusers.DDIMScheduler(), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    texts = torch.randn(2, rows, 7, _TEXT, generator=generator)
    pipeline(
        prompt_embeds=texts[0], negative_prompt_embeds=texts[1], height=height, width=width,
        num_inference_steps=2, output_type="latent", generator=generator,
    )  # fmt: skip


_PICTURES = ((1, 16, 24), (2, 32, 16), (1, 24, 32))


def _pipeline() -> Case:
    def drive(module: Any) -> None:
        for size in _PICTURES:
            _sampled(module, *size)

    def others(module: Any) -> list[Arguments]:
        return [
            call
            for size in ((3, 24, 16), (2, 32, 40))
            for call in captured(module, lambda m, s=size: _sampled(m, *s), (0,))
        ]

    return Case("stable_diffusion", _unet, drive, others, note="inside its pipeline")


def _noised(rows: int, height: int, width: int, tokens: int) -> dict[str, Tensor]:
    return {
        "sample": torch.randn(rows, 4, height, width),
        "timestep": torch.randint(0, 1000, (rows,)),
        "encoder_hidden_states": torch.randn(rows, tokens, _TEXT),
    }  # fmt: skip


def _sized(rows: int, height: int, width: int, tokens: int) -> Arguments:
    """The sizes that SDXL is told come as numbers in a tensor."""
    added = {
        "text_embeds": torch.randn(rows, 12),
        "time_ids": torch.tensor([[8 * height, 8 * width, 0, 0, 8 * height, 8 * width]] * rows),
    }  # fmt: skip
    return (), {**_noised(rows, height, width, tokens), "added_cond_kwargs": added}


def _controlled(rows: int, height: int, width: int, tokens: int) -> Arguments:
    """What a ControlNet adds, level by level."""
    levels = [(8, 1), (8, 1), (8, 2), (16, 2)]
    down = tuple(torch.randn(rows, c, height // s, width // s) for c, s in levels)
    return (), {
        **_noised(rows, height, width, tokens), "down_block_additional_residuals": down,
        "mid_block_additional_residual": torch.randn(rows, 16, height // 2, width // 2),
        "return_dict": False,
    }  # fmt: skip


def _control(rows: int, height: int, width: int, tokens: int) -> Arguments:
    picture = torch.randn(rows, 3, 2 * height, 2 * width)
    return (), {**_noised(rows, height, width, tokens), "controlnet_cond": picture,
                "conditioning_scale": 0.8, "return_dict": False}  # fmt: skip


def _labelled(rows: int, height: int, width: int) -> Arguments:
    sample, labels = torch.randn(rows, 3, height, width), torch.randint(0, 7, (rows,))
    return (sample, torch.randint(0, 1000, (rows,))), {"class_labels": labels}


def _pooled(rows: int, height: int, width: int, tokens: int) -> Arguments:
    return (), {
        "hidden_states": torch.randn(rows, 4, height, width),
        "encoder_hidden_states": torch.randn(rows, tokens, _TEXT),
        "pooled_projections": torch.randn(rows, 12), "timestep": torch.rand(rows) * 1000,
        "return_dict": False,
    }  # fmt: skip


def _packed(rows: int, height: int, width: int, tokens: int) -> Arguments:
    """Latents as a sequence, and where each part of it stands."""
    place = torch.zeros(height, width, 3)
    place[..., 1] += torch.arange(height)[:, None]
    place[..., 2] += torch.arange(width)[None]
    return (), {
        "hidden_states": torch.randn(rows, height * width, 16),
        "encoder_hidden_states": torch.randn(rows, tokens, _TEXT),
        "pooled_projections": torch.randn(rows, 12), "timestep": torch.rand(rows),
        "img_ids": place.reshape(-1, 3), "txt_ids": torch.zeros(tokens, 3),
        "guidance": torch.full((rows,), 3.5), "return_dict": False,
    }  # fmt: skip


def _shaped(rows: int, height: int, width: int, tokens: int) -> Arguments:
    """The grid comes as ints, in a list of lists."""
    mask = torch.ones(rows, tokens, dtype=torch.bool)
    mask[0, -2:] = False
    return (), {
        "hidden_states": torch.randn(rows, height * width, 16),
        "encoder_hidden_states": torch.randn(rows, tokens, _TEXT),
        "encoder_hidden_states_mask": mask, "timestep": torch.rand(rows),
        "img_shapes": [[(1, height, width)]] * rows, "return_dict": False,
    }  # fmt: skip


def _listed(*sizes: tuple[int, int, int]) -> Arguments:
    """A picture and a text of its own size for each, in lists."""
    pictures = [torch.randn(4, 1, height, width) for height, width, _ in sizes]
    texts = [torch.randn(tokens, _TEXT) for *_, tokens in sizes]
    return (pictures, torch.rand(len(sizes)), texts), {"return_dict": False}


def _captioned(rows: int, height: int, width: int, tokens: int) -> dict[str, Any]:
    mask = torch.ones(rows, tokens)
    mask[0, -2:] = 0
    return {
        "hidden_states": torch.randn(rows, 4, height, width),
        "encoder_hidden_states": torch.randn(rows, tokens, _TEXT),
        "encoder_attention_mask": mask, "timestep": torch.rand(rows) * 1000,
        "return_dict": False,
    }  # fmt: skip


def _with_mask(*size: int) -> Arguments:
    return (), _captioned(*size)


def _unconditioned(*size: int) -> Arguments:
    added = {"resolution": None, "aspect_ratio": None}
    return (), {**_captioned(*size), "added_cond_kwargs": added}


def _lumina_masked(*size: int) -> Arguments:
    given = _captioned(*size)
    return (), {**given, "encoder_attention_mask": given["encoder_attention_mask"].long()}


def _rotated(rows: int, frames: int, height: int, width: int) -> Arguments:
    """Cosines and sines come from outside."""
    parts = frames * (height // 2) * (width // 2)
    angles = torch.rand(parts, 16)
    return (), {
        "hidden_states": torch.randn(rows, frames, 4, height, width),
        "encoder_hidden_states": torch.randn(rows, 6, _TEXT),
        "timestep": torch.randint(0, 1000, (rows,)),
        "image_rotary_emb": (angles.cos(), angles.sin()), "return_dict": False,
    }  # fmt: skip


def _counted(rows: int, frames: int, height: int, width: int, tokens: int) -> Arguments:
    """A video as a sequence, whose sizes come as ints."""
    mask = torch.ones(rows, tokens)
    mask[0, -2:] = 0
    return (), {
        "hidden_states": torch.randn(rows, frames * height * width, 8),
        "encoder_hidden_states": torch.randn(rows, tokens, _TEXT),
        "timestep": torch.randint(0, 1000, (rows,)), "encoder_attention_mask": mask,
        "num_frames": frames, "height": height, "width": width,
        "rope_interpolation_scale": (1 / 3, 32.0, 32.0), "return_dict": False,
    }  # fmt: skip


def _filmed(rows: int, frames: int, height: int, width: int, tokens: int) -> Arguments:
    return (), {
        "hidden_states": torch.randn(rows, 4, frames, height, width),
        "timestep": torch.randint(0, 1000, (rows,)),
        "encoder_hidden_states": torch.randn(rows, tokens, _TEXT), "return_dict": False,
    }  # fmt: skip


def _moving(rows: int, frames: int, height: int, width: int, tokens: int) -> Arguments:
    """One text for all frames of a video; as the pipeline does, each is there once."""
    (_, given) = _filmed(rows, frames, height, width, tokens)
    return (given["hidden_states"], given["timestep"][0]), {
        "encoder_hidden_states": given["encoder_hidden_states"].repeat_interleave(frames, 0),
        "return_dict": False,
    }  # fmt: skip


def _random(channels: int) -> Callable[..., Arguments]:
    def given(rows: int, *sizes: int) -> Arguments:
        return (torch.randn(rows, channels, *sizes),), {}

    return given


_TOLD: dict[str, Any] = {
    "seen": [(2, 8, 12, 5), (4, 12, 8, 7), (3, 16, 10, 9)],
    "unseen": [(5, 10, 12, 6), (2, 8, 18, 11)],
}  # fmt: skip
_EVEN: dict[str, Any] = {
    "seen": [(2, 8, 12, 5), (4, 12, 8, 7), (3, 16, 12, 9)],
    "unseen": [(5, 12, 20, 6), (2, 8, 16, 11)],
}  # fmt: skip
_VIDEOS: dict[str, Any] = {
    "seen": [(2, 3, 8, 12, 5), (1, 5, 12, 8, 7), (3, 4, 6, 10, 9)],
    "unseen": [(2, 6, 10, 8, 6), (4, 2, 8, 14, 8)],
}  # fmt: skip
_SIZES: dict[str, Any] = {
    "seen": [(2, 8, 12), (3, 12, 8), (2, 16, 20)], "unseen": [(4, 12, 16), (5, 8, 20)]
}  # fmt: skip
_LARGE: dict[str, Any] = {
    "seen": [(2, 24, 32), (1, 40, 24), (2, 32, 40)], "unseen": [(3, 40, 32), (1, 24, 48)]
}  # fmt: skip

CASES: list[Case] = [
    _pipeline(),
    simple("sdxl_unet", _sdxl, _sized, **_EVEN, note="a dict of more conditions"),
    simple("controlled_unet", _unet, _controlled, **_EVEN, note="a tuple of residuals"),
    simple("controlnet", _controlnet, _control, **_EVEN),
    simple("unet_class_labels", _unet_labelled, _labelled, **_SIZES),
    simple("sd3", _sd3, _pooled, **_EVEN, note="crops its table of positions"),
    simple("flux", _flux, _packed, **_TOLD, note="a sequence and its positions"),
    simple(
        "qwen_image", _qwen_image, _shaped,
        seen=[(2, 8, 12, 5), (3, 12, 8, 7), (2, 16, 10, 9), (3, 10, 14, 8)],
        unseen=[(2, 10, 12, 6), (3, 8, 18, 11)], note="the grid comes as ints",
    ),
    simple(
        "z_image", _z_image, _listed,
        seen=[((8, 12, 5), (8, 12, 7)), ((12, 8, 9), (12, 8, 6)), ((10, 16, 8), (10, 16, 11))],
        unseen=[((12, 10, 6), (12, 10, 10)), ((8, 18, 12), (8, 18, 7))],
        note="lists of pictures and texts",
    ),
    simple("lumina2", _lumina, _lumina_masked, **_EVEN, note="lengths read from the mask"),
    simple("pixart", _pixart, _unconditioned, **_EVEN, note="positions made for the size"),
    simple("sana", _sana, _with_mask, **_TOLD, note="linear attention"),
    simple(
        "cogvideox", _cogvideo, _rotated, seen=[(2, 3, 8, 12), (1, 5, 12, 8), (3, 4, 16, 10)],
        unseen=[(2, 6, 10, 8), (4, 2, 8, 14)], note="rotations come as a tuple",
    ),
    simple("ltx_video", _ltx, _counted, **_VIDEOS, note="sizes come as ints"),
    simple("wan_video", _wan, _filmed, **_VIDEOS, note="rotary on three axes"),
    simple(
        "motion_unet", _motion, _moving,
        seen=[(2, 3, 8, 12, 5), (1, 5, 12, 8, 7), (3, 4, 16, 12, 9)],
        unseen=[(2, 6, 8, 16, 6), (4, 7, 12, 20, 8)], note="frames are rows, and then a sequence",
    ),
    simple("vae_decode", _decoding, _random(4), **_SIZES),
    simple("vae_encode", _encoding, _random(3), **_SIZES),
    simple(
        "vae_decode_tiled", partial(_decoding, tiled=True), _random(4), **_LARGE,
        note="overlapping tiles, blended: as many as the size asks for",
    ),
    simple("vq_model", _vq, _random(3), **_SIZES, note="the nearest of a codebook"),
    simple(
        "wan_vae_decode", _video_decoding, _random(4),
        seen=[(1, 2, 4, 6), (2, 3, 6, 4), (1, 4, 8, 6)], unseen=[(2, 2, 6, 8), (1, 3, 4, 10)],
        note="frame by frame, with a cache of earlier ones",
    ),
]  # fmt: skip
