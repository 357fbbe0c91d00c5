"""Audio models as repositories have them: transducers, streaming encoders, vocoders, separators."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.zoo.arguments import mono, sounds
from tests.zoo.case import Arguments, Case, captured, simple
from tests.zoo.containers import made

__all__ = ["CASES"]

_MELS, _WIDTH, _VOCAB = 8, 16, 12
State = tuple[Tensor, Tensor]


class Transducer(nn.Module):
    """RNN-T as it is trained: every frame meets every prefix of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.LSTM(4 * _MELS, _WIDTH, num_layers=2, batch_first=True)
        self.embed = nn.Embedding(_VOCAB, _WIDTH)
        self.predict = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)
        self.head = nn.Linear(_WIDTH, _VOCAB)

    def forward(
        self, features: Tensor, lengths: Tensor, targets: Tensor, state: State | None = None
    ) -> tuple[Tensor, Tensor, State]:
        frames = features.shape[1] // 4
        stacked = features[:, : 4 * frames].reshape(features.shape[0], frames, -1)
        encoded, _ = self.encode(stacked)
        blank = targets.new_zeros(targets.shape[0], 1)
        predicted, state = self.predict(self.embed(torch.cat([blank, targets], dim=1)), state)
        joint = torch.tanh(encoded[:, :, None] + predicted[:, None])
        return self.head(joint).log_softmax(-1), lengths // 4, state


class GreedyTransducer(nn.Module):
    """RNN-T as it decodes: one symbol per frame at most, in a Python loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.GRU(_MELS, _WIDTH, batch_first=True)
        self.embed = nn.Embedding(_VOCAB, _WIDTH)
        self.cell = nn.GRUCell(_WIDTH, _WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCAB)

    def forward(self, features: Tensor) -> Tensor:
        encoded, _ = self.encode(features)
        symbol = torch.zeros(features.shape[0], dtype=torch.long)
        hidden = self.cell(self.embed(symbol))
        found = []
        for frame in encoded.unbind(1):
            best = self.head(torch.tanh(frame + hidden)).argmax(-1)
            emitted = best != 0
            symbol = torch.where(emitted, best, symbol)
            hidden = torch.where(emitted[:, None], self.cell(self.embed(symbol), hidden), hidden)
            found.append(best)
        return torch.stack(found, dim=1)


class ConformerLayer(nn.Module):
    """Half a feed-forward, attention, a depthwise convolution, the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH), nn.SiLU())
        self.norm = nn.LayerNorm(_WIDTH)
        self.attend = nn.MultiheadAttention(_WIDTH, 4)
        self.point = nn.Conv1d(_WIDTH, 2 * _WIDTH, 1)
        self.depth = nn.Conv1d(_WIDTH, _WIDTH, 5, padding=2, groups=_WIDTH)
        self.batch = nn.BatchNorm1d(_WIDTH)
        self.after = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH), nn.SiLU())

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        y = self.norm(x)
        x = x + self.attend(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        y = functional.glu(self.point(x.permute(1, 2, 0)), dim=1).masked_fill(padding[:, None], 0)
        x = x + functional.silu(self.batch(self.depth(y))).permute(2, 0, 1)
        return x + 0.5 * self.after(x)


class Conformer(nn.Module):
    """Time first inside; the mask is made of the lengths, up to the longest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(_MELS, _WIDTH)
        self.layers = nn.ModuleList(ConformerLayer() for _ in range(2))

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        padding = torch.arange(features.shape[1])[None] >= lengths[:, None]
        x = self.project(features).transpose(0, 1)
        for layer in self.layers:
            x = layer(x, padding)
        return x.transpose(0, 1), lengths


class LongestConformer(Conformer):
    """The mask is as wide as the longest row says, which is a value."""

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(lengths.max())
        padding = torch.arange(longest)[None] >= lengths[:, None]
        x = self.project(features[:, :longest]).transpose(0, 1)
        for layer in self.layers:
            x = layer(x, padding)
        return x.transpose(0, 1), lengths


class Emformer(nn.Module):
    """A chunk and its right context attend to a memory, a left context and themselves.

    The state is a list of lists, one per layer: keys, values, and how much of them is filled.
    """

    left, right = 6, 2

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(_MELS, _WIDTH)
        self.mixes = nn.ModuleList(nn.Linear(_WIDTH, 3 * _WIDTH) for _ in range(2))

    def start(self, batch: int) -> list[list[Tensor]]:
        empty = torch.zeros(batch, self.left, _WIDTH)
        filled = torch.zeros(batch, 1, dtype=torch.long)
        return [[empty.clone(), empty.clone(), filled.clone()] for _ in self.mixes]

    def forward(
        self, chunk: Tensor, lengths: Tensor, states: list[list[Tensor]] | None = None
    ) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
        if states is None:
            states = self.start(chunk.shape[0])
        x, after = self.project(chunk), []
        for mix, (keys, values, filled) in zip(self.mixes, states, strict=True):
            query, key, value = mix(x).chunk(3, dim=-1)
            keys, values = torch.cat([keys, key], dim=1), torch.cat([values, value], dim=1)
            places = torch.arange(keys.shape[1])[None]
            absent = places < self.left - filled
            scores = query @ keys.transpose(1, 2) / math.sqrt(_WIDTH)
            x = x + scores.masked_fill(absent[:, None], -1e4).softmax(-1) @ values
            new = x.shape[1] - self.right
            end = self.left + new
            filled = (filled + new).clamp(max=self.left)
            after.append([keys[:, new:end], values[:, new:end], filled])
        return x[:, : -self.right], (lengths - self.right).clamp(min=0), after


class DecoderState(NamedTuple):
    """What a Tacotron decoder carries from frame to frame."""

    hidden: State
    context: Tensor
    weights: Tensor
    summed: Tensor


class Tacotron(nn.Module):
    """One frame: location-sensitive attention over the text, an LSTM cell, a stop token."""

    def __init__(self) -> None:
        super().__init__()
        self.prenet = nn.Linear(_MELS, _WIDTH)
        self.cell = nn.LSTMCell(2 * _WIDTH, _WIDTH)
        self.location = nn.Conv1d(2, 4, 5, padding=2)
        self.query = nn.Linear(_WIDTH, _WIDTH)
        self.places = nn.Linear(4, _WIDTH)
        self.energy = nn.Linear(_WIDTH, 1)
        self.frame = nn.Linear(2 * _WIDTH, _MELS)
        self.stop = nn.Linear(2 * _WIDTH, 1)

    def forward(
        self, frame: Tensor, memory: Tensor, lengths: Tensor, state: DecoderState
    ) -> tuple[Tensor, Tensor, DecoderState]:
        given = torch.cat([self.prenet(frame).relu(), state.context], dim=-1)
        hidden = self.cell(given, state.hidden)
        before = self.location(torch.stack([state.weights, state.summed], dim=1))
        energies = self.energy(
            torch.tanh(self.query(hidden[0])[:, None] + self.places(before.mT) + memory)
        ).squeeze(-1)
        padding = torch.arange(memory.shape[1]) >= lengths[:, None]
        weights = energies.masked_fill(padding, float("-inf")).softmax(-1)
        context = (weights[:, None] @ memory).squeeze(1)
        both = torch.cat([hidden[0], context], dim=-1)
        after = DecoderState(hidden, context, weights, state.summed + weights)
        return self.frame(both), self.stop(both).sigmoid(), after


class WaveNet(nn.Module):
    """Gated dilated convolutions on mu-law classes, conditioned on mel frames."""

    def __init__(self, hop: int = 4) -> None:
        super().__init__()
        self.hop = hop
        self.embed = nn.Embedding(32, _WIDTH)
        self.upsample = nn.ConvTranspose1d(_MELS, _WIDTH, 2 * hop, hop, padding=hop // 2)
        self.gates = nn.ModuleList(
            nn.Conv1d(_WIDTH, 2 * _WIDTH, 2, dilation=2**depth) for depth in range(4)
        )
        self.skips = nn.ModuleList(nn.Conv1d(_WIDTH, _WIDTH, 1) for _ in range(4))
        self.head = nn.Conv1d(_WIDTH, 32, 1)

    def forward(self, samples: Tensor, mels: Tensor) -> Tensor:
        x = self.embed(samples).transpose(1, 2)
        condition = self.upsample(mels.transpose(1, 2))[:, :, : x.shape[2]]
        total = torch.zeros_like(x)
        for depth, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            y = gate(functional.pad(x + condition, (2**depth, 0)))
            signal, open_ = y.chunk(2, dim=1)
            y = skip(signal.tanh() * open_.sigmoid())
            x, total = x + y, total + y
        return self.head(total.relu())


class QueuedWaveNet(nn.Module):
    """The same a few samples at a time: each layer's past is a queue that the caller keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, _WIDTH)
        self.gates = nn.ModuleList(
            nn.Conv1d(_WIDTH, 2 * _WIDTH, 2, dilation=2**depth) for depth in range(3)
        )
        self.head = nn.Linear(_WIDTH, 32)

    def forward(
        self, samples: Tensor, queues: list[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        x = self.embed(samples).transpose(1, 2)
        if queues is None:
            queues = [x.new_zeros(x.shape[0], _WIDTH, 2**depth) for depth in range(3)]
        after = []
        for depth, (gate, queue) in enumerate(zip(self.gates, queues, strict=True)):
            joined = torch.cat([queue, x], dim=2)
            after.append(joined[:, :, -(2**depth) :])
            signal, open_ = gate(joined).chunk(2, dim=1)
            x = x + signal.tanh() * open_.sigmoid()
        return self.head(x.transpose(1, 2)), after


class ConvTasNet(nn.Module):
    """Pads to whole hops, learns a basis, masks it per speaker, and cuts what it padded."""

    kernel, hop, speakers = 8, 4, 2

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, _WIDTH, self.kernel, self.hop, bias=False)
        self.norm = nn.GroupNorm(1, _WIDTH)
        self.layers = nn.ModuleList(
            nn.Conv1d(_WIDTH, _WIDTH, 3, padding=2**depth, dilation=2**depth) for depth in range(3)
        )
        self.mask = nn.Conv1d(_WIDTH, self.speakers * _WIDTH, 1)
        self.decode = nn.ConvTranspose1d(_WIDTH, 1, self.kernel, self.hop, bias=False)

    def forward(self, wave: Tensor) -> Tensor:
        rows, samples = wave.shape[0], wave.shape[-1]
        rest = self.kernel - (self.hop + samples) % self.kernel
        padded = functional.pad(wave, (self.hop, rest + self.hop))
        basis = self.encode(padded)
        x = self.norm(basis)
        for layer in self.layers:
            x = x + layer(x).relu()
        masks = self.mask(x).view(rows, self.speakers, _WIDTH, -1).sigmoid()
        parts = (basis[:, None] * masks).flatten(0, 1)
        decoded = self.decode(parts).view(rows, self.speakers, -1)
        return decoded[:, :, self.hop : self.hop + samples]


class Demucs(nn.Module):
    """A U-Net on waveforms with an LSTM at its bottom; says itself which length it can take."""

    kernel, stride, depth = 8, 4, 2

    def __init__(self) -> None:
        super().__init__()
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        for level in range(self.depth):
            inside, outside = 8 * 2**level, 1 if level == 0 else 8 * 2 ** (level - 1)
            self.downs.append(nn.Conv1d(outside, inside, self.kernel, self.stride))
            self.ups.insert(0, nn.ConvTranspose1d(inside, outside, self.kernel, self.stride))
        self.lstm = nn.LSTM(_WIDTH, _WIDTH, bidirectional=True)
        self.back = nn.Linear(2 * _WIDTH, _WIDTH)

    def valid_length(self, length: int) -> int:
        for _ in range(self.depth):
            length = max(math.ceil((length - self.kernel) / self.stride) + 1, 1)
        for _ in range(self.depth):
            length = (length - 1) * self.stride + self.kernel
        return length

    def forward(self, mix: Tensor) -> Tensor:
        length = mix.shape[-1]
        scale = mix.mean(1, keepdim=True).std(-1, keepdim=True) + 1e-3
        x = functional.pad(mix / scale, (0, self.valid_length(length) - length))
        skips = []
        for down in self.downs:
            x = down(x).relu()
            skips.append(x)
        y, _ = self.lstm(x.permute(2, 0, 1))
        x = self.back(y).permute(1, 2, 0)
        for up in self.ups:
            x = up(x + skips.pop(-1)[..., : x.shape[-1]])
        return x[..., :length] * scale


class Enhancer(nn.Module):
    """Masks a spectrum, and goes back to as many samples as came."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(17, 17, batch_first=True)

    def forward(self, wave: Tensor) -> Tensor:
        window = torch.hann_window(32)
        spectrum = torch.stft(wave, 32, 8, window=window, return_complex=True)
        mask, _ = self.gru(spectrum.abs().clamp(min=1e-5).log().mT)
        masked = spectrum * mask.mT.sigmoid()
        return torch.istft(masked, 32, 8, window=window, length=wave.shape[-1])


class Activity(nn.Module):
    """Voice activity, chunk by chunk: the rate is an int that picks the chunk's size and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv1d(1, _WIDTH, 16, 8)
        self.narrow = nn.Conv1d(1, _WIDTH, 8, 4)
        self.cell = nn.LSTMCell(_WIDTH, _WIDTH)
        self.head = nn.Linear(_WIDTH, 1)

    def forward(self, chunk: Tensor, state: Tensor, rate: int) -> tuple[Tensor, Tensor]:
        if rate not in (8000, 16000):
            raise ValueError(f"a rate of {rate}")
        x = (self.wide if rate == 16000 else self.narrow)(chunk[:, None]).relu().mean(-1)
        hidden, carry = self.cell(x, (state[0], state[1]))
        return self.head(hidden.relu()).sigmoid(), torch.stack([hidden, carry])


class Speaker(nn.Module):
    """ECAPA: dilated branches, then attention over each row's own frames."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(_MELS, _WIDTH, 5, padding="same", padding_mode="reflect")
        self.branches = nn.ModuleList(
            nn.Conv1d(4, 4, 3, padding=depth, dilation=depth) for depth in (1, 2, 3)
        )
        self.attend = nn.Conv1d(3 * _WIDTH, _WIDTH, 1)
        self.head = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, features: Tensor, wav_lens: Tensor | None = None) -> Tensor:
        x = self.first(features.transpose(1, 2)).relu()
        pieces = list(x.chunk(4, dim=1))
        for place, branch in enumerate(self.branches, start=1):
            pieces[place] = branch(pieces[place] + pieces[place - 1])
        x = torch.cat(pieces, dim=1)
        length = x.shape[-1]
        wav_lens = torch.ones(x.shape[0]) if wav_lens is None else wav_lens
        mask = (torch.arange(length) < wav_lens[:, None] * length)[:, None].float()
        share = mask / mask.sum(-1, keepdim=True)
        mean, std = self._statistics(x, share)
        seen = torch.cat([x, mean.expand_as(x), std.expand_as(x)], dim=1)
        scores = self.attend(seen).masked_fill(mask == 0, float("-inf")).softmax(-1)
        pooled = torch.cat(self._statistics(x, scores), dim=1).squeeze(-1)
        return functional.normalize(self.head(pooled))

    def _statistics(self, x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        mean = (share * x).sum(-1, keepdim=True)
        return mean, (share * (x - mean) ** 2).sum(-1, keepdim=True).clamp(min=1e-9).sqrt()


def _trained(rows: int, frames: int, symbols: int) -> Arguments:
    lengths = torch.randint(4, frames + 1, (rows,))
    targets = torch.randint(1, _VOCAB, (rows, symbols))
    return (torch.randn(rows, frames, _MELS), lengths, targets), {}


def _features(rows: int, frames: int) -> Arguments:
    return (torch.randn(rows, frames, _MELS),), {}


def _lengths(rows: int, frames: int) -> Arguments:
    lengths = torch.randint(2, frames + 1, (rows,))
    lengths[-1] = frames
    return (torch.randn(rows, frames, _MELS), lengths), {}


def _classes(rows: int, frames: int) -> Arguments:
    samples = torch.randint(0, 32, (rows, 4 * frames))
    return (samples, torch.randn(rows, frames, _MELS)), {}


def _speaker(rows: int, frames: int, relative: bool) -> Arguments:
    more = {"wav_lens": torch.linspace(0.5, 1.0, rows)} if relative else {}
    return (torch.randn(rows, frames, _MELS),), more


def _activity(rows: int, rate: int) -> Arguments:
    return (torch.randn(rows, rate // 250), torch.randn(2, rows, _WIDTH), rate), {}


def _streamed(module: nn.Module, batch: int, *sizes: int) -> None:
    """Chunks with the right context that the next one begins with."""
    generator = torch.Generator().manual_seed(batch)
    states = None
    for size in sizes:
        chunk = torch.randn(batch, size + 2, _MELS, generator=generator)
        _, _, states = module(chunk, torch.full((batch,), size + 2), states)


def _streamed_drive(module: nn.Module) -> None:
    _streamed(module, 2, 4, 4, 4)
    _streamed(module, 3, 8, 8, 8)


def _streamed_unseen(module: nn.Module) -> list[Arguments]:
    return captured(module, lambda m: _streamed(m, 4, 6, 6, 6), (0, 1, 2))


def _spoken(module: nn.Module, batch: int, length: int) -> None:
    """Three frames of a text, each from the one before."""
    generator = torch.Generator().manual_seed(batch)
    memory = torch.randn(batch, length, _WIDTH, generator=generator)
    lengths = torch.full((batch,), length) - torch.arange(batch) % 2
    frame, nothing = torch.zeros(batch, _MELS), torch.zeros(batch, _WIDTH)
    unseen = torch.zeros(batch, length)
    state = DecoderState((nothing, nothing.clone()), nothing.clone(), unseen, unseen.clone())
    for _ in range(3):
        frame, _, state = module(frame, memory, lengths, state)


def _spoken_drive(module: nn.Module) -> None:
    _spoken(module, 2, 6)
    _spoken(module, 3, 9)


def _spoken_unseen(module: nn.Module) -> list[Arguments]:
    return captured(module, lambda m: _spoken(m, 4, 12), (0, 2))


def _sampled(module: nn.Module, batch: int, length: int) -> None:
    """A primer, then sample by sample."""
    generator = torch.Generator().manual_seed(batch)
    samples = torch.randint(0, 32, (batch, length), generator=generator)
    queues: Any = None
    for _ in range(3):
        logits, queues = module(samples) if queues is None else module(samples, queues)
        samples = logits[:, -1:].argmax(-1)


def _sampled_drive(module: nn.Module) -> None:
    _sampled(module, 2, 8)
    _sampled(module, 3, 12)


def _sampled_unseen(module: nn.Module) -> list[Arguments]:
    return captured(module, lambda m: _sampled(m, 4, 10), (0, 1))


_FRAMES: dict[str, Any] = {"seen": [(2, 12), (3, 20), (2, 16)], "unseen": [(4, 14), (5, 25)]}
_SAMPLES: dict[str, Any] = {"seen": [(2, 96), (3, 134), (2, 111)], "unseen": [(4, 120), (5, 157)]}

CASES: list[Case] = [
    simple("transducer", made(Transducer), _trained, seen=[(2, 12, 3), (3, 21, 5), (2, 18, 4)],
           unseen=[(4, 15, 6), (5, 26, 2)], note="time × text; frames in fours, the rest dropped"),
    simple("greedy_transducer", made(GreedyTransducer), _features, **_FRAMES,
           note="a Python loop over time"),
    simple("conformer", made(Conformer), _lengths, **_FRAMES),
    simple("conformer_longest", made(LongestConformer), _lengths, **_FRAMES,
           note="as long as the largest value of a tensor"),
    Case("emformer", made(Emformer), _streamed_drive, _streamed_unseen,
         note="the state is a list of lists, none at first"),
    Case("tacotron", made(Tacotron), _spoken_drive, _spoken_unseen, classes=(DecoderState,),
         note="a named tuple goes round"),
    simple("wavenet", made(WaveNet), _classes, **_FRAMES, note="four samples per frame"),
    Case("wavenet_queues", made(QueuedWaveNet), _sampled_drive, _sampled_unseen,
         note="queues of 1, 2 and 4"),
    simple("conv_tasnet", made(ConvTasNet), mono, **_SAMPLES, note="pads what is left of a hop"),
    simple("demucs", made(Demucs), mono, **_SAMPLES, note="pads to a length that it works out"),
    simple("enhancer", made(Enhancer), sounds, **_SAMPLES, note="a spectrum and back"),
    simple("voice_activity", made(Activity), _activity,
           seen=[(2, 16000), (3, 8000), (4, 16000), (2, 8000)],
           unseen=[(5, 16000), (6, 8000)], note="an int picks the layers and the size"),
    simple("speaker", made(Speaker), _speaker,
           seen=[(2, 12, True), (3, 20, False), (4, 16, True), (2, 14, False)],
           unseen=[(5, 18, True), (6, 25, False)], note="relative lengths, or none"),
]  # fmt: skip
