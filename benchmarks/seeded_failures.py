"""Failures that were put into small models on purpose, and the tapes that show them.

Each has one cause, and it is known how many calls show it. :mod:`benchmarks.minimising`
makes their tapes small.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calltape_analyzer import ExportError, ExportOptions, Tape, export, replay
from calltape_analyzer.testing import call, write_tape

__all__ = ["FAILURES", "Failure", "differs", "raises"]

_CALLS = 500


@dataclass(frozen=True)
class Failure:
    """A failure that was put somewhere on purpose.

    Attributes:
        name: what it is.
        write: writes the tape.
        check: tells whether a tape fails.
        reason: a part of the words that say why it fails.
        calls: the least number of calls that shows it.
    """

    name: str
    write: Callable[[Path], Path]
    check: Callable[[Tape], Any]
    reason: str
    calls: int = 1


def _recorded(path: Path, model: Any, arguments: Iterator[tuple[Any, ...]]) -> Path:
    with torch.no_grad():
        calls = [call(*args).returns(model(*args)) for args in arguments]
    return write_tape(path, calls, model)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Scorer(nn.Module):
    """Scores rows of 8 numbers each, of any number and batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Any, weights: Any = None) -> Any:
        found = self.linear(self.norm(x))
        return found if weights is None else found * weights.unsqueeze(-1)


class WrongAtOneSize(Scorer):
    """Another kernel for 37 rows, with a bug."""

    def forward(self, x: Any, weights: Any = None) -> Any:
        found = super().forward(x, weights)
        return found * 1.01 if x.shape[1] == 37 else found


class WrongBeyondASize(Scorer):
    """Cuts off what comes after 48 rows."""

    def forward(self, x: Any, weights: Any = None) -> Any:
        found = super().forward(x, weights)
        found[:, 48:] = 0
        return found


def scored(path: Path) -> Path:
    """Batches of rows, with and without weights; one call in 500 has 37 rows, one has 60."""
    generator = _generator()

    def arguments() -> Iterator[tuple[Any, ...]]:
        for i in range(_CALLS):
            rows = {211: 37, 402: 60}.get(i, 1 + i % 30)
            x = torch.randn(1 + i % 4, rows, 8, generator=generator)
            yield (x, torch.rand(x.shape[:2], generator=generator)) if i % 2 else (x,)

    return _recorded(path, Scorer(), arguments())


class Tagger(nn.Module):
    """A tag for each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(120, 16)
        self.positions = nn.Embedding(64, 16)
        self.out = nn.Linear(16, 5)

    def forward(self, ids: Any, positions: Any) -> Any:
        return self.out(self.embedding(ids) + self.positions(positions))


def small_tagger() -> nn.Module:
    """Knows fewer words than were used."""
    model = Tagger()
    model.embedding = nn.Embedding.from_pretrained(model.embedding.weight[:100].detach())
    return model


class NarrowTagger(Tagger):
    """Keeps positions in a byte, of which it uses too few bits."""

    def forward(self, ids: Any, positions: Any) -> Any:
        return super().forward(ids, positions & 31)


def tagged(path: Path) -> Path:
    """Tokens below 100, but for one in one call; positions up to 31, but for one call."""
    generator = _generator()

    def arguments() -> Iterator[tuple[Any, ...]]:
        for i in range(_CALLS):
            length = 45 if i == 77 else 2 + i % 29
            ids = torch.randint(0, 100, (1 + i % 3, length), generator=generator)
            if i == 333:
                ids[-1, length // 2] = 111
            yield ids, torch.arange(length).expand(ids.shape).contiguous()

    return _recorded(path, Tagger(), arguments())


class Pooler(nn.Module):
    """The mean of the rows that a mask chooses, in float16."""

    def forward(self, x: Any, mask: Any) -> Any:
        chosen = x * mask.unsqueeze(-1)
        return chosen.sum(1) / mask.sum(1, keepdim=True)


def gives_nan(tape: Tape) -> bool:
    """A mask without a 1 divides by 0."""
    model = Pooler()
    return any(bool(model(*c.inputs.args).isnan().any()) for c in tape)


def overflows(tape: Tape) -> bool:
    """A sum is beyond float16."""
    model = Pooler()
    return any(bool(model(*c.inputs.args).isinf().any()) for c in tape)


def crashes(tape: Tape) -> None:
    """A kernel that ends the process for more than 40 rows."""
    for one in tape:
        if one.inputs.args[0].shape[1] > 40:
            os.kill(os.getpid(), 11)


def pooled(path: Path) -> Path:
    """One mask of 500 has a row of zeros, one call has values that are too large, one is long."""
    generator = _generator()

    def arguments() -> Iterator[tuple[Any, ...]]:
        for i in range(_CALLS):
            rows = 50 if i == 90 else 2 + i % 24
            x = torch.randn(1 + i % 4, rows, 16, generator=generator).half()
            mask = torch.ones(x.shape[:2], dtype=torch.float16)
            if i == 123:
                mask[-1] = 0
            if i == 456:
                x[0, 0, 3] = x[0, 1, 3] = 40000.0
            yield x, mask

    return _recorded(path, Pooler(), arguments())


class Remembering(nn.Module):
    """Makes its buffer once per width, and so keeps the batch of the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}

    def forward(self, x: Any) -> Any:
        buffer = self.made.setdefault(x.shape[-1], x.new_ones(x.shape))
        return x[: len(buffer)] * buffer[: len(x)]


def remembers(tape: Tape) -> bool:
    """Gives fewer rows than it got."""
    model = Remembering()
    return any(len(model(c.inputs.args[0])) < len(c.inputs.args[0]) for c in tape)


def widths(path: Path) -> Path:
    """Only one width comes twice, the second time with more rows."""
    generator = _generator()

    def arguments() -> Iterator[tuple[Any, ...]]:
        for i in range(_CALLS):
            width = 65 if i == 301 else i + 2
            yield (torch.randn(9 if i == 301 else 3, width, generator=generator),)

    return _recorded(path, nn.Identity(), arguments())


class Addressing(nn.Module):
    """Reads where a tensor is in memory, as a kernel of one's own would, where it has a limit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Any, limit: Any = None) -> Any:
        found = self.linear(x)
        return found if limit is None else found.clamp(max=1 + found.data_ptr() % 2)


class Applying(nn.Module):
    """Calls a Python function for each element where it has lengths."""

    def forward(self, x: Any, lengths: Any = None) -> Any:
        if lengths is None:
            return x * 2
        return x.sum(1) / lengths.clone().apply_(lambda n: n + 1).unsqueeze(-1)


def addressed(path: Path) -> Path:
    """Few calls have a limit."""
    generator = _generator()

    def arguments() -> Iterator[tuple[Any, ...]]:
        for i in range(60):
            x = torch.randn(2 + i % 5, 24 + i % 9, 16, generator=generator)
            yield (x, torch.tensor([0.5, 1.0])) if i % 20 == 7 else (x,)

    return _recorded(path, Addressing(), arguments())


def applied(path: Path) -> Path:
    """Few calls have lengths."""
    generator = _generator()

    def arguments() -> Iterator[tuple[Any, ...]]:
        for i in range(60):
            x = torch.randn(2 + i % 5, 24 + i % 9, 16, generator=generator)
            yield (x, torch.arange(len(x)) + 3) if i % 20 == 7 else (x,)

    return _recorded(path, Applying(), arguments())


def raises(make: Callable[[], nn.Module]) -> Callable[[Tape], Any]:
    """A check: the model does not return for each call."""

    def check(tape: Tape) -> str | None:
        failing = replay(tape, make(), expect="success").failing
        return failing[0].error if failing else None

    return check


def differs(make: Callable[[], nn.Module], reference: Callable[[], nn.Module]) -> Any:
    """A check: the model gives other values than a correct one."""

    def check(tape: Tape) -> str | None:
        model, correct = make(), reference()
        with torch.no_grad():
            for args, kwargs in (one.inputs for one in tape):
                wanted = correct(*deepcopy(args), **deepcopy(kwargs))
                if not torch.allclose(model(*args, **kwargs), wanted, atol=1e-4):
                    return "the output differs"
        return None

    return check


def reads_memory(make: Callable[[], nn.Module]) -> Callable[[Tape], Any]:
    """A check: the exporter cannot follow what reads the memory of a tensor."""

    def check(tape: Tape) -> str | None:
        try:
            programs = export(tape, make(), options=ExportOptions(probe="none"))
        except ExportError as error:
            found = [str(one.summary) for one in error.attempts]
        else:
            found = list(map(str, programs.missing.values()))
        return "data pointer" if "data pointer" in "".join(found) else None

    return check


FAILURES = (
    Failure("a wrong value at one size", scored, differs(WrongAtOneSize, Scorer), "differs"),
    Failure("wrong values beyond a size", scored, differs(WrongBeyondASize, Scorer), "differs"),
    Failure("an exception in one call of 500", tagged, raises(small_tagger), "IndexError"),
    Failure("positions that wrap around", tagged, differs(NarrowTagger, Tagger), "differs"),
    Failure("NaN from an empty mask", pooled, gives_nan, "returned true"),
    Failure("a sum beyond float16", pooled, overflows, "returned true"),
    Failure("a crash beyond a size", pooled, crashes, "SIGSEGV"),
    Failure("a state that two calls share", widths, remembers, "returned true", calls=2),
    Failure("an exporter error: an address", addressed, reads_memory(Addressing), "data pointer"),
    Failure("an exporter error: a function", applied, reads_memory(Applying), "data pointer"),
)
