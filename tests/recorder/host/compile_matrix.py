"""What recording a compiled model costs it, placement by placement; a slow test prints the table.

Every row compares two runs of the same calls, with and without a recorder: calls made and seen,
graphs, graph breaks, recompiles, and whether every output is equal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from calltape_recorder import Recorder, record
from tests.recorder.logs import log_handler
from tests.recorder.models import Two
from tests.recorder.reading import ReadCall, read

Via = Literal["hook", "method"]
When = Literal["before", "compiled", "after"]


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Cached(torch.nn.Module):
    """A decode step over a buffer of fixed size that it fills in place, as a static cache is."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(4, 4)
        self.middle = Double()
        self.register_buffer("cache", torch.zeros(16, 4))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, position, self.project(x))
        return self.middle(self.cache).sum(0) + x


@dataclass(frozen=True)
class Ran:
    """One run: graphs, graph breaks and frames of Dynamo (a recompile is a frame), what the model
    returned, how many calls were made while a recorder was attached, and what it says of them."""

    graphs: int
    breaks: int
    frames: int
    outputs: list[torch.Tensor]
    calls: int = 0
    seen: int = 0
    recorded: int = 0
    traced: int = 0
    said: str = ""
    are_right: bool = True


Promise = Literal["free", "breaks", "counted", "said"]
"""What a placement costs, and what it gives:

- free: not a graph, break or recompile more, and every call is recorded;
- breaks: every call is recorded, and the graph is broken around it;
- counted: fullgraph=True forbids that: no call is recorded, each compilation is counted;
- said: the graph was there before the hooks, which it does not run: attaching says so.

In all four every output is equal. Where compiled code notices that a recorder came later, it is
compiled anew, once.
"""


@dataclass(frozen=True)
class Row:
    """A placement, and both its runs."""

    case: Case
    plain: Ran
    ran: Ran

    @property
    def outputs_equal(self) -> bool:
        pairs = zip(self.plain.outputs, self.ran.outputs, strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    @property
    def holds(self) -> bool:
        """Whether what is promised is so."""
        plain, ran, case = self.plain, self.ran, self.case
        again = case.promise == "counted" and case.when == "after" and not case.is_compiled_anew
        is_free = ran.graphs == plain.graphs + again and (
            (ran.breaks, ran.frames) == (plain.breaks, plain.frames)
        )
        gives_all = ran.recorded == ran.seen == ran.calls and ran.are_right
        return (
            self.outputs_equal
            and {
                "free": is_free and gives_all,
                "breaks": gives_all,
                "counted": is_free
                and not ran.recorded
                and ran.seen == ran.traced > 0
                and "fullgraph=True" in ran.said,
                "said": is_free and not ran.seen and bool(ran.said),
            }[case.promise]
        )


# --- how a model is compiled -------------------------------------------------------------------


def root(model: Any, **options: Any) -> Callable[..., Any]:
    return torch.compile(model, **options)


def in_place(model: Any, **options: Any) -> Callable[..., Any]:
    model.compile(**options)
    return model  # type: ignore[no-any-return]


def submodule(model: Any, **options: Any) -> Callable[..., Any]:
    model.middle.compile(**options)
    return model  # type: ignore[no-any-return]


def its_forward(model: Any, **options: Any) -> Callable[..., Any]:
    model.forward = torch.compile(model.forward, **options)
    return model  # type: ignore[no-any-return]


def around(model: Any, **options: Any) -> Callable[..., Any]:
    return torch.compile(lambda *args: model(*args), **options)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "fixed shapes": Two, "new shapes": Two, "dynamic shapes": Two, "static cache": Cached,
    "nn.Sequential": lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One placement: ``part`` records the submodule instead of the model."""

    compile: Callable[..., Any]
    model: str
    via: Via
    when: When
    part: bool = False
    fullgraph: bool = False

    @property
    def is_compiled_anew(self) -> bool:
        """Whether there is another graph after the first call, whoever comes meanwhile."""
        return self.model == "new shapes"

    @property
    def promise(self) -> Promise:
        within = self.part and self.compile is not submodule
        within |= (self.compile, self.when, self.via) == (its_forward, "before", "method")
        # torch compiles its own modules by what calls them, hooks included.
        is_torch_s = self.model == "nn.Sequential" and self.compile is not around
        is_outside = self.when == "compiled" or (self.when, self.via) == ("before", "method")
        if not (within or self.compile is around or (is_torch_s and not is_outside)):
            return "free"
        looks_again = is_torch_s and self.compile is in_place
        looks_again |= self.is_compiled_anew
        if self.when == "after" and self.via == "hook" and not looks_again:
            return "said"
        return "counted" if self.fullgraph else "breaks"


def cases() -> list[Case]:
    """Every placement that differs."""
    found = []
    for model in MODELS:
        for compile in (root, in_place, its_forward, submodule, around):
            for fullgraph in (False, True):
                for when in ("before", "compiled", "after"):
                    for part in (False, True):
                        for via in ("hook", "method"):
                            case = Case(compile, model, via, when, part, fullgraph)
                            if _is_one(case):
                                found.append(case)
    return found


def _is_one(case: Case) -> bool:
    if case.model == "nn.Sequential" and (case.part or case.compile is submodule):
        return False
    # Only torch.compile(model) gives an object of its own to attach to.
    return case.when != "compiled" or (case.compile is root and not case.part)


def _inputs(case: Case) -> list[tuple[torch.Tensor, ...]]:
    if case.model == "static cache":
        return [(torch.full((1, 4), float(n)), torch.tensor([n])) for n in range(6)]
    sizes = (2,) * 6 if case.model in ("fixed shapes", "nn.Sequential") else (2, 3, 5, 8, 2, 9)
    return [(torch.full((size, 4), float(n)),) for n, size in enumerate(sizes)]


def run(case: Case, path: Path | None) -> Ran:
    """The calls of one case; without a recorder where ``path`` is None."""
    import torch._dynamo.utils as dynamo

    torch._dynamo.reset()
    dynamo.counters.clear()
    torch.manual_seed(0)
    model = MODELS[case.model]()
    target: Any = model.middle if case.part else model
    graphs, made = 0, 0
    recorder: Recorder | None = None
    outputs: list[torch.Tensor] = []

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def attach(to: Any) -> Recorder | None:
        return None if path is None else record(to, path, via=case.via)

    if case.when == "before":
        recorder = attach(target)
    options: dict[str, Any] = {"backend": backend, "fullgraph": case.fullgraph}
    if case.model == "dynamic shapes":
        options["dynamic"] = True
    said: list[str] = []
    with log_handler(lambda record: said.append(record.getMessage())), torch.no_grad():
        compiled = case.compile(model, **options)
        if case.when == "compiled":
            recorder = attach(compiled)
        for index, args in enumerate(_inputs(case)):
            if case.when == "after" and index == 1:
                recorder = attach(target)
            made += recorder is not None
            outputs.append(compiled(*args).clone())
    breaks = sum(dynamo.counters["graph_break"].values())
    did = (graphs, breaks, dynamo.counters["frames"].get("total", 0), outputs)
    if recorder is None or path is None:
        return Ran(*did)
    recorder.close()
    stats, calls = recorder.stats(), read(path).calls
    return Ran(
        *did, made, stats.seen, len(calls), stats.dropped.get("tracing", 0), " ".join(said),
        case.part or _are_right(calls, outputs),
    )  # fmt: skip


def _are_right(calls: list[ReadCall], outputs: list[torch.Tensor]) -> bool:
    """Whether the recorded outputs are those of the last calls."""
    last = outputs[len(outputs) - len(calls) :]
    return all(torch.equal(a.output(0), b) for a, b in zip(calls, last, strict=True))


def row(case: Case) -> Row:
    """Both runs of one case."""
    with tempfile.TemporaryDirectory() as directory:
        return Row(case, run(case, None), run(case, Path(directory) / "t.tape"))


HEADER = (
    "| calls | compiled | recorded | via | attached | made | seen | kept | graphs | breaks | frames"
    " | outputs equal | promise |\n" + "| --- " * 13 + "|"
)

_WHEN = {
    "before": "before compiling", "compiled": "to what was compiled",
    "after": "after the first call",
}  # fmt: skip


def line(row: Row) -> str:
    """One line of the table; "a / b" is with a recorder / with none."""
    case, ran, plain = row.case, row.ran, row.plain
    cells = [
        case.model, f"`{case.compile.__name__}`" + (", fullgraph" if case.fullgraph else ""),
        "submodule" if case.part else "model", case.via, _WHEN[case.when],
        ran.calls, ran.seen, ran.recorded, f"{ran.graphs} / {plain.graphs}",
        f"{ran.breaks} / {plain.breaks}", f"{ran.frames} / {plain.frames}",
        "yes" if row.outputs_equal else "NO", case.promise + ("" if row.holds else ": BROKEN"),
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"
