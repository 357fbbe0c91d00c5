"""One process that fuzzes: guided by coverage, or at full speed.

atheris is libFuzzer for Python: it counts the branches of the packages that it instruments as they
are imported, keeps the inputs that reach a new one, and asks our mutator for mutants of these.
Instrumented code takes twice the time. So another process reads mutants of what was kept, and
counts no branches.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import random
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["fuzz", "has_atheris", "import_all", "plain_mutants"]

_PACKAGES = ("calltape_schema", "calltape_analyzer")
_NOT_READING = ("exporting", "programs", "replaying", "model", "observer", "comparison")
"""Wings of the analyzer that run models: a tape alone reaches little of them."""

_VIRTUAL = 12 * 10**9
"""Bytes of address space: torch reserves gigabytes; a mutant that wants more ends the process."""
_MUTANT_SECONDS = 60


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


def fuzz(
    target: Callable[[], Callable[[bytes], None]], corpus: Path, seed: int, *, guided: bool
) -> NoReturn:
    """Gives mutants to a target, which ends the process.

    Args:
        target: makes the target. It is called after the packages were imported, so that what it
            imports is instrumented.
        corpus: the folder of what to begin with.
        seed: the same seed and corpus give the same mutants.
        guided: counts branches, and adds the inputs that reach a new one to the corpus.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_VIRTUAL, _VIRTUAL))
    if guided:
        _guided(target, corpus, seed)
    _plain(target, corpus, seed)


def _guided(target: Callable[[], Callable[[bytes], None]], corpus: Path, seed: int) -> None:
    import atheris
    import torch
    from atheris.import_hook import HookManager

    torch.set_num_threads(1)
    # Comparisons are not traced: libFuzzer takes what they saw for mutants of its own, and ours are
    # made by grammar. It costs as much as all else.
    with HookManager(set(_PACKAGES), set(), True, trace_dataflow=False):
        import_all()
    from tests.fuzz.mutator import MOST_BYTES, Mutator

    mutator = Mutator()

    def mutate(data: bytes, most: int, chosen: int) -> bytes:
        made = mutator.mutant(bytes(data), random.Random(chosen))
        return made if len(made) <= most else bytes(data)[:most]

    options = [
        f"-seed={seed}", f"-max_len={MOST_BYTES}", "-len_control=0", "-rss_limit_mb=0",
        f"-timeout={_MUTANT_SECONDS}", f"-artifact_prefix={corpus.parent}/", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], target(), custom_mutator=mutate)
    atheris.Fuzz()


def import_all() -> None:
    """What is imported later would not be instrumented."""
    for name in _PACKAGES:
        package: Any = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            wing = found.name.split(".")[1]
            if wing not in ("__main__", *_NOT_READING):
                importlib.import_module(found.name)


def _plain(target: Callable[[], Callable[[bytes], None]], corpus: Path, seed: int) -> NoReturn:
    import torch

    torch.set_num_threads(1)
    read = target()
    for mutant in plain_mutants(sorted(corpus.iterdir()), random.Random(seed)):
        read(mutant)
    raise AssertionError("there is no end of mutants")


def plain_mutants(corpus: Sequence[Path], rng: random.Random) -> Iterator[bytes]:
    """Mutants of the inputs of a corpus, without end. Of two inputs the smaller one is taken: it is
    read in half the time, and tells as much."""
    from tests.fuzz.mutator import Mutator

    mutator = Mutator()
    sizes = [path.stat().st_size for path in corpus]
    while True:
        one, other = rng.randrange(len(corpus)), rng.randrange(len(corpus))
        chosen = corpus[min(one, other, key=sizes.__getitem__)]
        yield mutator.mutant(chosen.read_bytes(), rng)
