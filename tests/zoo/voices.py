"""Speech inside language models, codebooks that are written in parallel, and vocoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import drawn
from tests.zoo.case import Arguments, Case, captured, lively, simple
from tests.zoo.language import VOCAB, built, generated, looped, prompt

__all__ = ["CASES"]

_AUDIO = VOCAB - 1
_LAYERS: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
_TEXT: dict[str, Any] = {
    **_LAYERS, "model_type": "llama", "vocab_size": VOCAB, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
_SEQUENCE: dict[str, Any] = {
    "vocab_size": VOCAB, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
_CODEC: dict[str, Any] = {
    "model_type": "mimi", "hidden_size": 16, "num_filters": 4, "upsampling_ratios": [4, 2],
    "codebook_size": 32, "codebook_dim": 8, "num_quantizers": 4, "upsample_groups": 16,
    "vector_quantization_hidden_dimension": 8, "num_hidden_layers": 1, "intermediate_size": 24,
    "num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": 8, "sampling_rate": 200,
}  # fmt: skip
_BOOKS = 4


def _voxtral() -> nn.Module:
    return built(
        "VoxtralForConditionalGeneration", "VoxtralConfig", audio_token_id=_AUDIO,
        text_config=_TEXT,
        audio_config={**_LAYERS, "intermediate_size": 64, "num_mel_bins": 8,
                      "max_source_positions": 16},
    )  # fmt: skip


def _qwen2_audio() -> nn.Module:
    return built(
        "Qwen2AudioForConditionalGeneration", "Qwen2AudioConfig", audio_token_index=_AUDIO,
        text_config={**_TEXT, "model_type": "qwen2"},
        audio_config={"num_mel_bins": 8, "encoder_layers": 2, "encoder_attention_heads": 4,
                      "encoder_ffn_dim": 48, "d_model": 32, "max_source_positions": 16},
    )  # fmt: skip


def _granite_speech() -> nn.Module:
    former = {
        **_LAYERS, "model_type": "blip_2_qformer", "encoder_hidden_size": 32, "vocab_size": VOCAB,
        "cross_attention_frequency": 1,
    }  # fmt: skip
    return built(
        "GraniteSpeechForConditionalGeneration", "GraniteSpeechConfig", audio_token_index=_AUDIO,
        text_config={**_TEXT, "model_type": "granite"}, projector_config=former,
        downsample_rate=2, window_size=4, has_lora_adapter=False,
        encoder_config={"input_dim": 8, "num_layers": 2, "hidden_dim": 32, "feedforward_mult": 2,
                        "num_heads": 4, "dim_head": 8, "output_dim": 12, "context_size": 8,
                        "max_pos_emb": 16, "conv_kernel_size": 3},
    )  # fmt: skip


def _seamless_v2() -> nn.Module:
    return built(
        "SeamlessM4Tv2ForSpeechToText", "SeamlessM4Tv2Config", hidden_size=32, **_SEQUENCE,
        speech_encoder_layers=2, speech_encoder_attention_heads=4, adaptor_kernel_size=4,
        speech_encoder_intermediate_size=48, feature_projection_input_dim=16, adaptor_stride=4,
        conv_depthwise_kernel_size=3, speech_encoder_chunk_size=16, speech_encoder_left_chunk_num=1,
        left_max_position_embeddings=8, right_max_position_embeddings=4,
    )  # fmt: skip


def _listener() -> nn.Module:
    """wav2vec 2.0 listens, and a decoder of BART's kind writes."""
    import transformers

    torch.manual_seed(0)
    ear = transformers.Wav2Vec2Config(
        **_LAYERS, conv_dim=(8, 8), conv_kernel=(8, 4), conv_stride=(4, 2), vocab_size=20,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, add_adapter=True,
        num_adapter_layers=1, output_hidden_size=32,
    )  # fmt: skip
    text = transformers.BartConfig(
        **_SEQUENCE, d_model=32, max_position_embeddings=64, forced_eos_token_id=None
    )
    config = transformers.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(ear, text)
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    model: Any = lively(transformers.SpeechEncoderDecoderModel(config=config))
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.decoder_start_token_id = None, 0, 2
    return model


def _kyutai() -> nn.Module:
    return built(
        "KyutaiSpeechToTextForConditionalGeneration", "KyutaiSpeechToTextConfig", vocab_size=VOCAB,
        codebook_vocab_size=33, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        ffn_dim=48, num_codebooks=_BOOKS, audio_bos_token_id=32, sliding_window=6, bos_token_id=2,
        audio_pad_token_id=VOCAB + _BOOKS * 33, codec_config=_CODEC, max_position_embeddings=64,
    )  # fmt: skip


def _csm() -> nn.Module:
    depth = {
        **_LAYERS, "num_codebooks": _BOOKS, "backbone_hidden_size": 32, "vocab_size": 33,
        "num_key_value_heads": 2, "max_position_embeddings": _BOOKS + 1,
    }  # fmt: skip
    return built(
        "CsmForConditionalGeneration", "CsmConfig", **_LAYERS, num_codebooks=_BOOKS, vocab_size=33,
        text_vocab_size=VOCAB, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
        codebook_pad_token_id=32, bos_token_id=2, audio_token_id=_AUDIO, audio_eos_token_id=3,
        depth_decoder_config=depth, codec_config=_CODEC,
    )  # fmt: skip


def _depth() -> nn.Module:
    model: Any = _csm()
    decoder = model.depth_decoder
    decoder.generation_config.eos_token_id = None
    decoder.generation_config.pad_token_id = 0
    return decoder


def _dia() -> nn.Module:
    sizes = {
        "max_position_embeddings": 64, "num_hidden_layers": 2, "hidden_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 48,
    }  # fmt: skip
    decoder = {
        **sizes, "num_key_value_heads": 2, "cross_num_attention_heads": 4, "cross_head_dim": 8,
        "cross_num_key_value_heads": 4, "cross_hidden_size": 32, "vocab_size": 36,
        "num_channels": 3, "pad_token_id": 33, "eos_token_id": 32, "bos_token_id": 34,
    }  # fmt: skip
    model = built(
        "DiaForConditionalGeneration", "DiaConfig", encoder_config={**sizes, "vocab_size": VOCAB},
        decoder_config=decoder, delay_pattern=[0, 1, 2], pad_token_id=33, eos_token_id=32,
        bos_token_id=34,
    )  # fmt: skip
    model.generation_config.eos_token_id = 32  # the delays are counted from it
    model.generation_config.pad_token_id = 33
    return model


def _melody() -> nn.Module:
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
    decoder = transformers.MusicgenMelodyDecoderConfig(
        vocab_size=32, max_position_embeddings=64, num_hidden_layers=2, ffn_dim=48,
        num_attention_heads=4, hidden_size=32, num_codebooks=4, pad_token_id=32, bos_token_id=32,
    )  # fmt: skip
    config = transformers.MusicgenMelodyConfig(
        text_encoder=text.to_dict(), audio_encoder=codec.to_dict(), decoder=decoder.to_dict(),
        num_chroma=6, chroma_length=5,
    )  # fmt: skip
    model: Any = lively(transformers.MusicgenMelodyForConditionalGeneration(config))
    settings = model.generation_config
    settings.decoder_start_token_id = settings.pad_token_id = settings.bos_token_id = 32
    return model


def _univnet() -> nn.Module:
    return built(
        "UnivNetModel", "UnivNetConfig", model_in_channels=8, model_hidden_channels=8,
        num_mel_bins=10, resblock_kernel_sizes=(3, 3), resblock_stride_sizes=(4, 2),
        resblock_dilation_sizes=((1, 3), (1, 3)), kernel_predictor_num_blocks=1,
        kernel_predictor_hidden_channels=8,
    )  # fmt: skip


def _clvp() -> nn.Module:
    encoder = {
        **_LAYERS, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": VOCAB,
        "projection_dim": 64, "bos_token_id": 2, "eos_token_id": 1,
    }  # fmt: skip
    decoder = {
        "vocab_size": VOCAB, "max_position_embeddings": 128, "max_text_tokens": 64,
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "feature_size": 8,
        "num_mel_attn_blocks": 1, "bos_token_id": 2, "eos_token_id": 1,
        "decoder_fixing_codes": (7, 5, 5, 9),
    }  # fmt: skip
    return built(
        "ClvpModelForConditionalGeneration", "ClvpConfig", text_config=encoder,
        speech_config=encoder, decoder_config=decoder, projection_dim=64,
    )  # fmt: skip


def _heard(batch: int, length: int, tokens: int) -> dict[str, Tensor]:
    """A prompt whose first token is followed by those that stand for sound."""
    text = prompt(batch, length)["input_ids"] % _AUDIO
    ids = torch.cat([text[:, :1], text.new_full((batch, tokens), _AUDIO), text[:, 1:]], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _thirty_seconds(batch: int, length: int) -> dict[str, Tensor]:
    """Every sound has as many frames; the tower joins them four by four."""
    return {**_heard(batch, length, 8), "input_features": drawn(batch, batch, 8, 32)}


def _some_seconds(batch: int, length: int) -> dict[str, Tensor]:
    frames = torch.ones(batch, 32).long()
    return {**_thirty_seconds(batch, length), "feature_attention_mask": frames}


def _any_frames(batch: int, length: int) -> dict[str, Tensor]:
    """As many frames as the sound is long; blocks of 4 become 2 tokens each."""
    blocks = (2 * length + 3) // 4
    features = drawn(batch, batch, 2 * length, 8)
    mask = torch.ones(batch, 2 * blocks, dtype=torch.bool)
    return {
        **_heard(batch, length, 2 * blocks), "input_features": features,
        "input_features_mask": mask,
    }  # fmt: skip


def _frames(batch: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, 4 * length, dtype=torch.long)
    mask[0, -4:] = 0
    return {"input_features": drawn(batch, batch, 4 * length, 16), "attention_mask": mask}


def _spoken(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_values": drawn(batch, batch, 32 * length)}


def _columns(module: Any, batch: int, length: int, steps: int) -> None:
    """Each step brings a word and the codes of the sound that is heard meanwhile."""
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(3, 32, (batch, length, 1 + _BOOKS), generator=generator)
    output = module(input_ids=ids, use_cache=True)
    for _ in range(steps):
        codes = torch.randint(3, 32, (batch, 1, _BOOKS), generator=generator)
        ids = torch.cat([output.logits[:, -1:].argmax(-1)[..., None], codes], dim=-1)
        output = module(input_ids=ids, cache=output.cache, use_cache=True)


def _conversation(module: Any, batch: int, length: int, steps: int) -> None:
    """Text first, then frames of one code per codebook."""
    output = module(**prompt(batch, length), use_cache=True)
    generator = torch.Generator().manual_seed(batch)
    for _ in range(steps):
        rest = torch.randint(0, 32, (batch, 1, _BOOKS - 1), generator=generator)
        frame = torch.cat([output.logits[:, -1:].argmax(-1)[..., None], rest], dim=-1)
        output = module(input_ids=frame, cache=output.cache, use_cache=True)


def _frame_of_codes(batch: int, _: int) -> dict[str, Tensor]:
    """The first code, behind the place of the backbone's state."""
    first = torch.randint(1, 32, (batch, 1), generator=torch.Generator().manual_seed(batch))
    return {
        "input_ids": nn.functional.pad(first, (1, 0)),
        "backbone_last_hidden_state": drawn(batch, batch, 32),
    }


def _compose(module: Any, batch: int, length: int) -> None:
    """A melody goes before the text, and half of the rows are guided by nothing."""
    chroma = nn.functional.one_hot(torch.arange(7).expand(batch, -1) % 6, 6).float()
    module.generate(
        **prompt(batch, length), input_features=chroma, do_sample=False, max_new_tokens=4,
        guidance_scale=3.0,
    )  # fmt: skip


def _melody_drive(module: nn.Module) -> None:
    _compose(module, 1, 5)
    _compose(module, 2, 9)


def _melody_unseen(module: nn.Module) -> list[Arguments]:
    return [
        *captured(module, lambda m: _compose(m, 3, 7), (0, 3)),
        *captured(module, lambda m: _compose(m, 4, 12), (0, 3)),
    ]


def _noise(rows: int, frames: int) -> Arguments:
    return (), {
        "input_features": torch.randn(rows, frames, 10),
        "noise_sequence": torch.randn(rows, frames, 8),
    }


def _voice(rows: int, length: int, frames: int) -> Arguments:
    return (), {**prompt(rows, length), "input_features": torch.randn(rows, 8, frames)}


_PLANE: dict[str, Any] = {"seen": [(2, 6), (3, 10), (4, 8)], "unseen": [(5, 7), (2, 13)]}
_SPEECH: dict[str, Any] = {"prompts": [(2, 8), (3, 12)], "unseen": [(4, 10), (5, 13)]}
_LONGER: dict[str, Any] = {"prompts": [(2, 9), (3, 12)], "unseen": [(4, 10), (5, 15)]}

CASES: list[Case] = [
    generated("voxtral", _voxtral, inputs=_thirty_seconds),
    generated("qwen2_audio", _qwen2_audio, inputs=_some_seconds),
    generated("granite_speech", _granite_speech, **_SPEECH, inputs=_any_frames,
              note="blocks of 8 frames, a window of 4 for the projector"),
    generated("seamless_m4t_v2", _seamless_v2, **_SPEECH, inputs=_frames, tgt_lang=None,
              note="attention in chunks of 16"),
    generated("speech_encoder_decoder", _listener, **_SPEECH, inputs=_spoken),
    looped("kyutai_speech", _kyutai, **_LONGER, run=_columns, note="a word and four codes a step"),
    looped("csm_backbone", _csm, run=_conversation, note="text ids of two dimensions, codes of 3"),
    generated("csm_depth", _depth, [(2, 1), (3, 1)], [(4, 1), (5, 1)], inputs=_frame_of_codes,
              new=3, note="as many steps as codebooks"),
    generated("dia", _dia, note="three delayed channels, guided by nothing"),
    Case("musicgen_melody", _melody, _melody_drive, _melody_unseen, note="a melody before text"),
    simple("univnet", _univnet, _noise, **_PLANE, note="kernels that are predicted per place"),
    simple("clvp", _clvp, _voice, seen=[(2, 5, 12), (3, 9, 16), (4, 7, 14)],
           unseen=[(5, 6, 18), (2, 12, 13)], note="pads its own tokens around the text"),
]  # fmt: skip
