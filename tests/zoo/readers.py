"""Retrieval and reranking: embeddings of texts, scores of pairs, entities and spans."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple
from tests.zoo.decoders import LLAMA
from tests.zoo.language import VOCAB, built

__all__ = ["CASES"]

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def _of(family: str, head: str = "Model", **options: Any) -> Any:
    return partial(built, f"{family}{head}", f"{family}Config", **{**_SIZES, **options})


class LastToken(nn.Module):
    """The state of the last token that is no padding, of length 1, as far as it is wanted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, size: int | None = None) -> Tensor:
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if bool(attention_mask[:, -1].all()):  # padded on the left
            found = states[:, -1]
        else:
            found = states[torch.arange(len(states)), attention_mask.sum(1) - 1]
        return nn.functional.normalize(found[:, :size], dim=-1)


class LateInteraction(nn.Module):
    """For each word of a query the word of the document that is nearest."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.project = nn.Linear(32, 16, bias=False)

    def _words(self, read: dict[str, Tensor]) -> Tensor:
        states = self.project(self.model(**read).last_hidden_state)
        return nn.functional.normalize(states, dim=-1) * read["attention_mask"][..., None]

    def forward(self, query: dict[str, Tensor], document: dict[str, Tensor]) -> Tensor:
        near = torch.einsum("qid,pjd->qpij", self._words(query), self._words(document))
        hidden = document["attention_mask"][None, :, None] == 0
        return near.masked_fill(hidden, -1.0).amax(-1).sum(-1)


def _last_token() -> nn.Module:
    sizes = {**LLAMA, "head_dim": 8}
    return LastToken(built("Qwen3Model", "Qwen3Config", **sizes, use_cache=False)).eval()


def _late() -> nn.Module:
    return LateInteraction(_of("Bert")()).eval()


def _t5_encoder() -> nn.Module:
    return built(
        "T5EncoderModel", "T5Config", vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2,
        num_heads=4, relative_attention_num_buckets=8, relative_attention_max_distance=16,
    )  # fmt: skip


def _words(rows: int, length: int) -> dict[str, Tensor]:
    """Padded on the right."""
    mask = (torch.arange(length) < torch.randint(2, length + 1, (rows, 1))).long()
    mask[0] = 1
    return {"input_ids": torch.randint(3, VOCAB, (rows, length)) * mask, "attention_mask": mask}


def _text(rows: int, length: int) -> Arguments:
    return (), dict(_words(rows, length))


def _cut(rows: int, length: int) -> Arguments:
    given = _words(rows, length)
    given["attention_mask"][-1, -1] = 0
    return (), {**given, "size": 16}


def _pair(rows: int, length: int) -> Arguments:
    given = _words(rows, length)
    second = (torch.arange(length) >= length // 2).long() * given["attention_mask"]
    return (), {**given, "token_type_ids": second}


def _two(queries: int, length: int, documents: int, words: int) -> Arguments:
    return (_words(queries, length), _words(documents, words)), {}


def _entities(rows: int, length: int, count: int) -> Arguments:
    """Spans of words that are names; their places are padded with -1."""
    places = torch.randint(0, length, (rows, count, 3))
    places[:, :, 2] = -1
    return (), {
        **_words(rows, length), "entity_ids": torch.randint(1, 20, (rows, count)),
        "entity_attention_mask": torch.ones(rows, count).long(), "entity_position_ids": places,
    }  # fmt: skip


_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 9), (4, 7)], "unseen": [(5, 6), (2, 12)]}
_LONG: dict[str, Any] = {"seen": [(2, 8), (3, 16), (4, 12)], "unseen": [(5, 20), (2, 28)]}
_score = _of("XLMRoberta", "ForSequenceClassification", num_labels=1)

CASES: list[Case] = [
    simple("cross_encoder", _of("Bert", "ForSequenceClassification", num_labels=1), _pair,
           **_PLANE),
    simple("roberta_reranker", _score, _text, **_PLANE),
    simple("last_token_embedding", _last_token, _cut, **_PLANE, note="an `if` on a mask"),
    simple("late_interaction_of_texts", _late, _two,
           seen=[(2, 5, 3, 9), (3, 4, 2, 7), (4, 6, 5, 8)], unseen=[(5, 7, 4, 6), (2, 3, 6, 12)]),
    simple("dpr_question", _of("DPR", "QuestionEncoder", projection_dim=16), _pair, **_PLANE),
    simple("mpnet", _of("MPNet", max_position_embeddings=66), _text, **_PLANE),
    simple("deberta", _of("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]), _text,
           **_PLANE, note="what is far apart is looked up in buckets"),
    simple("roformer", _of("RoFormer"), _text, **_PLANE),
    simple("nystromformer", _of("Nystromformer", num_landmarks=4, segment_means_seq_len=4,
           conv_kernel_size=3, max_position_embeddings=62), _text, **_LONG, note="landmarks"),
    simple("luke", _of("Luke", entity_vocab_size=20, entity_emb_size=16,
           max_position_embeddings=66), _entities, seen=[(2, 6, 2), (3, 9, 3), (4, 7, 4)],
           unseen=[(5, 8, 5), (2, 12, 3)], note="words and entities look at each other"),
    simple("splinter", _of("Splinter", question_token_id=7), _pair, **_PLANE),
    simple("gte", _of("Gte"), _text, **_PLANE),
    simple("jina_embeddings", _of("JinaEmbeddingsV3"), _text, **_PLANE),
    simple("t5_encoder", _t5_encoder, _text, **_PLANE),
]  # fmt: skip
