"""More of diffusers: transformers of sound and video, UNets of each dimension, decoders, steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import images
from tests.zoo.case import Arguments, Case, lively, simple

__all__ = ["CASES"]

_TEXT = 16


def _built(name: str, **options: Any) -> Any:
    """A model of diffusers from its config, with random weights."""
    import diffusers

    torch.manual_seed(0)
    return lively(getattr(diffusers, name)(**options))


_aura = partial(
    _built, "AuraFlowTransformer2DModel", sample_size=16, patch_size=2, num_mmdit_layers=1,
    num_single_dit_layers=1, attention_head_dim=16, num_attention_heads=2,
    joint_attention_dim=_TEXT, caption_projection_dim=32, pos_embed_max_size=256,
)  # fmt: skip
_cogview = partial(
    _built, "CogView4Transformer2DModel", patch_size=2, in_channels=4, out_channels=4,
    num_layers=2, attention_head_dim=16, num_attention_heads=2, text_embed_dim=_TEXT,
    time_embed_dim=8, condition_dim=4, pos_embed_max_size=16, rope_axes_dim=(16, 16),
)  # fmt: skip
_hunyuan = partial(
    _built, "HunyuanVideoTransformer3DModel", in_channels=4, out_channels=4,
    num_attention_heads=2, attention_head_dim=16, num_layers=1, num_single_layers=1,
    num_refiner_layers=1, patch_size=2, text_embed_dim=_TEXT, pooled_projection_dim=12,
    rope_axes_dim=(4, 6, 6),
)  # fmt: skip
_mochi = partial(
    _built, "MochiTransformer3DModel", patch_size=2, num_attention_heads=2, attention_head_dim=16,
    num_layers=2, pooled_projection_dim=12, in_channels=4, text_embed_dim=_TEXT, time_embed_dim=8,
    max_sequence_length=8,
)  # fmt: skip
_stable_audio = partial(
    _built, "StableAudioDiTModel", sample_size=16, in_channels=4, num_layers=2,
    attention_head_dim=16, num_attention_heads=2, num_key_value_attention_heads=1, out_channels=4,
    cross_attention_dim=16, time_proj_dim=8, global_states_input_dim=12,
    cross_attention_input_dim=_TEXT,
)  # fmt: skip
_unet_1d = partial(
    _built, "UNet1DModel", sample_size=64, block_out_channels=(32, 32, 64), extra_in_channels=64,
    down_block_types=("DownBlock1DNoSkip", "DownBlock1D", "AttnDownBlock1D"),
    up_block_types=("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"),
)  # fmt: skip
_unet_3d = partial(
    _built, "UNet3DConditionModel", block_out_channels=(8, 16), layers_per_block=1,
    norm_num_groups=4, cross_attention_dim=_TEXT, attention_head_dim=4,
    down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
    up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
)  # fmt: skip
_video_unet = partial(
    _built, "UNetSpatioTemporalConditionModel", block_out_channels=(32, 64), layers_per_block=1,
    down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
    up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
    addition_time_embed_dim=4, projection_class_embeddings_input_dim=12, cross_attention_dim=_TEXT,
    num_attention_heads=(2, 2),
)  # fmt: skip
_uvit = partial(
    _built, "UVit2DModel", hidden_size=32, cond_embed_dim=12, micro_cond_encode_dim=4,
    micro_cond_embed_dim=20, encoder_hidden_size=_TEXT, vocab_size=33, codebook_size=32,
    in_channels=16, block_out_channels=16, num_res_blocks=1, block_num_heads=2,
    num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, sample_size=8,
)  # fmt: skip
_labelled_dit = partial(
    _built, "DiTTransformer2DModel", num_attention_heads=2, attention_head_dim=16, in_channels=4,
    out_channels=8, num_layers=2, sample_size=8, patch_size=2, num_embeds_ada_norm=20,
)  # fmt: skip


class Decoding(nn.Module):
    """From latents to what people see or hear."""

    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, latents: Tensor, num_frames: int | None = None) -> Tensor:
        more = {} if num_frames is None else {"num_frames": num_frames}
        return self.autoencoder.decode(latents, **more, return_dict=False)[0]


def _decoding(name: str, **options: Any) -> nn.Module:
    return Decoding(_built(name, **options)).eval()


_dc = partial(
    _decoding, "AutoencoderDC", latent_channels=4, attention_head_dim=4,
    encoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_layers_per_block=(1, 1),
    decoder_block_types=("ResBlock", "EfficientViTBlock"), decoder_layers_per_block=(1, 1),
    encoder_block_out_channels=(8, 16), decoder_block_out_channels=(8, 16),
    encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
)  # fmt: skip
_cogvideo = partial(
    _decoding, "AutoencoderKLCogVideoX", block_out_channels=(8, 8, 16), latent_channels=4,
    layers_per_block=1, norm_num_groups=4, down_block_types=("CogVideoXDownBlock3D",) * 3,
    up_block_types=("CogVideoXUpBlock3D",) * 3, temporal_compression_ratio=2,
)  # fmt: skip
_ltx = partial(
    _decoding, "AutoencoderKLLTXVideo", latent_channels=4, block_out_channels=(8, 8),
    decoder_block_out_channels=(8, 8), layers_per_block=(1, 1, 1),
    decoder_layers_per_block=(1, 1, 1), spatio_temporal_scaling=(True, False),
    decoder_spatio_temporal_scaling=(True, False), decoder_inject_noise=(False,) * 3,
    down_block_types=("LTXVideoDownBlock3D",) * 2, downsample_type=("conv",) * 2,
    upsample_residual=(False,) * 2, upsample_factor=(1,) * 2, patch_size=2,
)  # fmt: skip
_temporal = partial(
    _decoding, "AutoencoderKLTemporalDecoder", block_out_channels=(32, 32), sample_size=32,
    down_block_types=("DownEncoderBlock2D",) * 2,
)  # fmt: skip
_oobleck = partial(
    _decoding, "AutoencoderOobleck", encoder_hidden_size=8, downsampling_ratios=[2, 4],
    channel_multiples=[1, 2], decoder_channels=8, decoder_input_channels=4, audio_channels=2,
)  # fmt: skip


class Step(nn.Module):
    """A step of sampling: the denoiser, then the scheduler, by the timestep of the caller."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import diffusers

        self.unet = _built(
            "UNet2DModel", block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
            in_channels=3, out_channels=3, attention_head_dim=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip
        self.scheduler = getattr(diffusers, name)()
        self.scheduler.set_timesteps(10)

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        noise = self.unet(sample, timestep).sample
        return self.scheduler.step(noise, timestep, sample).prev_sample


class Sampler(nn.Module):
    """The whole loop, a few steps, from noise to a picture."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import diffusers

        self.unet = Step("DDIMScheduler").unet
        self.scheduler = getattr(diffusers, name)()

    def forward(self, noise: Tensor) -> Tensor:
        self.scheduler.set_timesteps(3)
        sample = noise * self.scheduler.init_noise_sigma
        for timestep in self.scheduler.timesteps:
            given = self.scheduler.scale_model_input(sample, timestep)
            found = self.unet(given, timestep).sample
            sample = self.scheduler.step(found, timestep, sample).prev_sample
        return sample


def _stepped(name: str) -> nn.Module:
    return Step(name).eval()


def _sampler(name: str) -> nn.Module:
    return Sampler(name).eval()


def _time(rows: int) -> Tensor:
    return torch.randint(0, 1000, (rows,))


def _text(rows: int, tokens: int) -> Tensor:
    return torch.randn(rows, tokens, _TEXT)


def _mask(rows: int, tokens: int) -> Tensor:
    mask = torch.ones(rows, tokens)
    mask[0, -2:] = 0
    return mask


def _aura_step(rows: int, height: int, width: int, tokens: int) -> Arguments:
    return (), {
        "hidden_states": torch.randn(rows, 4, height, width), "return_dict": False,
        "encoder_hidden_states": _text(rows, tokens), "timestep": torch.rand(rows),
    }  # fmt: skip


def _cogview_step(rows: int, height: int, width: int, tokens: int) -> Arguments:
    """The sizes of the picture come as tensors, too."""
    size = torch.tensor([[8.0 * height, 8.0 * width]] * rows)
    return (), {
        "hidden_states": torch.randn(rows, 4, height, width), "return_dict": False,
        "encoder_hidden_states": _text(rows, tokens), "timestep": _time(rows),
        "original_size": size, "target_size": size.clone(), "crop_coords": torch.zeros(rows, 2),
    }  # fmt: skip


def _hunyuan_step(rows: int, frames: int, height: int, width: int, tokens: int) -> Arguments:
    return (), {
        "hidden_states": torch.randn(rows, 4, frames, height, width), "timestep": _time(rows),
        "encoder_hidden_states": _text(rows, tokens),
        "encoder_attention_mask": _mask(rows, tokens),
        "pooled_projections": torch.randn(rows, 12), "guidance": torch.full((rows,), 6000.0),
        "return_dict": False,
    }  # fmt: skip


def _mochi_step(rows: int, frames: int, height: int, width: int, tokens: int) -> Arguments:
    return (), {
        "hidden_states": torch.randn(rows, 4, frames, height, width), "timestep": _time(rows),
        "encoder_hidden_states": _text(rows, 8), "return_dict": False,
        "encoder_attention_mask": (torch.arange(8) < tokens).expand(rows, 8).clone(),
    }  # fmt: skip


def _audio_step(rows: int, length: int, tokens: int) -> Arguments:
    angles = torch.rand(length + 1, 8)
    return (), {
        "hidden_states": torch.randn(rows, 4, length), "timestep": torch.rand(rows),
        "encoder_hidden_states": _text(rows, tokens),
        "global_hidden_states": torch.randn(rows, 1, 12),
        "rotary_embedding": (angles.cos(), angles.sin()), "return_dict": False,
    }  # fmt: skip


def _wave_step(rows: int, length: int) -> Arguments:
    return (torch.randn(rows, 2, length), _time(rows)), {"return_dict": False}


def _film_step(rows: int, frames: int, height: int, width: int, tokens: int) -> Arguments:
    sample = torch.randn(rows, 4, frames, height, width)
    return (sample, _time(rows), _text(rows, tokens)), {"return_dict": False}


def _video_step(rows: int, frames: int, height: int, width: int) -> Arguments:
    sample = torch.randn(rows, frames, 8, height, width)
    ids = torch.tensor([[6.0, 127.0, 0.02]] * rows)
    return (sample, torch.tensor(0.7), _text(rows, 1), ids), {"return_dict": False}


def _token_step(rows: int, height: int, width: int, tokens: int) -> Arguments:
    micro = torch.tensor([[512.0, 512.0, 0.0, 0.0, 6.0]] * rows)
    ids = torch.randint(0, 33, (rows, height, width))
    return (ids, _text(rows, tokens), torch.randn(rows, 12), micro), {}


def _class_step(rows: int, step: int) -> Arguments:
    labels = torch.randint(0, 20, (rows,))
    given = {"timestep": torch.full((rows,), step), "class_labels": labels, "return_dict": False}
    return (torch.randn(rows, 4, 8, 8),), given


def _picture_latents(rows: int, height: int, width: int) -> Arguments:
    return (torch.randn(rows, 4, height, width),), {}


def _film_latents(rows: int, frames: int, height: int, width: int) -> Arguments:
    return (torch.randn(rows, 4, frames, height, width),), {}


def _frame_latents(rows: int, frames: int, height: int, width: int) -> Arguments:
    return (torch.randn(rows * frames, 4, height, width),), {"num_frames": frames}


def _sound_latents(rows: int, length: int) -> Arguments:
    return (torch.randn(rows, 4, length),), {}


def _scheduled(rows: int, height: int, width: int, step: int) -> Arguments:
    return (torch.randn(rows, 3, height, width), torch.tensor(step)), {}


_EVEN: dict[str, Any] = {
    "seen": [(2, 8, 12, 5), (4, 12, 8, 7), (3, 16, 12, 9)],
    "unseen": [(5, 12, 14, 6), (2, 8, 16, 11)],
}  # fmt: skip
_FILMS: dict[str, Any] = {
    "seen": [(2, 3, 8, 12, 5), (1, 5, 12, 8, 7), (3, 4, 16, 12, 6)],
    "unseen": [(2, 6, 12, 8, 6), (4, 2, 8, 16, 8)],
}  # fmt: skip
_VIDEOS: dict[str, Any] = {
    "seen": [(2, 3, 8, 12), (1, 5, 12, 8), (3, 4, 16, 12)],
    "unseen": [(2, 6, 12, 8), (4, 2, 8, 16)],
}  # fmt: skip
_SIZES: dict[str, Any] = {
    "seen": [(2, 8, 12), (3, 12, 8), (2, 16, 20)], "unseen": [(4, 12, 16), (5, 8, 20)]
}  # fmt: skip
_STEPS: dict[str, Any] = {
    "seen": [(2, 8, 12, 900), (3, 12, 8, 500), (2, 16, 20, 200)],
    "unseen": [(4, 12, 16, 700), (5, 8, 20, 300)],
}  # fmt: skip

CASES: list[Case] = [
    simple("aura_flow", _aura, _aura_step, **_EVEN, note="takes the middle of a table"),
    simple("cogview", _cogview, _cogview_step, **_EVEN, note="rotations stretched to the size"),
    simple("hunyuan_video", _hunyuan, _hunyuan_step, **_FILMS, note="a mask counts the tokens"),
    simple("mochi_video", _mochi, _mochi_step, **_FILMS, note="selects the tokens, row by row"),
    simple("stable_audio", _stable_audio, _audio_step, seen=[(2, 12, 5), (3, 16, 7), (2, 20, 6)],
           unseen=[(4, 14, 8), (5, 24, 9)]),
    simple("unet_1d", _unet_1d, _wave_step, seen=[(2, 64), (3, 96), (2, 128)],
           unseen=[(4, 80), (5, 160)], note="filters of its own to resample"),
    simple("unet_3d", _unet_3d, _film_step, **_FILMS),
    simple("video_unet", _video_unet, _video_step, **_VIDEOS, note="blends space and time"),
    simple("uvit", _uvit, _token_step, **_EVEN, note="a picture of tokens"),
    simple("dit_labelled", _labelled_dit, _class_step, seen=[(2, 10), (3, 500), (5, 999)],
           unseen=[(4, 20), (7, 250)]),
    simple("dc_decode", _dc, _picture_latents, **_SIZES, note="linear attention at several scales"),
    simple("cogvideo_decode", _cogvideo, _film_latents, seen=[(1, 3, 4, 6), (2, 5, 6, 4),
           (1, 4, 8, 6)], unseen=[(2, 3, 6, 8), (1, 5, 4, 10)], note="two frames at a time"),
    simple("ltx_decode", _ltx, _film_latents, seen=[(1, 2, 4, 6), (2, 3, 6, 4), (1, 4, 8, 6)],
           unseen=[(2, 2, 6, 8), (1, 5, 4, 10)]),
    simple("temporal_decode", _temporal, _frame_latents, seen=[(1, 3, 8, 12), (2, 2, 12, 8),
           (1, 5, 16, 8)], unseen=[(2, 4, 8, 16), (1, 6, 12, 12)], note="rows = videos x frames"),
    simple("oobleck_decode", _oobleck, _sound_latents, seen=[(2, 12), (3, 16), (2, 20)],
           unseen=[(4, 14), (5, 24)]),
    simple("ddim_step", partial(_stepped, "DDIMScheduler"), _scheduled, **_STEPS,
           note="looks up the alphas by the timestep"),
    simple("ddim_sampler", partial(_sampler, "DDIMScheduler"), images, **_SIZES,
           note="the loop within the model"),
    simple("euler_sampler", partial(_sampler, "EulerDiscreteScheduler"), images, **_SIZES,
           note="a scheduler that counts its steps"),
]  # fmt: skip
