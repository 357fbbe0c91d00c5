"""Time series: windows and horizons, decompositions, periods that the data has, many channels."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import made
from tests.zoo.language import built

__all__ = ["CASES"]

_CHANNELS = 3
_WIDTH = 8
_CONTEXT = 16
_AHEAD = 4


class NBeats(nn.Module):
    """Blocks that each explain a part of the window, and what follows from it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(_CONTEXT, 16), nn.ReLU(), nn.Linear(16, _CONTEXT + _AHEAD))
            for _ in range(3)
        )

    def forward(self, x: Tensor, decompose: bool = False) -> Any:
        total, parts = x.new_zeros(*x.shape[:-1], _AHEAD), []
        for block in self.blocks:
            back, ahead = block(x).split([_CONTEXT, _AHEAD], dim=-1)
            x, total = x - back, total + ahead
            parts.append(ahead)
        return (total, torch.stack(parts)) if decompose else total


class Decomposed(nn.Module):
    """Trend by a moving average that repeats the edges, and the rest (DLinear), per channel."""

    def __init__(self, kernel: int = 5) -> None:
        super().__init__()
        self.kernel = kernel
        self.trend, self.season = nn.Linear(_CONTEXT, _AHEAD), nn.Linear(_CONTEXT, _AHEAD)

    def forward(self, x: Tensor) -> Tensor:
        half = (self.kernel - 1) // 2
        front, end = x[:, :1].repeat(1, half, 1), x[:, -1:].repeat(1, half, 1)
        padded = torch.cat([front, x, end], dim=1).mT
        trend = nn.functional.avg_pool1d(padded, self.kernel, stride=1)
        return (self.trend(trend) + self.season(x.mT - trend)).mT


class Inverted(nn.Module):
    """Every channel is a token; their number is up to the caller (iTransformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(_CONTEXT, _WIDTH)
        layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(_WIDTH, _AHEAD)

    def forward(self, x: Tensor, marks: Tensor | None = None) -> Tensor:
        mean, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False) + 1e-5
        tokens = self.embed(((x - mean) / scale).mT)
        if marks is not None:
            tokens = torch.cat([tokens, self.embed(marks.mT)], dim=1)
        y = self.head(self.encoder(tokens))[:, : x.shape[-1]].mT
        return y * scale + mean


class Periods(nn.Module):
    """Folds the series by the periods that its own spectrum has (TimesNet): shapes are data."""

    def __init__(self, top: int = 2) -> None:
        super().__init__()
        self.top = top
        self.conv = nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, channels = x.shape
        strength = torch.fft.rfft(x, dim=1).abs()
        mean = strength.mean((0, 2))
        mean[0] = 0
        chosen = mean.topk(self.top).indices.tolist()
        found = []
        for frequency in chosen:
            period = length // frequency
            whole = (length + period - 1) // period * period
            y = nn.functional.pad(x, (0, 0, 0, whole - length))
            y = y.reshape(rows, whole // period, period, channels).permute(0, 3, 1, 2)
            found.append(self.conv(y).permute(0, 2, 3, 1).reshape(rows, -1, channels)[:, :length])
        weights = strength.mean(-1)[:, chosen].softmax(1)
        return (torch.stack(found, -1) * weights[:, None, None]).sum(-1) + x


class Fusion(nn.Module):
    """Static, past and known future inputs in dicts by name; gates and quantiles (TFT)."""

    def __init__(self) -> None:
        super().__init__()
        self.static = nn.Embedding(10, _WIDTH)
        self.past, self.future = nn.Linear(2, _WIDTH), nn.Linear(1, _WIDTH)
        self.encoder = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)
        self.decoder = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)
        self.attention = nn.MultiheadAttention(_WIDTH, 2, batch_first=True)
        self.gate = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.quantiles = nn.Linear(_WIDTH, 3)

    def forward(
        self, past: dict[str, Tensor], future: dict[str, Tensor], static: Tensor
    ) -> dict[str, Tensor]:
        context = self.static(static)
        before = self.past(torch.stack([past["target"], past["price"]], dim=-1))
        after = self.future(future["price"].unsqueeze(-1))
        start = (context[None], torch.zeros_like(context)[None])
        encoded, state = self.encoder(before, start)
        decoded, _ = self.decoder(after, state)
        every = torch.cat([encoded, decoded], dim=1)
        length, ahead = every.shape[1], decoded.shape[1]
        causal = ~torch.ones(length, length, dtype=torch.bool).tril()[-ahead:]
        y, weights = self.attention(decoded, every, every, attn_mask=causal)
        y = decoded + nn.functional.glu(self.gate(y), dim=-1)
        return {"quantiles": self.quantiles(y), "attention": weights}


class DeepAr(nn.Module):
    """Steps through the horizon, each prediction the next input; the scale is that of the past."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(2, _WIDTH, num_layers=2, batch_first=True)
        self.mean, self.scale = nn.Linear(_WIDTH, 1), nn.Linear(_WIDTH, 1)

    def forward(self, past: Tensor, covariates: Tensor) -> tuple[Tensor, Tensor]:
        level = 1 + past.abs().mean(1, keepdim=True)
        known, ahead = past.shape[1], covariates.shape[1] - past.shape[1]
        x = torch.stack([past / level, covariates[:, :known]], dim=-1)
        y, state = self.cell(x)
        means, scales = [], []
        for step in range(ahead):
            means.append(self.mean(y[:, -1:]))
            scales.append(nn.functional.softplus(self.scale(y[:, -1:])))
            x = torch.cat([means[-1], covariates[:, known + step, None, None]], dim=-1)
            y, state = self.cell(x, state)
        mean, scale = torch.cat(means, 1).squeeze(-1), torch.cat(scales, 1).squeeze(-1)
        return mean * level, scale * level


class WaveNet(nn.Module):
    """Gated dilated convolutions; the receptive field is cut off the skips."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Conv1d(1, 4, 1)
        self.gates = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2**n) for n in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(4, 6, 1) for _ in range(4))
        self.outlet = nn.Conv1d(6, 16, 1)

    def forward(self, audio: Tensor, condition: Tensor | None = None) -> Tensor:
        x = self.inlet(audio.unsqueeze(1))
        if condition is not None:
            x = x + condition.unsqueeze(-1)
        skips = []
        for gate, skip in zip(self.gates, self.skips, strict=True):
            value, switch = gate(x).chunk(2, dim=1)
            y = value.tanh() * switch.sigmoid()
            skips.append(skip(y))
            x = x[..., -y.shape[-1] :] + y
        length = skips[-1].shape[-1]
        return self.outlet(sum(one[..., -length:] for one in skips).relu())


class StateSpace(nn.Module):
    """A diagonal state space as one long convolution in the frequency domain (S4D)."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        self.log_step = nn.Parameter(torch.rand(_WIDTH) - 3)
        self.rate = nn.Parameter(torch.rand(_WIDTH, states))
        self.frequency = nn.Parameter(torch.arange(states).repeat(_WIDTH, 1) * 3.14)
        self.mix = nn.Parameter(torch.randn(_WIDTH, states, dtype=torch.cfloat))
        self.outlet = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        poles = torch.complex(-self.rate.exp(), self.frequency) * self.log_step.exp()[:, None]
        powers = (poles[..., None] * torch.arange(length)).exp()
        kernel = 2 * torch.einsum("ws,wsl->wl", self.mix, powers).real
        spectrum = torch.fft.rfft(x.mT, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length].mT
        return self.outlet(nn.functional.gelu(y))


class Patched(nn.Module):
    """Cuts a series of any length into patches with unfold, padded by its last value (PatchTST)."""

    def __init__(self, patch: int = 4, stride: int = 2) -> None:
        super().__init__()
        self.patch, self.stride = patch, stride
        self.pad = nn.ReplicationPad1d((0, stride))
        self.embed = nn.Linear(patch, _WIDTH)
        self.layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, batch_first=True)

    def forward(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        if observed is not None:
            x = x * observed
        rows, _, channels = x.shape
        patches = self.pad(x.mT).unfold(-1, self.patch, self.stride)
        y = self.layer(self.embed(patches).flatten(0, 1)).mean(1)
        return y.view(rows, channels, _WIDTH)


class ScaledTokens(nn.Module):
    """Values over their mean become tokens by buckets, missing ones a token of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(-4, 4, 20))
        self.embed = nn.Embedding(23, _WIDTH)
        self.gru = nn.GRU(_WIDTH, 8, batch_first=True)

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        missing = context.isnan()
        known = context.nan_to_num(0.0).abs().sum(-1) / (~missing).sum(-1).clamp(min=1)
        scale = torch.where(known > 0, known, 1.0)
        ids = torch.bucketize(context / scale[:, None], self.edges, right=True) + 1
        ids = ids.masked_fill(missing, 0)
        return ids, self.gru(self.embed(ids))[1][0], scale


def _forecasting(name: str, **options: Any) -> nn.Module:
    """A model of transformers with lags and features of time."""
    return built(
        f"{name}Model", f"{name}Config", prediction_length=_AHEAD, context_length=8,
        lags_sequence=[1, 2, 3], num_time_features=2, num_static_categorical_features=1,
        cardinality=[5], embedding_dimension=[4], d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16, **options,
    )  # fmt: skip


def _mixer() -> nn.Module:
    return built(
        "PatchTSMixerForPrediction", "PatchTSMixerConfig", context_length=_CONTEXT, patch_length=4,
        patch_stride=4, num_input_channels=_CHANNELS, d_model=8, num_layers=2,
        prediction_length=_AHEAD, loss="mse",
    )  # fmt: skip


def _window(rows: int) -> Arguments:
    return (torch.randn(rows, _CONTEXT, _CHANNELS),), {}


def _flat(rows: int, decompose: bool) -> Arguments:
    return (torch.randn(rows, _CONTEXT),), {"decompose": True} if decompose else {}


def _channels(rows: int, channels: int, marks: int) -> Arguments:
    named = {"marks": torch.randn(rows, _CONTEXT, marks)} if marks else {}
    return (torch.randn(rows, _CONTEXT, channels),), named


def _series(rows: int, length: int) -> Arguments:
    times = torch.arange(length)[None, :, None] * torch.tensor([0.7, 1.9, 0.3])
    return (times.sin() + torch.randn(rows, length, _CHANNELS) / 5,), {}


def _observed(rows: int, length: int, masked: bool) -> Arguments:
    args, _ = _series(rows, length)
    return args, {"observed": torch.rand(rows, length, _CHANNELS) < 0.8} if masked else {}


def _fused(rows: int, length: int, ahead: int) -> Arguments:
    past = {"target": torch.randn(rows, length), "price": torch.randn(rows, length)}
    future = {"price": torch.randn(rows, ahead)}
    return (past, future, torch.randint(0, 10, (rows,))), {}


def _stepped(rows: int, length: int, ahead: int) -> Arguments:
    return (torch.randn(rows, length), torch.randn(rows, length + ahead)), {}


def _audio(rows: int, length: int, conditioned: bool) -> Arguments:
    return (torch.randn(rows, length),), {"condition": torch.randn(rows, 4)} if conditioned else {}


def _steps(rows: int, length: int) -> Arguments:
    return (torch.randn(rows, length, _WIDTH),), {}


def _gaps(rows: int, length: int) -> Arguments:
    context = torch.randn(rows, length)
    context[torch.rand(rows, length) < 0.2] = float("nan")
    return (context,), {}


def _lagged(rows: int) -> Arguments:
    length = 8 + 3
    return (), {
        "past_values": torch.randn(rows, length),
        "past_time_features": torch.randn(rows, length, 2),
        "past_observed_mask": (torch.rand(rows, length) < 0.9).float(),
        "static_categorical_features": torch.randint(0, 5, (rows, 1)),
        "future_values": torch.randn(rows, _AHEAD),
        "future_time_features": torch.randn(rows, _AHEAD, 2),
    }


def _past(rows: int) -> Arguments:
    return (), {"past_values": torch.randn(rows, _CONTEXT, _CHANNELS)}


_ROWS: dict[str, Any] = {"seen": [(2,), (3,), (5,)], "unseen": [(4,), (7,)]}
_PLANE: dict[str, Any] = {"seen": [(2, 12), (3, 20), (4, 16)], "unseen": [(5, 18), (2, 25)]}

CASES: list[Case] = [
    simple(
        "n_beats", made(NBeats), _flat,
        seen=[(2, False), (3, True), (5, False), (4, True)], unseen=[(6, False), (7, True)],
    ),
    simple("dlinear", made(Decomposed), _window, **_ROWS),
    simple(
        "inverted_transformer", made(Inverted), _channels,
        seen=[(2, 3, 2), (3, 5, 0), (4, 4, 3), (2, 6, 0)], unseen=[(5, 7, 4), (3, 8, 0)],
        note="channels are tokens; marks of time sometimes",
    ),
    simple("times_net", made(Periods), _series, **_PLANE, note="periods from the data are shapes"),
    simple(
        "fusion_transformer", made(Fusion), _fused,
        seen=[(2, 8, 3), (3, 12, 5), (4, 10, 4)], unseen=[(5, 9, 6), (2, 15, 2)],
    ),
    simple(
        "deep_ar", made(DeepAr), _stepped,
        seen=[(2, 8, 3), (3, 12, 3), (4, 10, 3)], unseen=[(5, 9, 3), (2, 15, 3)],
        note="a loop over a horizon that is a difference of sizes, always 3",
    ),
    simple(
        "wave_net", made(WaveNet), _audio,
        seen=[(2, 24, True), (3, 32, False), (4, 28, True), (2, 30, False)],
        unseen=[(5, 36, True), (3, 26, False)],
    ),
    simple("state_space", made(StateSpace), _steps, **_PLANE),
    simple(
        "patched_series", made(Patched), _observed,
        seen=[(2, 12, True), (3, 20, False), (4, 16, True), (2, 18, False)],
        unseen=[(5, 17, True), (3, 25, False)],
    ),
    simple("scaled_tokens", made(ScaledTokens), _gaps, **_PLANE, note="gaps are not a number"),
    simple("time_series_transformer", partial(_forecasting, "TimeSeriesTransformer"), _lagged,
           **_ROWS),
    simple("autoformer", partial(_forecasting, "Autoformer", label_length=4), _lagged, **_ROWS),
    simple("patch_mixer", _mixer, _past, **_ROWS),
]  # fmt: skip
