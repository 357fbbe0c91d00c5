"""A zoo of small models, each driven as its users would, that judges exporting."""

from __future__ import annotations

from tests.zoo import (
    audio,
    backbones,
    caches,
    constants,
    containers,
    decoders,
    decoding,
    denoisers,
    detectors,
    diffusion,
    documents,
    encoder_decoder,
    encoders,
    experts,
    films,
    geometric,
    graphs,
    indices,
    latents,
    multimodal,
    neighbourhoods,
    pictures,
    pixels,
    points,
    pyramids,
    ragged,
    readers,
    recurrent,
    series,
    speech,
    state,
    state_spaces,
    streams,
    tables,
    tensors,
    translators,
    vision,
    voices,
    waveforms,
)
from tests.zoo.case import Case

__all__ = ["CASES", "CORE", "FAMILIES", "Case"]

FAMILIES: dict[str, list[Case]] = {
    "Decoders": decoders.CASES,
    "Experts and attentions": experts.CASES,
    "Caches": caches.CASES,
    "Ways to decode": decoding.CASES,
    "State spaces": state_spaces.CASES,
    "Encoder-decoders": encoder_decoder.CASES,
    "Translators": translators.CASES,
    "Vision-language models": multimodal.CASES,
    "Pictures and words": pictures.CASES,
    "Encoders": encoders.CASES,
    "Retrieval and ranking": readers.CASES,
    "Documents": documents.CASES,
    "Vision": vision.CASES,
    "Backbones of timm": backbones.CASES,
    "Pyramids and windows of timm": pyramids.CASES,
    "Films, features and heads of torchvision": films.CASES,
    "Detectors": detectors.CASES,
    "Pixels, depth, flow and video": pixels.CASES,
    "Audio": audio.CASES,
    "Speech": speech.CASES,
    "Voices": voices.CASES,
    "Waveforms": waveforms.CASES,
    "Diffusion": diffusion.CASES,
    "Models of diffusers": denoisers.CASES,
    "Latents, steps and loops of diffusers": latents.CASES,
    "Recurrent networks and time series": recurrent.CASES,
    "Time series": series.CASES,
    "Graphs, tables and points": graphs.CASES,
    "Graphs of torch_geometric": geometric.CASES,
    "Neighbourhoods and pools of torch_geometric": neighbourhoods.CASES,
    "Points and atoms": points.CASES,
    "Tables and recommenders": tables.CASES,
    "Indices, offsets and positions": indices.CASES,
    "Nested tensors": ragged.CASES,
    "State, wrappers and dtypes": state.CASES,
    "Streams and statistics": streams.CASES,
    "Containers of arguments and outputs": containers.CASES,
    "Constants, ints and optional arguments": constants.CASES,
    "Awkward tensors": tensors.CASES,
}
"""Every case, by what it has in common with others."""

CASES: dict[str, Case] = {case.name: case for family in FAMILIES.values() for case in family}
"""Every case by its name."""

# fmt: off
CORE: tuple[str, ...] = (
    "llama_manual_padded", "llama_generate", "llama_generate_batch_one", "gpt2",
    "mixtral", "mistral_past_window", "mistral_across_window", "llama_static_generate",
    "llama_pairs", "inline_cache", "mamba", "jamba",
    "t5_generate", "t5_loss", "bart_manual", "whisper_generate",
    "llava_generate", "llava_manual", "qwen2_vl_manual",
    "bert_masked",
    "vit_any_size", "conv_net", "detr", "detector_any_number",
    "hubert", "unet",
    "lstm_state", "bidirectional_lstm", "packs_inside", "packed_sequence",
    "graph_pooled", "recommender",
    "dict_key_order", "tensor_list_of_any_length", "dataclass_argument", "namedtuple_argument",
    "varargs", "extra_kwargs_sometimes", "all_kinds_of_parameters", "returns_nested",
    "bool_flag", "int_slice", "int_in_dict", "int_pair",
    "broadcast_one_or_n", "complex_spectrum", "bfloat16", "non_contiguous",
    "mutates_its_input", "mask_is_past_plus_new", "empty_history",
)
# fmt: on
"""Some of every family, most of them quick, and those known to be hard: what is tried most often.
"""
