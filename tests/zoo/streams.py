"""Modules with a state of their own that each call moves on: streams, statistics, rings, queues."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, driven
from tests.zoo.containers import made

__all__ = ["CASES"]

_WIDTH = 8


class StreamingStack(nn.Module):
    """A codec over chunks: causal convolutions and a transposed one, each with a buffer."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, channels, 5)
        self.second = nn.Conv1d(channels, channels, 3, stride=2)
        self.up = nn.ConvTranspose1d(channels, 2, 4, stride=2)
        self.register_buffer("left_first", torch.zeros(1, 2, 4))
        self.register_buffer("left_second", torch.zeros(1, channels, 1))
        self.register_buffer("tail", torch.zeros(1, 2, 2))

    def forward(self, chunk: Tensor) -> Tensor:
        x = torch.cat([self.left_first, chunk], dim=-1)
        self.left_first.copy_(x[..., -4:])
        x = torch.cat([self.left_second, self.first(x).relu()], dim=-1)
        self.left_second.copy_(x[..., -1:])
        y = self.up(self.second(x).relu())
        head = y[..., :2] + self.tail
        self.tail.copy_(y[..., -2:])
        return torch.cat([head, y[..., 2:-2]], dim=-1)


class RunningNorm(nn.Module):
    """Observations by the mean and variance of all that came so far (reinforcement learning)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(_WIDTH))
        self.register_buffer("var", torch.ones(_WIDTH))
        self.register_buffer("count", torch.tensor(1e-4))
        self.policy = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        delta = x.mean(0) - self.mean
        total = self.count + rows
        spread = self.var * self.count + x.var(0, unbiased=False) * rows
        spread = spread + delta.square() * self.count * rows / total
        self.mean += delta * rows / total
        self.var.copy_(spread / total)
        self.count.add_(rows)
        return self.policy((x - self.mean) / (self.var + 1e-8).sqrt())


class MovingTeacher(nn.Module):
    """Centres by a moving mean whose rate depends on how many calls there were (DINO)."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(_WIDTH, 6)
        self.register_buffer("center", torch.zeros(6))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x)
        self.calls += 1
        rate = torch.minimum(torch.tensor(0.9), (1 + self.calls) / (10 + self.calls))
        self.center.lerp_(y.mean(0), 1 - rate)
        return ((y - self.center) / 0.07).softmax(-1)


class RingCache(nn.Module):
    """Keys and values of the last tokens, in a ring of buffers that a counter goes round."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.size = size
        self.mix = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.register_buffer("keys", torch.zeros(1, size, _WIDTH))
        self.register_buffer("values", torch.zeros(1, size, _WIDTH))
        self.register_buffer("position", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(x).chunk(3, dim=-1)
        places = self.position + torch.arange(x.shape[1])
        self.keys.index_copy_(1, places % self.size, key)
        self.values.index_copy_(1, places % self.size, value)
        self.position.add_(x.shape[1])
        filled = torch.arange(self.size) < self.position
        scores = (query @ self.keys.mT).masked_fill(~filled, float("-inf"))
        return scores.softmax(-1) @ self.values


class CarriedState(nn.Module):
    """A recurrent layer whose state is kept on the module for the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.register_buffer("hidden", torch.zeros(1, 2, _WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y, hidden = self.cell(x, self.hidden)
        self.hidden.copy_(hidden)
        return y


class CumulativeNorm(nn.Module):
    """Batch norm that takes the plain mean of all batches (``momentum=None``), while serving."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(_WIDTH, momentum=None)
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train()
        self.norm(x)
        self.norm.eval()
        return self.head(self.norm(x).relu())


class MemoryQueue(nn.Module):
    """Keys of earlier calls in a queue that is written at a pointer (MoCo)."""

    def __init__(self, size: int = 24) -> None:
        super().__init__()
        self.size = size
        self.encode = nn.Linear(_WIDTH, 4)
        generator = torch.Generator().manual_seed(5)
        self.register_buffer("queue", torch.randn(size, 4, generator=generator))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        keys = nn.functional.normalize(self.encode(x), dim=-1)
        logits = keys @ self.queue.clone().T
        start = int(self.pointer)
        places = (start + torch.arange(len(keys))) % self.size
        self.queue[places] = keys
        self.pointer[0] = (start + len(keys)) % self.size
        return logits


class DelayLine(nn.Module):
    """A filter that keeps the end of what it saw as an attribute: None before the first call."""

    def __init__(self, taps: int = 4) -> None:
        super().__init__()
        self.filter = nn.Conv1d(1, 2, taps)
        self.taps = taps
        self.before: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.before is None:
            self.before = x.new_zeros(x.shape[0], 1, self.taps - 1)
        x = torch.cat([self.before, x], dim=-1)
        self.before = x[..., -(self.taps - 1) :]
        return self.filter(x)


class CountedTokens(nn.Module):
    """Positions go on from the call before: a number of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, _WIDTH)
        self.seen = 0

    def forward(self, ids: Tensor, restart: bool = False) -> Tensor:
        if restart:
            self.seen = 0
        places = torch.arange(self.seen, self.seen + ids.shape[1])
        self.seen += ids.shape[1]
        return self.embed(ids) + (places[:, None] / (1 + torch.arange(_WIDTH))).sin()


class Kalman(nn.Module):
    """A filter over measurements: predicts, corrects, keeps estimate and covariance."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("move", torch.eye(4) + 0.1 * torch.eye(4).roll(2, 1).triu())
        self.register_buffer("look", torch.eye(2, 4))
        self.register_buffer("estimate", torch.zeros(4))
        self.register_buffer("covariance", torch.eye(4))

    def forward(self, measured: Tensor) -> tuple[Tensor, Tensor]:
        estimate = self.move @ self.estimate
        covariance = self.move @ self.covariance @ self.move.T + 0.01 * torch.eye(4)
        seen = measured.mean(0)
        inner = self.look @ covariance @ self.look.T + torch.eye(2) / len(measured)
        gain = torch.linalg.solve(inner, self.look @ covariance).T
        estimate = estimate + gain @ (seen - self.look @ estimate)
        self.estimate.copy_(estimate)
        self.covariance.copy_((torch.eye(4) - gain @ self.look) @ covariance)
        return estimate, self.covariance.diagonal().sqrt()


class OverlapAdd(nn.Module):
    """Enhances a stream in the spectrum of overlapping windows; two buffers hold what is open."""

    def __init__(self, size: int = 16, hop: int = 8) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.mask = nn.Linear(size // 2 + 1, size // 2 + 1)
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("before", torch.zeros(hop))
        self.register_buffer("tail", torch.zeros(hop))

    def forward(self, chunk: Tensor) -> Tensor:
        signal = torch.cat([self.before, chunk])
        self.before.copy_(signal[-self.hop :])
        frames = signal.unfold(0, self.size, self.hop) * self.window
        spectrum = torch.fft.rfft(frames)
        spectrum = spectrum * self.mask(spectrum.abs()).sigmoid()
        frames = torch.fft.irfft(spectrum, n=self.size)
        first = torch.cat([self.tail[None], frames[:-1, self.hop :]])
        out = first + frames[:, : self.hop]
        self.tail.copy_(frames[-1, self.hop :])
        return out.flatten()


class MovingCodebook(nn.Module):
    """Codes that follow what is near them, in training and while serving."""

    def __init__(self, codes: int = 6) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        codes_at_first = torch.randn(codes, 4, generator=generator)
        self.register_buffer("codes", codes_at_first)
        self.register_buffer("sums", codes_at_first.clone())
        self.register_buffer("sizes", torch.ones(codes))
        self.project = nn.Linear(_WIDTH, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.project(x)
        nearest = torch.cdist(z, self.codes).argmin(-1)
        found = self.codes[nearest]
        taken = nn.functional.one_hot(nearest, len(self.codes)).to(z.dtype)
        self.sizes.mul_(0.9).add_(taken.sum(0), alpha=0.1)
        self.sums.mul_(0.9).add_(taken.T @ z, alpha=0.1)
        self.codes.copy_(self.sums / self.sizes[:, None].clamp(min=1e-5))
        return found, nearest


def _noise(*shape: int) -> Arguments:
    return (torch.randn(*shape),), {}


def _chunk(length: int) -> Arguments:
    return _noise(1, 2, length)


def _rows(rows: int) -> Arguments:
    return _noise(rows, _WIDTH)


def _tokens(length: int) -> Arguments:
    return _noise(1, length, _WIDTH)


def _pairs(length: int) -> Arguments:
    return _noise(2, length, _WIDTH)


def _wave(length: int) -> Arguments:
    return _noise(1, 1, length)


def _signal(hops: int) -> Arguments:
    return _noise(8 * hops)


def _points(rows: int) -> Arguments:
    return _noise(rows, 2)


def _ids(length: int, restart: bool) -> Arguments:
    return (torch.randint(0, 40, (2, length)),), {"restart": True} if restart else {}


def _stateful(
    name: str, make: Any, arguments: Any, seen: list[Any], unseen: list[Any], note: str = ""
) -> Case:
    """Calls that depend on those before."""

    def drive(module: nn.Module) -> None:
        for args, kwargs in driven(arguments, [_sizes(s) for s in seen], seed=1):
            module(*args, **kwargs)

    def others(_: nn.Module) -> list[Arguments]:
        return driven(arguments, [_sizes(s) for s in unseen], seed=2)

    return Case(name, make, drive, others, note=note, continues=True)


def _sizes(size: Any) -> tuple[Any, ...]:
    return size if isinstance(size, tuple) else (size,)


CASES: list[Case] = [
    _stateful("streaming_stack", made(StreamingStack), _chunk, [8, 12, 10, 16], [14, 20],
              "three buffers, each for a layer"),
    _stateful("running_norm", made(RunningNorm), _rows, [4, 7, 5, 9], [6, 12],
              "the mean and variance of all calls"),
    _stateful("moving_teacher", made(MovingTeacher), _rows, [4, 7, 5, 9], [6, 12],
              "a rate that depends on the number of calls"),
    _stateful("ring_cache", made(RingCache), _tokens, [4, 2, 5, 3], [1, 6],
              "goes round a ring of buffers"),
    _stateful("carried_state", made(CarriedState), _pairs, [5, 8, 6, 9], [7, 12],
              "a recurrent state in a buffer"),
    _stateful("cumulative_norm", made(CumulativeNorm), _rows, [4, 7, 5, 9], [6, 12],
              "divides by the number of batches so far"),
    _stateful("memory_queue", made(MemoryQueue), _rows, [4, 7, 5, 9], [6, 12],
              "a pointer that is read with Python"),
    _stateful("delay_line", made(DelayLine), _wave, [8, 12, 10, 16], [14, 20],
              "an attribute that is None at first"),
    _stateful("counted_tokens", made(CountedTokens), _ids,
              [(5, True), (3, False), (6, True), (4, False)], [(7, True), (9, True)],
              "counts in Python"),
    _stateful("kalman_filter", made(Kalman), _points, [3, 5, 4, 7], [6, 9]),
    _stateful("overlap_add", made(OverlapAdd), _signal, [3, 5, 4, 7], [6, 9],
              "windows over the edge of a chunk"),
    _stateful("moving_codebook", made(MovingCodebook), _rows, [4, 7, 5, 9], [6, 12],
              "buffers that follow the calls"),
]  # fmt: skip
