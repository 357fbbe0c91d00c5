"""Recurrent networks, with their state handed from call to call, and time series."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.zoo.case import Arguments, Case, captured, simple
from tests.zoo.containers import made
from tests.zoo.language import built

__all__ = ["CASES", "packed", "padded"]

_WIDTH = 8
State = tuple[Tensor, Tensor]


class Lstm(nn.Module):
    """Two layers whose state is an optional tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(_WIDTH, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        y, state = self.lstm(x, state)
        return self.head(y), state


class Gru(nn.Module):
    """Time first, as torch has it by default."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(_WIDTH, 16)

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        y, hidden = self.gru(x, hidden)
        return y.relu(), hidden


class Bidirectional(nn.Module):
    """Tags every token from both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, _WIDTH)
        self.lstm = nn.LSTM(_WIDTH, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


class Packs(nn.Module):
    """Packs inside: sequences and their lengths go in."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(_WIDTH, 16, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


class TakesPacked(nn.Module):
    """The caller packs."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(_WIDTH, 16)

    def forward(self, packed: PackedSequence) -> Tensor:
        return self.gru(packed)[1]


class Cell(nn.Module):
    """One step at a time, as a policy in a control loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(_WIDTH, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, observation: Tensor, hx: State) -> dict[str, Any]:
        hidden, carry = self.cell(observation, hx)
        return {"action": self.head(hidden).argmax(-1), "hx": (hidden, carry)}


class Forecaster(nn.Module):
    """Normalizes a window, and predicts a horizon that the caller chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.GRU(3, 16, batch_first=True)
        self.time = nn.Linear(1, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, history: Tensor, horizon: int) -> dict[str, Tensor]:
        mean, std = history.mean(1, keepdim=True), history.std(1, keepdim=True) + 1e-5
        last = self.encode((history - mean) / std)[1][-1]
        ahead = torch.arange(1, horizon + 1, dtype=history.dtype)[:, None] / 10
        hidden = (last[:, None] + self.time(ahead)).tanh()
        return {"mean": self.head(hidden) * std + mean, "scale": std}


class Tcn(nn.Module):
    """Dilated causal convolutions with exogenous variables, which may be missing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(4, 4, 3, dilation=2**n) for n in range(3))
        self.exogenous = nn.Linear(2, 4)

    def forward(self, series: Tensor, exogenous: Tensor | None = None) -> Tensor:
        x = series if exogenous is None else series + self.exogenous(exogenous)
        y = x.transpose(1, 2)
        for number, layer in enumerate(self.layers):
            y = y + layer(nn.functional.pad(y, (2 ** (number + 1), 0))).relu()
        return y.transpose(1, 2)


def _patchtst() -> nn.Module:
    return built(
        "PatchTSTForPrediction", "PatchTSTConfig", num_input_channels=3, context_length=16,
        patch_length=4, patch_stride=4, d_model=16, num_attention_heads=2, num_hidden_layers=2,
        ffn_dim=24, prediction_length=4, loss="mse",
    )  # fmt: skip


def _lstm_run(module: nn.Module, batch: int, *lengths: int) -> None:
    generator = torch.Generator().manual_seed(batch)
    state = None
    for length in lengths:
        x = torch.randn(batch, length, _WIDTH, generator=generator)
        _, state = module(x) if state is None else module(x, state)


def _lstm_drive(module: nn.Module) -> None:
    _lstm_run(module, 2, 5, 4, 7)
    _lstm_run(module, 3, 8, 3, 6)


def _lstm_unseen(module: nn.Module) -> list[Arguments]:
    return captured(module, lambda m: _lstm_run(m, 4, 9, 10), (0, 1))


def _streamed_drive(module: nn.Module) -> None:
    _lstm_run(module, 2, 5, 1, 1)
    _lstm_run(module, 3, 8, 1, 1)


def _streamed_unseen(module: nn.Module) -> list[Arguments]:
    return captured(module, lambda m: _lstm_run(m, 4, 9, 1, 1), (0, 2))


def _gru(batch: int, length: int) -> Arguments:
    return (torch.randn(length, batch, _WIDTH), torch.randn(1, batch, 16)), {}


def _ids(batch: int, length: int) -> Arguments:
    return (torch.randint(0, 30, (batch, length)),), {}


def _lengths(batch: int, length: int) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(1, length + 1, (batch,))
    lengths[0] = length
    return torch.randn(batch, length, _WIDTH), lengths


def padded(batch: int, length: int) -> Arguments:
    return _lengths(batch, length), {}


def packed(batch: int, length: int) -> Arguments:
    x, lengths = _lengths(batch, length)
    return (pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False),), {}


def _cell(batch: int) -> Arguments:
    state = torch.randn(batch, 16), torch.randn(batch, 16)
    return (), {"observation": torch.randn(batch, _WIDTH), "hx": state}


def _forecast(batch: int, length: int, horizon: int) -> Arguments:
    return (torch.randn(batch, length, 3),), {"horizon": horizon}


def _series(batch: int, length: int, exogenous: bool) -> Arguments:
    more = {"exogenous": torch.randn(batch, length, 2)} if exogenous else {}
    return (torch.randn(batch, length, 4),), more


def _windows(batch: int) -> Arguments:
    return (), {"past_values": torch.randn(batch, 16, 3)}


_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 9), (4, 7)], "unseen": [(5, 6), (2, 12)]}
_ROWS: dict[str, Any] = {"seen": [(2,), (3,), (5,)], "unseen": [(4,), (7,)]}

CASES: list[Case] = [
    Case("lstm_state", made(Lstm), _lstm_drive, _lstm_unseen, note="no state at first"),
    Case("lstm_streamed", made(Lstm), _streamed_drive, _streamed_unseen, note="then step by step"),
    simple("gru", made(Gru), _gru, **_PLANE),
    simple("bidirectional_lstm", made(Bidirectional), _ids, **_PLANE),
    simple("packs_inside", made(Packs), padded, **_PLANE),
    simple("packed_sequence", made(TakesPacked), packed, **_PLANE, classes=(PackedSequence,)),
    simple("lstm_cell", made(Cell), _cell, **_ROWS),
    simple(
        "forecaster", made(Forecaster), _forecast,
        seen=[(2, 12, 4), (3, 20, 7), (2, 16, 5)], unseen=[(4, 18, 6), (5, 24, 9)],
    ),
    simple(
        "tcn", made(Tcn), _series,
        seen=[(2, 12, True), (3, 20, False), (4, 16, True), (2, 14, False)],
        unseen=[(5, 18, True), (6, 24, False)],
    ),
    simple("patchtst", _patchtst, _windows, **_ROWS),
]  # fmt: skip
