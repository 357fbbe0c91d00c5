"""Sequence to sequence: translation, summaries, speech to text, captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tests.zoo.arguments import tiny_images
from tests.zoo.case import Arguments, Case, captured, simple
from tests.zoo.language import VOCAB, built, generated, prompt

__all__ = ["CASES", "audio", "labelled", "whisper"]

_START = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
_BART: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 128, "forced_eos_token_id": None,
    "bos_token_id": 2, **_START,
}  # fmt: skip


def _t5() -> torch.nn.Module:
    return built(
        "T5ForConditionalGeneration", "T5Config", vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48,
        num_layers=2, num_heads=4, relative_attention_num_buckets=8,
        relative_attention_max_distance=16, **_START,
    )  # fmt: skip


def _bart() -> torch.nn.Module:
    return built("BartForConditionalGeneration", "BartConfig", **_BART)


def _marian() -> torch.nn.Module:
    return built("MarianMTModel", "MarianConfig", **_BART)


def whisper() -> torch.nn.Module:
    """Two seconds of context instead of thirty."""
    return built(
        "WhisperForConditionalGeneration", "WhisperConfig", **{**_BART, "bos_token_id": 0},
        num_mel_bins=8, max_source_positions=50, max_target_positions=64,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip


def audio(batch: int, frames: int = 100) -> torch.Tensor:
    """Mel features as whisper's processor gives them."""
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, 8, frames, generator=generator)


def _captioner() -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    vision = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        image_size=16, patch_size=4,
    )  # fmt: skip
    text = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, is_decoder=True,
        add_cross_attention=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id, config.pad_token_id = 0, 0
    model = transformers.VisionEncoderDecoderModel(config=config).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.generation_config.decoder_start_token_id = 0
    return model


def _speech(batch: int, _: int) -> dict[str, torch.Tensor]:
    return {"input_features": audio(batch)}


def _decode(module: Any, encoded: Any, mask: torch.Tensor | None, batch: int, steps: int) -> None:
    """Greedy steps on encoded inputs; the first one has no cache."""
    ids, past = torch.zeros(batch, 1, dtype=torch.long), None
    options = {} if mask is None else {"attention_mask": mask}
    for _ in range(steps):
        output = module(
            encoder_outputs=encoded, decoder_input_ids=ids, cache=past, use_cache=True,
            **options,
        )  # fmt: skip
        past, ids = output.cache, output.logits[:, -1:].argmax(-1)


def _text_loop(module: Any, batch: int, length: int) -> None:
    given = prompt(batch, length)
    encoded = module.get_encoder()(**given)
    _decode(module, encoded, given["attention_mask"], batch, 3)


def _speech_loop(module: Any, batch: int, _: int) -> None:
    _decode(module, module.get_encoder()(audio(batch)), None, batch, 3)


def _manual(
    name: str,
    make: Callable[[], torch.nn.Module],
    run: Callable[[Any, int, int], None],
    prompts: Sequence[tuple[int, int]] = ((2, 5), (3, 9)),
    unseen: Sequence[tuple[int, int]] = ((4, 7), (5, 12)),
    note: str = "encoded once, by the caller",
) -> Case:
    def drive(module: Any) -> None:
        for size in prompts:
            run(module, *size)

    def others(module: Any) -> list[Arguments]:
        found: list[Arguments] = []
        for size in unseen:
            found += captured(module, lambda m, size=size: run(m, *size), (0, 2))
        return found

    return Case(name, make, drive, others, note=note)


def _pair(batch: int, length: int, target: int) -> Arguments:
    ids = torch.randint(3, VOCAB, (batch, target))
    return (), {**prompt(batch, length), "decoder_input_ids": ids, "use_cache": False}


def labelled(batch: int, length: int, target: int) -> Arguments:
    return (), {**prompt(batch, length), "labels": torch.randint(3, VOCAB, (batch, target))}


_PAIRS = {"seen": [(2, 5, 3), (3, 9, 4), (2, 7, 6)], "unseen": [(4, 6, 5), (5, 12, 2)]}
_PADDED = partial(prompt, padded=True)

CASES: list[Case] = [
    generated("t5_generate", _t5),
    _manual("t5_manual", _t5, _text_loop),
    simple("t5_teacher", _t5, _pair, **_PAIRS, note="no cache, both lengths vary"),
    simple("t5_loss", _t5, labelled, **_PAIRS, note="loss is a 0-d output"),
    generated("bart_generate", _bart),
    generated("bart_generate_padded", _bart, inputs=_PADDED),
    _manual("bart_manual", _bart, _text_loop),
    simple("bart_teacher", _bart, _pair, **_PAIRS),
    generated("marian_generate", _marian),
    _manual("marian_manual", _marian, _text_loop),
    generated("marian_beams", _marian, num_beams=2),
    generated("whisper_generate", whisper, inputs=_speech, note="length is fixed, batch varies"),
    _manual("whisper_manual", whisper, _speech_loop),
    generated(
        "captioner_generate", _captioner, inputs=tiny_images, note="ViT encodes, GPT-2 writes"
    ),
]
