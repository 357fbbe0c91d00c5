"""Speech and music from libraries: recognizers, synthesizers, codecs, and what generates codes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import masked_sounds, mono, sounds
from tests.zoo.case import Arguments, Case, captured, lively, simple
from tests.zoo.encoder_decoder import whisper
from tests.zoo.language import VOCAB, built, generated, prompt

__all__ = ["CASES"]

_CONVOLUTIONS: dict[str, Any] = {
    "conv_dim": (8, 8), "conv_kernel": (8, 4), "conv_stride": (4, 2),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_LAYERS: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
_WAVE: dict[str, Any] = {"vocab_size": 20, **_LAYERS, **_CONVOLUTIONS}
_XVECTOR: dict[str, Any] = {
    "tdnn_dim": (16, 16, 24), "tdnn_kernel": (3, 3, 1), "tdnn_dilation": (1, 2, 1),
    "xvector_output_dim": 16,
}  # fmt: skip
_CONFORMER: dict[str, Any] = {**_LAYERS, "vocab_size": 20, "conv_depthwise_kernel_size": 3}
_SEQUENCE: dict[str, Any] = {
    "vocab_size": VOCAB, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip


def _of(family: str, head: str, **options: Any) -> Any:
    return partial(built, f"{family}{head}", f"{family}Config", **options)


def _data2vec() -> nn.Module:
    return built(
        "Data2VecAudioForAudioFrameClassification", "Data2VecAudioConfig",
        **{**_WAVE, "num_conv_pos_embeddings": 2}, conv_pos_kernel_size=3, num_labels=3,
    )  # fmt: skip


def _speech5() -> nn.Module:
    return built(
        "SpeechT5ForSpeechToText", "SpeechT5Config", hidden_size=32, **_SEQUENCE, **_CONVOLUTIONS,
        max_text_positions=64, encoder_max_relative_position=8,
    )  # fmt: skip


def _speech_to_text() -> nn.Module:
    return built(
        "Speech2TextForConditionalGeneration", "Speech2TextConfig", d_model=32, **_SEQUENCE,
        input_feat_per_channel=8, conv_channels=16, conv_kernel_sizes=(3, 3),
        max_source_positions=64, max_target_positions=64,
    )  # fmt: skip


def _moonshine() -> nn.Module:
    return built(
        "MoonshineForConditionalGeneration", "MoonshineConfig", vocab_size=VOCAB, hidden_size=32,
        intermediate_size=48, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4, decoder_num_attention_heads=4, pad_token_id=0,
    )  # fmt: skip


def _seamless() -> nn.Module:
    return built(
        "SeamlessM4TForSpeechToText", "SeamlessM4TConfig", hidden_size=32, **_SEQUENCE,
        speech_encoder_layers=2, speech_encoder_attention_heads=4,
        speech_encoder_intermediate_size=48, feature_projection_input_dim=16,
        conv_depthwise_kernel_size=3, adaptor_kernel_size=4, adaptor_stride=4,
        max_position_embeddings=128, max_source_positions=64, position_embeddings_type="relative",
    )  # fmt: skip


def _bark_fine() -> nn.Module:
    return built(
        "BarkFineModel", "BarkFineConfig", input_vocab_size=33, output_vocab_size=33, num_layers=2,
        num_heads=4, hidden_size=32, block_size=64, n_codes_total=4,
    )  # fmt: skip


def _musicgen() -> nn.Module:
    """A text encoder, a decoder of four codebooks, and a codec that it does not call."""
    import transformers

    torch.manual_seed(0)
    text = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        relative_attention_num_buckets=8, relative_attention_max_distance=16,
    )  # fmt: skip
    codec = transformers.EncodecConfig(
        num_filters=4, hidden_size=16, codebook_dim=16, codebook_size=32, upsampling_ratios=[4, 2],
        num_lstm_layers=1, target_bandwidths=[120.0],
    )  # fmt: skip
    decoder = transformers.MusicgenDecoderConfig(
        vocab_size=32, max_position_embeddings=64, num_hidden_layers=2, ffn_dim=48,
        num_attention_heads=4, hidden_size=32, num_codebooks=4, pad_token_id=32, bos_token_id=32,
    )  # fmt: skip
    config = transformers.MusicgenConfig(
        text_encoder=text.to_dict(), audio_encoder=codec.to_dict(), decoder=decoder.to_dict()
    )
    model: Any = lively(transformers.MusicgenForConditionalGeneration(config))
    model.generation_config.decoder_start_token_id = 32
    model.generation_config.pad_token_id = 32
    model.generation_config.bos_token_id = 32
    return model


def _compose(module: Any, batch: int, length: int) -> None:
    """Half of the rows are guided by nothing, as the model is used."""
    module.generate(**prompt(batch, length), do_sample=False, max_new_tokens=4, guidance_scale=3.0)


def _musicgen_drive(module: nn.Module) -> None:
    _compose(module, 1, 5)
    _compose(module, 2, 9)


def _musicgen_unseen(module: nn.Module) -> list[Arguments]:
    return [
        *captured(module, lambda m: _compose(m, 3, 7), (0, 3)),
        *captured(module, lambda m: _compose(m, 4, 12), (0, 3)),
    ]


_PARAKEET: dict[str, Any] = {
    **_LAYERS, "conv_kernel_size": 3, "subsampling_factor": 4, "subsampling_conv_channels": 8,
    "num_mel_bins": 16, "max_position_embeddings": 64,
}  # fmt: skip


def _parakeet() -> nn.Module:
    return built(
        "ParakeetForCTC", "ParakeetCTCConfig", vocab_size=20, pad_token_id=19,
        encoder_config=_PARAKEET,
    )  # fmt: skip


def _vits() -> nn.Module:
    return built(
        "VitsModel", "VitsConfig", vocab_size=20, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, ffn_dim=24, flow_size=16, spectrogram_bins=9, noise_scale=0.0,
        noise_scale_duration=0.0, use_stochastic_duration_prediction=False,
        upsample_initial_channel=16, upsample_rates=(4, 2), upsample_kernel_sizes=(8, 4),
        resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1, 3),),
        duration_predictor_filter_channels=16, prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2, posterior_encoder_num_wavenet_layers=2,
        wavenet_kernel_size=3,
    )  # fmt: skip


def _fastspeech() -> nn.Module:
    return built(
        "FastSpeech2ConformerModel", "FastSpeech2ConformerConfig", hidden_size=16, vocab_size=20,
        num_mel_bins=8, encoder_num_attention_heads=2, encoder_layers=1, encoder_linear_units=24,
        decoder_layers=1, decoder_num_attention_heads=2, decoder_linear_units=24,
        speech_decoder_postnet_layers=2, speech_decoder_postnet_units=16, encoder_kernel_size=3,
        decoder_kernel_size=3, duration_predictor_channels=16, energy_predictor_channels=16,
        pitch_predictor_channels=16, pitch_predictor_layers=2, max_source_positions=64,
    )  # fmt: skip


def _vocoder() -> nn.Module:
    return built(
        "SpeechT5HifiGan", "SpeechT5HifiGanConfig", model_in_dim=8, upsample_initial_channel=16,
        upsample_rates=(4, 2), upsample_kernel_sizes=(8, 4), resblock_kernel_sizes=(3, 5),
        resblock_dilation_sizes=((1, 3), (1, 3)),
    )  # fmt: skip


def _dac() -> nn.Module:
    return built(
        "DacModel", "DacConfig", encoder_hidden_size=4, downsampling_ratios=[4, 2],
        decoder_hidden_size=16, n_codebooks=3, codebook_size=32, codebook_dim=4,
    )  # fmt: skip


def _mimi() -> nn.Module:
    model = built(
        "MimiModel", "MimiConfig", hidden_size=16, num_filters=4, upsampling_ratios=[4, 2],
        codebook_size=32, codebook_dim=8, num_quantizers=4, upsample_groups=16,
        vector_quantization_hidden_dimension=8, num_hidden_layers=1, intermediate_size=24,
        num_attention_heads=4, num_key_value_heads=4, sliding_window=8, sampling_rate=200,
    )  # fmt: skip
    for name, buffer in model.named_buffers():
        if name.endswith("embed_sum"):  # zeros otherwise: every sound would be the same
            nn.init.normal_(buffer)
    return model


def _clap() -> nn.Module:
    return built(
        "ClapModel", "ClapConfig", projection_dim=16,
        text_config={**_LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 64},
        audio_config={
            "window_size": 4, "num_mel_bins": 16, "spec_size": 64, "patch_size": 4,
            "num_attention_heads": [2, 4], "hidden_size": 32, "patch_embeds_hidden_size": 16,
            "num_hidden_layers": 2, "patch_stride": (4, 4), "depths": [1, 1],
        },
    )  # fmt: skip


def _features(rows: int, frames: int) -> Arguments:
    """Mel frames, the first row padded on the right."""
    mask = torch.ones(rows, frames, dtype=torch.long)
    mask[0, -4:] = 0
    return (), {"input_features": torch.randn(rows, frames, 16), "attention_mask": mask}


def _codes(rows: int, length: int, book: int) -> Arguments:
    return (book, torch.randint(0, 32, (rows, length, 4))), {}


def _text(rows: int, length: int) -> Arguments:
    return (), prompt(rows, length, padded=False) | {"input_ids": _tokens(rows, length)}


def _tokens(rows: int, length: int) -> Tensor:
    return torch.randint(1, 20, (rows, length))


def _spectrogram(rows: int, frames: int) -> Arguments:
    return (torch.randn(rows, frames, 8),), {}


def _pairs(sounds: int, texts: int, length: int) -> Arguments:
    return (), {
        **prompt(texts, length), "input_features": torch.randn(sounds, 1, 64, 16),
        "is_longer": torch.zeros(sounds, 1, dtype=torch.bool),
    }  # fmt: skip


def _spoken(batch: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return {"input_values": torch.randn(batch, 16 * length, generator=generator)}


def _frames(batch: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    features = torch.randn(batch, 4 * length, 8, generator=generator)
    return {"input_features": features, "attention_mask": torch.ones(batch, 4 * length).long()}


def _wide_frames(batch: int, length: int) -> dict[str, Tensor]:
    features = _frames(batch, length)
    return {**features, "input_features": features["input_features"].repeat(1, 1, 2)}


def _long_wave(batch: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return {"input_values": torch.randn(batch, 384 * length, generator=generator)}


def _speech(batch: int, _: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return {"input_features": torch.randn(batch, 8, 100, generator=generator)}


_LENGTHS: dict[str, Any] = {
    "seen": [(2, 160), (3, 240), (2, 200)], "unseen": [(4, 280), (5, 184)]
}  # fmt: skip
_FRAMES: dict[str, Any] = {"seen": [(2, 32), (3, 48), (2, 40)], "unseen": [(4, 56), (5, 36)]}
_PLANE: dict[str, Any] = {"seen": [(2, 6), (3, 10), (4, 8)], "unseen": [(5, 7), (2, 13)]}
_ALONE: dict[str, Any] = {"seen": [(1, 6), (1, 10), (1, 8)], "unseen": [(1, 7), (1, 13)]}

CASES: list[Case] = [
    simple("wavlm", _of("WavLM", "ForCTC", **_WAVE), sounds, **_LENGTHS, note="gated positions"),
    simple("wavlm_speakers", _of("WavLM", "ForXVector", **_WAVE, **_XVECTOR), masked_sounds,
           **_LENGTHS, note="statistics over each row's own length"),
    simple("unispeech_sat", _of("UniSpeechSat", "ForSequenceClassification", **_WAVE), sounds,
           **_LENGTHS),
    simple("data2vec_audio", _data2vec, masked_sounds, **_LENGTHS, note="a class per frame"),
    simple("sew", _of("SEW", "ForCTC", **_WAVE), masked_sounds, **_LENGTHS,
           note="squeezes by two, and stretches again"),
    simple("wav2vec2_conformer", _of("Wav2Vec2Conformer", "ForCTC", **_CONFORMER, **_CONVOLUTIONS),
           sounds, **_LENGTHS, note="positions shifted by a reshape"),
    simple("wav2vec2_rotary", _of("Wav2Vec2Conformer", "ForCTC", **_CONFORMER, **_CONVOLUTIONS,
           position_embeddings_type="rotary"), masked_sounds, **_LENGTHS, note="caches its angles"),
    simple("wav2vec2_bert", _of("Wav2Vec2Bert", "ForCTC", **_CONFORMER, add_adapter=True,
           feature_projection_input_dim=16, left_max_position_embeddings=8,
           right_max_position_embeddings=4), _features, **_FRAMES, note="an adapter halves"),
    simple("parakeet_ctc", _parakeet, _features, **_FRAMES, note="subsamples by four"),
    generated("speech_to_text", _speech_to_text, [(2, 8), (3, 12)], [(4, 10), (5, 13)],
              inputs=_frames),
    generated("speecht5_asr", _speech5, [(2, 10), (3, 15)], [(4, 12), (5, 18)], inputs=_spoken),
    generated("moonshine", _moonshine, [(2, 5), (3, 9)], [(4, 7), (5, 10)], inputs=_long_wave),
    generated("seamless_m4t", _seamless, [(2, 8), (3, 12)], [(4, 10), (5, 13)],
              inputs=_wide_frames, tgt_lang=None, note="a shrinking adaptor after the encoder"),
    generated("whisper_beams", whisper, inputs=_speech, num_beams=2),
    Case("musicgen", _musicgen, _musicgen_drive, _musicgen_unseen,
         note="rows are texts × 2 (guidance), ids are rows × codebooks"),
    simple("bark_fine", _bark_fine, _codes,
           seen=[(2, 6, 1), (3, 10, 1), (2, 8, 2), (4, 7, 2)], unseen=[(5, 9, 1), (2, 12, 2)],
           note="an int says which head and how many codebooks"),
    simple("vits", _vits, _text, **_ALONE, note="how long the sound is, is in the values"),
    simple("fastspeech2", _fastspeech, _text, **_ALONE, note="repeats each phoneme as it predicts"),
    simple("hifi_gan", _vocoder, _spectrogram, **_PLANE),
    simple("dac", _dac, mono, **_LENGTHS, note="residual codebooks"),
    simple("mimi", _mimi, mono, **_LENGTHS, note="a transformer between codec and codebooks"),
    simple("clap", _clap, _pairs, seen=[(2, 3, 5), (3, 2, 9), (4, 5, 7)],
           unseen=[(5, 4, 6), (2, 6, 12)], note="sounds times texts"),
]  # fmt: skip
