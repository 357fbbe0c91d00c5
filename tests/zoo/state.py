"""Modules that keep something: buffers, attributes, tables that grow; and modules that torch or a
user wrapped, patched, quantized or cast."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.zoo.arguments import images
from tests.zoo.case import Arguments, Case, captured, simple
from tests.zoo.containers import made

__all__ = ["CASES"]

_WIDTH = 8
_WORDS = 40


class BufferedCache(nn.Module):
    """Keys and values in buffers of the module, written at the positions that the caller gives."""

    def __init__(self, rows: int = 4, size: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.mix = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.head = nn.Linear(_WIDTH, _WORDS)
        self.register_buffer("keys", torch.zeros(rows, size, _WIDTH), persistent=False)
        self.register_buffer("values", torch.zeros(rows, size, _WIDTH), persistent=False)
        self.register_buffer("causal", torch.ones(size, size).tril().bool(), persistent=False)

    def forward(self, ids: Tensor, input_pos: Tensor) -> Tensor:
        query, key, value = self.mix(self.embed(ids)).chunk(3, dim=-1)
        rows = ids.shape[0]
        self.keys[:rows, input_pos] = key
        self.values[:rows, input_pos] = value
        scores = query @ self.keys[:rows].mT
        scores = scores.masked_fill(~self.causal[input_pos], float("-inf"))
        return self.head(scores.softmax(-1) @ self.values[:rows])


class Streamed(nn.Module):
    """A causal convolution over chunks; a buffer holds the end of the chunk before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)
        self.register_buffer("before", torch.zeros(1, 3, 2))

    def forward(self, chunk: Tensor, first: bool = False) -> Tensor:
        if first:
            self.before.zero_()
        x = torch.cat([self.before, chunk], dim=-1)
        self.before.copy_(x[..., -2:])
        return self.conv(x).relu()


class Adapts(nn.Module):
    """Normalizes by the batch itself (test-time adaptation), and counts what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)
        self.norm = nn.BatchNorm1d(_WIDTH)
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.train()
        return self.head(self.norm(self.linear(x)).relu())


class Rotary(nn.Module):
    """Tables of angles that grow when a longer sequence comes (transformers did this for years)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH)
        self.register_buffer("frequencies", 10.0 ** -torch.arange(0, 4.0))
        self.longest = 0

    def grow(self, length: int) -> None:
        self.longest = length
        angles = torch.outer(torch.arange(length).float(), self.frequencies)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        if length > self.longest:
            self.grow(length)
        x = self.embed(ids)
        turned = torch.cat([-x[..., 4:], x[..., :4]], dim=-1)
        x = x * self.cos[:length] + turned * self.sin[:length]
        return (x @ x.mT).softmax(-1)


class GridCache(nn.Module):
    """Position codes by size of the grid, kept in a dict for the next call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, _WIDTH, 2, stride=2)
        self.codes: dict[tuple[int, int], Tensor] = {}

    def code(self, height: int, width: int) -> Tensor:
        if (height, width) not in self.codes:
            y, x = torch.arange(height)[:, None] / 7, torch.arange(width)[None] / 5
            grid = torch.stack([(y + x).sin(), (y - x).cos()]).repeat(_WIDTH // 2, 1, 1)
            self.codes[height, width] = grid
        return self.codes[height, width]

    def forward(self, image: Tensor) -> Tensor:
        x = self.conv(image)
        return (x + self.code(x.shape[2], x.shape[3])).relu().mean((2, 3))


class Reversible(nn.Module):
    """Keeps the mean and scale of a window as attributes until the end of the call (RevIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.affine = nn.Parameter(torch.rand(3) + 0.5)
        self.body = nn.Linear(12, 5)

    def norm(self, x: Tensor) -> Tensor:
        self.mean = x.mean(1, keepdim=True).detach()
        self.scale = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        return (x - self.mean) / self.scale * self.affine

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.norm(x).mT).mT
        return y / self.affine * self.scale + self.mean


class KeepsMaps(nn.Module):
    """Leaves its attention maps in a list for whoever looks, and a count of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(_WIDTH, 2, batch_first=True) for _ in range(2)
        )
        self.maps: list[Tensor] = []
        self.calls = 0
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.maps = []
        self.calls += 1
        self.steps += 1
        for layer in self.layers:
            y, weights = layer(x, x, x)
            self.maps.append(weights)
            x = x + y
        return x


class Features(nn.Module):
    """Collects what inner layers return, with hooks that put it into a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 8, 3, 2, 1)
        self.found: dict[str, Tensor] = {}
        for name in ("stem", "body"):
            getattr(self, name).register_forward_hook(self._keep(name))

    def _keep(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Tensor) -> None:
            self.found[name] = output

        return hook

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        self.body(self.stem(image).relu())
        return dict(self.found)


class Normed(nn.Module):
    """Weight norm, old and new, spectral norm, and a parametrization of its own."""

    class Symmetric(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.triu() + x.triu(1).mT

    def __init__(self) -> None:
        super().__init__()
        self.old = nn.utils.weight_norm(nn.Conv1d(3, _WIDTH, 3, padding=1))
        self.new = parametrizations.weight_norm(nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1))
        self.spectral = parametrizations.spectral_norm(nn.Linear(_WIDTH, _WIDTH))
        self.symmetric = nn.Linear(_WIDTH, _WIDTH)
        parametrize.register_parametrization(self.symmetric, "weight", self.Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        y = self.new(self.old(x).relu()).mT
        return self.symmetric(self.spectral(y))


class Patched(nn.Module):
    """Hooks of users change what goes in and what comes out (steering, adapters)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, _WIDTH))
        self.steer = nn.Parameter(torch.randn(16))
        self.inner[0].register_forward_hook(lambda _, __, output: output + self.steer)
        self.inner[2].register_forward_pre_hook(lambda _, args: (args[0] * 0.5,))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Wrapped(nn.Module):
    """Hands everything on, as wrappers for several devices or for servers do."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.DataParallel(nn.Sequential(nn.Linear(_WIDTH, 8), nn.Tanh()))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


class Scripted(nn.Module):
    """A part of it was compiled with TorchScript."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(_WIDTH, _WIDTH)

        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            return self.linear(x).relu() * scale

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(self.Inner())
        self.head = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x, 0.5))


class Int8Weights(nn.Module):
    """Weights as bytes with a scale per row, activations quantized on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (16, _WIDTH), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(16) / 100)

    def forward(self, x: Tensor) -> Tensor:
        step = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-8)
        codes = (x / step).round().clamp(-128, 127).to(torch.int8)
        sums = codes.to(torch.int32) @ self.weight.mT.to(torch.int32)
        return sums * step * self.scale


class Half(nn.Module):
    """Half precision weights, and what has to be wider in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, _WIDTH, dtype=torch.float16)
        self.norm = nn.LayerNorm(_WIDTH)
        self.linear = nn.Linear(_WIDTH, _WIDTH, dtype=torch.float16)

    def forward(self, ids: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.embed(ids).float())
        y = self.linear(x.half())
        return y, (y.double() * scale).sum(-1)


class Autocast(nn.Module):
    """Casts within its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.norm(self.linear(x).relu())
        return self.head(y.float())


class NoGradient(nn.Module):
    """Its forward is decorated, as in servers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 3)

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).softmax(-1)


class Swish(torch.autograd.Function):
    """Keeps less for a backward pass that nobody asks for here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        slope = x.sigmoid()
        return gradients[0] * slope * (1 + x * (1 - slope))


class OwnFunction(nn.Module):
    """Functions with a gradient of their own, and a straight-through rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = Swish.apply(self.linear(x))
        return y + ((y * 4).round() / 4 - y).detach()


class Fourier(nn.Module):
    """Complex weights on the lowest frequencies (a Fourier neural operator)."""

    def __init__(self, modes: int = 3) -> None:
        super().__init__()
        self.modes = modes
        self.lift, self.drop = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 1, 1)
        self.weight = nn.Parameter(torch.randn(4, 4, 2 * modes, modes, dtype=torch.cfloat) / 4)
        self.skip = nn.Conv2d(4, 4, 1)

    def forward(self, field: Tensor) -> Tensor:
        x = self.lift(field)
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        for rows, weight in (
            (slice(None, self.modes), self.weight[:, :, : self.modes]),
            (slice(-self.modes, None), self.weight[:, :, self.modes :]),
        ):
            part = torch.einsum("bihw,iohw->bohw", spectrum[:, :, rows, : self.modes], weight)
            out[:, :, rows, : self.modes] = part
        y = torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x)
        return self.drop(nn.functional.gelu(y))


class Codebook(nn.Module):
    """The nearest code of every vector, and how often each is used."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(12, _WIDTH)

    def forward(self, z: Tensor) -> dict[str, Any]:
        distance = torch.cdist(z.flatten(0, 1), self.codes.weight)
        ids = distance.argmin(-1)
        used = nn.functional.one_hot(ids, 12).float().mean(0)
        perplexity = (-(used * (used + 1e-10).log()).sum()).exp()
        codes = self.codes(ids).view_as(z)
        return {"codes": codes, "ids": ids.view(z.shape[:2]), "perplexity": perplexity,
                "loss": None, "kind": "vq"}  # fmt: skip


class ManyKinds(nn.Module):
    """Returns tensors among texts, numbers, nothing and sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor, debug: bool = False) -> Any:
        y = self.linear(x)
        if not debug:
            return y, None
        return {"logits": y, "name": "debug", "rows": x.shape[0], "scale": 0.5, "parts": (y, None)}


class PadsToMultiple(nn.Module):
    """Pads to a multiple of 4 if it has to, and cuts that off again; asks what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv1d(2, 4, 4, stride=4), nn.ConvTranspose1d(4, 2, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dim() == 3, f"{x.shape}"
        length = x.shape[-1]
        missing = (4 - length % 4) % 4
        if missing:
            x = nn.functional.pad(x, (0, missing), mode="reflect")
        return self.up(self.down(x).relu())[..., :length]


class TinyEpsilon(nn.Module):
    """Divides by a norm and a number that is almost nothing, which rows of zeros need."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.norm(dim=-1, keepdim=True) + 1e-8)


class PerSample(nn.Module):
    """A loop over the rows of the batch, each cut to its own length by a mask of the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for row in x:
            weights = self.linear(row)[:, 0].softmax(0)
            found.append((weights[:, None] * row).sum(0))
        return torch.stack(found)


class Numbers(nn.Module):
    """Sizes go through Python: roots, ceilings, products and a table of the time of day."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        import math

        rows, length, width = x.size()
        chunk = math.ceil(length / 2)
        scale = 1 / math.sqrt(width)
        first, second = x[:, :chunk], x[:, chunk:]
        y = torch.cat([first.mean(1), second.sum(1) / max(length - chunk, 1)], dim=0)
        return self.linear(y).view(2, rows, -1).permute(1, 0, 2).reshape(rows, -1) * scale


def _quantized() -> nn.Module:
    """Linear layers of eight bits, as torch quantizes them on the way."""
    from torch.ao.quantization import quantize_dynamic

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    return quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)


def _double() -> nn.Module:
    """A copy of a copy, all of it in double precision."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(_WIDTH, 2, 16, batch_first=True)
    return copy.deepcopy(layer).double().eval()


def _cache_run(module: nn.Module, batch: int, length: int) -> None:
    ids = torch.randint(0, _WORDS, (batch, length), generator=torch.Generator().manual_seed(batch))
    positions = torch.arange(length)
    for step in range(3):
        logits = module(ids, positions)
        ids, positions = logits[:, -1:].argmax(-1), torch.tensor([length + step])


def _cache_drive(module: nn.Module) -> None:
    _cache_run(module, 2, 5)
    _cache_run(module, 3, 7)
    _cache_run(module, 2, 6)


def _cache_unseen(module: nn.Module) -> list[Arguments]:
    """Only prefills: they do not depend on what the buffers held."""
    runs = [captured(copy.deepcopy(module), lambda m, b=b: _cache_run(m, b, b + 6), (0,))
            for b in (3, 4)]  # fmt: skip
    return [calls[0] for calls in runs]


def _stream_drive(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for number, length in enumerate((6, 9, 7, 8, 5, 10)):
        chunk = torch.randn(1, 3, length, generator=generator)
        if number in (0, 3):
            module(chunk, first=True)
        else:
            module(chunk)


def _stream_unseen(_: nn.Module) -> list[Arguments]:
    return [((torch.randn(1, 3, length),), {"first": True}) for length in (11, 4)]


def _rows(rows: int) -> Arguments:
    return (torch.randn(rows, _WIDTH),), {}


def _perhaps_zero(rows: int, zeros: int) -> Arguments:
    x = torch.randn(rows, _WIDTH)
    x[:zeros] = 0
    return (x,), {}


def _steps(rows: int, length: int) -> Arguments:
    return (torch.randn(rows, length, _WIDTH),), {}


def _double_steps(rows: int, length: int) -> Arguments:
    return (torch.randn(rows, length, _WIDTH, dtype=torch.float64),), {}


def _ids(rows: int, length: int) -> Arguments:
    return (torch.randint(0, _WORDS, (rows, length)),), {}


def _scaled(rows: int, length: int) -> Arguments:
    ids = torch.randint(0, _WORDS, (rows, length), dtype=torch.int32)
    return (ids, torch.rand(rows, 1, 1, dtype=torch.float64)), {}


def _window(rows: int) -> Arguments:
    return (torch.randn(rows, 12, 3) * 3 + 5,), {}


def _audio(channels: int) -> Callable[..., Arguments]:
    return lambda rows, length: ((torch.randn(rows, channels, length),), {})


def _field(rows: int, height: int, width: int) -> Arguments:
    return (torch.randn(rows, 1, height, width),), {}


def _debug(rows: int, debug: bool) -> Arguments:
    return (torch.randn(rows, _WIDTH),), {"debug": True} if debug else {}


_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 9), (4, 7)], "unseen": [(5, 6), (2, 12)]}
_ROWS: dict[str, Any] = {"seen": [(3,), (5,), (4,)], "unseen": [(7,), (12,)]}
_GRIDS: dict[str, Any] = {
    "seen": [(2, 8, 10), (3, 12, 8), (2, 10, 14)], "unseen": [(4, 14, 12), (2, 16, 8)],
}  # fmt: skip

CASES: list[Case] = [
    Case("buffered_cache", made(BufferedCache), _cache_drive, _cache_unseen,
         note="decode steps depend on what calls before wrote into buffers"),
    Case("streamed_convolution", made(Streamed), _stream_drive, _stream_unseen,
         note="every call leaves the end of its chunk for the next"),
    simple("batch_statistics", made(Adapts), _rows, **_ROWS, note="a layer in training mode"),
    simple("rotary_grows", made(Rotary), _ids,
           seen=[(2, 5), (3, 9), (4, 7), (2, 11)], unseen=[(5, 6), (2, 14)],
           note="buffers are registered anew by a longer sequence"),
    simple("grid_cache", made(GridCache), images, **_GRIDS, note="a dict of tensors by size"),
    simple("reversible_norm", made(Reversible), _window, **_ROWS, note="attributes in a call"),
    simple("keeps_maps", made(KeepsMaps), _steps, **_PLANE),
    simple("features_by_hooks", made(Features), images, **_GRIDS),
    simple("weight_norms", made(Normed), _audio(3), **_PLANE),
    simple("patched_by_hooks", made(Patched), _steps, **_PLANE),
    simple("wrapped", made(Wrapped), _rows, **_ROWS, note="*args and **kwargs all the way"),
    simple("scripted_part", made(Scripted), _rows, **_ROWS),
    simple("quantized_dynamic", _quantized, _rows, **_ROWS),
    simple("int8_weights", made(Int8Weights), _steps, **_PLANE),
    simple("half_precision", made(Half), _scaled, **_PLANE, note="int32, half, single and double"),
    simple("double_precision", _double, _double_steps, **_PLANE),
    simple("autocast_inside", made(Autocast), _rows, **_ROWS),
    simple("inference_mode", made(NoGradient), _rows, **_ROWS),
    simple("own_function", made(OwnFunction), _rows, **_ROWS),
    simple("fourier_operator", made(Fourier), _field, **_GRIDS),
    simple("codebook", made(Codebook), _steps, **_PLANE, note="a text and None in the output"),
    simple(
        "many_kinds", made(ManyKinds), _debug,
        seen=[(3, False), (4, True), (6, False), (5, True)], unseen=[(8, True), (7, False)],
        note="the number of rows as an int in the output",
    ),
    simple("pads_to_multiple", made(PadsToMultiple), _audio(2),
           seen=[(2, 12), (3, 17), (4, 22)], unseen=[(5, 20), (2, 31)],
           note="pads only where it has to"),
    simple("loop_over_rows", made(PerSample), _steps, **_PLANE, note="a loop over the batch"),
    simple("sizes_in_python", made(Numbers), _steps, **_PLANE),
    simple("tiny_epsilon", made(TinyEpsilon), _perhaps_zero,
           seen=[(3, 0), (5, 0), (4, 0)], unseen=[(7, 2), (6, 1)],
           note="rows of zeros come after the recording"),
]  # fmt: skip
