"""Text encoders: with and without a mask, with labels, pooled into sentences."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import random_ids
from tests.zoo.case import Arguments, Case, simple
from tests.zoo.language import VOCAB, built

__all__ = ["CASES"]

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def _encoder(family: str, head: str = "Model", **options: Any) -> Any:
    return partial(built, f"{family}{head}", f"{family}Config", **{**_SIZES, **options})


def _distilbert() -> nn.Module:
    return built(
        "DistilBertForSequenceClassification", "DistilBertConfig", vocab_size=VOCAB, dim=32,
        hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=64,
    )  # fmt: skip


class Sentences(nn.Module):
    """What sentence-embedding libraries export: an encoder and a mean over the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder("Bert")()

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        hidden = self.encoder(**features).last_hidden_state
        mask = features["attention_mask"].unsqueeze(-1).float()
        embedding = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return {**features, "sentence_embedding": nn.functional.normalize(embedding, dim=-1)}


class Taggers(nn.Module):
    """A hand-written transformer of torch.nn with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=True)
        self.embed = nn.Embedding(VOCAB, 32)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(self.embed(ids), src_key_padding_mask=padding))


def _sentences() -> nn.Module:
    torch.manual_seed(0)
    return Sentences().eval()


def _taggers() -> nn.Module:
    torch.manual_seed(0)
    return Taggers().eval()


def _mask(rows: int, length: int) -> Tensor:
    """Padded on the right, as tokenizers do for encoders."""
    lengths = torch.randint(2, length + 1, (rows, 1))
    return (torch.arange(length) < lengths).long()


def _plain(rows: int, length: int) -> Arguments:
    return (random_ids(rows, length),), {}


def _masked(rows: int, length: int) -> Arguments:
    return (), {"input_ids": random_ids(rows, length), "attention_mask": _mask(rows, length)}


def _typed(rows: int, length: int) -> Arguments:
    kwargs = {**_masked(rows, length)[1], "token_type_ids": torch.randint(0, 2, (rows, length))}
    return (), kwargs


def _sometimes(rows: int, length: int, masked: bool) -> Arguments:
    return _masked(rows, length) if masked else ((), {"input_ids": random_ids(rows, length)})


def _features(rows: int, length: int) -> Arguments:
    return (_typed(rows, length)[1],), {}


def _labelled(rows: int, length: int) -> Arguments:
    return (), {**_masked(rows, length)[1], "labels": torch.randint(0, 2, (rows,))}


def _everything(rows: int, length: int) -> Arguments:
    options = {"output_hidden_states": True, "return_dict": False}
    return (), {**_masked(rows, length)[1], **options}


def _padding(rows: int, length: int, padded: bool) -> Arguments:
    padding = _mask(rows, length) == 0
    return (random_ids(rows, length),), {"padding": padding} if padded else {}


_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 9), (4, 7)], "unseen": [(5, 6), (2, 12)]}
_ONES: dict[str, Any] = {"seen": [(1, 5), (1, 9), (1, 7)], "unseen": [(1, 6), (1, 12)]}
_EITHER: dict[str, Any] = {
    "seen": [(2, 5, True), (3, 9, False), (4, 7, True), (2, 6, False)],
    "unseen": [(5, 6, True), (2, 12, False)],
}
_DEBERTA: dict[str, Any] = {
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
    "max_relative_positions": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
}  # fmt: skip

CASES: list[Case] = [
    simple("bert", _encoder("Bert"), _plain, **_PLANE, note="ids alone, by position"),
    simple("bert_masked", _encoder("Bert"), _masked, **_PLANE),
    simple("bert_batch_one", _encoder("Bert"), _masked, **_ONES, note="always batch 1"),
    simple("bert_token_types", _encoder("Bert"), _typed, **_PLANE),
    simple("bert_mask_sometimes", _encoder("Bert"), _sometimes, **_EITHER),
    simple("bert_tuple_output", _encoder("Bert"), _everything, **_PLANE, note="nested tuple"),
    simple("bert_classifier_loss", _encoder("Bert", "ForSequenceClassification"), _labelled,
           **_PLANE, note="loss is 0-d"),
    simple("bert_question", _encoder("Bert", "ForQuestionAnswering"), _typed, **_PLANE),
    simple("sentence_embedding", _sentences, _features, **_PLANE, note="one dict in, it goes out"),
    simple("distilbert", _distilbert, _masked, **_PLANE),
    simple("roberta", _encoder("Roberta", "ForTokenClassification"), _masked, **_PLANE,
           note="positions from a cumulative sum"),
    simple("electra", _encoder("Electra", embedding_size=16), _masked, **_PLANE),
    simple("albert", _encoder("Albert", embedding_size=16), _masked, **_PLANE),
    simple("deberta_v2", _encoder("DebertaV2", **_DEBERTA), _masked, **_PLANE),
    simple("modernbert", _encoder("ModernBert", "ForMaskedLM", local_attention=4,
           global_attn_every_n_layers=2), _masked, **_PLANE, note="local and global layers"),
    simple("torch_transformer", _taggers, _padding, **_EITHER),
]  # fmt: skip
