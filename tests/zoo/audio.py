"""Audio: waveforms of any length, spectrograms, codecs."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.arguments import masked_sounds, sounds
from tests.zoo.case import Arguments, Case, simple
from tests.zoo.encoder_decoder import audio, whisper
from tests.zoo.language import built

__all__ = ["CASES", "coded"]

_WAVE: dict[str, Any] = {
    "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "conv_dim": (8, 8), "conv_kernel": (8, 4), "conv_stride": (4, 2),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip

_wav2vec2 = partial(built, "Wav2Vec2ForCTC", "Wav2Vec2Config", **_WAVE)
_wav2vec2_layer = partial(
    built, "Wav2Vec2ForCTC", "Wav2Vec2Config", **_WAVE, feat_extract_norm="layer",
    do_stable_layer_norm=True,
)  # fmt: skip
_hubert = partial(built, "HubertModel", "HubertConfig", **_WAVE)


def _ast() -> nn.Module:
    return built(
        "ASTForAudioClassification", "ASTConfig", hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=48, max_length=32, num_mel_bins=16, patch_size=8,
        frequency_stride=4, time_stride=4,
    )  # fmt: skip


def _whisper_encoder() -> nn.Module:
    return whisper().get_encoder().eval()


def _encodec() -> nn.Module:
    model = built(
        "EncodecModel", "EncodecConfig", num_filters=4, hidden_size=16, codebook_dim=16,
        codebook_size=32, upsampling_ratios=[4, 2], num_lstm_layers=1, num_residual_layers=1,
        target_bandwidths=[24.0],
    )  # fmt: skip
    for name, buffer in model.named_buffers():
        if name.endswith("codebook.embed"):  # zeros otherwise: every sound would be the same
            torch.nn.init.normal_(buffer)
    return model


def _spectrogram(rows: int) -> Arguments:
    return (torch.randn(rows, 32, 16),), {}


def _features(rows: int) -> Arguments:
    return (audio(rows),), {}


def coded(rows: int, samples: int) -> Arguments:
    return (), {"input_values": torch.randn(rows, 1, samples)}


_LENGTHS: dict[str, Any] = {
    "seen": [(2, 160), (3, 240), (2, 200)], "unseen": [(4, 280), (5, 180)]
}  # fmt: skip
_ROWS: dict[str, Any] = {"seen": [(2,), (3,), (5,)], "unseen": [(4,), (7,)]}

CASES: list[Case] = [
    simple("wav2vec2", _wav2vec2, sounds, **_LENGTHS),
    simple("wav2vec2_masked", _wav2vec2_layer, masked_sounds, **_LENGTHS),
    simple("hubert", _hubert, sounds, **_LENGTHS),
    simple("ast", _ast, _spectrogram, **_ROWS),
    simple("whisper_encoder", _whisper_encoder, _features, **_ROWS),
    simple("encodec", _encodec, coded, **_LENGTHS, note="quantizes: integers inside"),
]
