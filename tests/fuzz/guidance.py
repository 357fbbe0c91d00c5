"""One process that fuzzes: guided by coverage where atheris runs, by grammar alone elsewhere.

atheris is libFuzzer for Python: it counts the branches of the packages that it instruments as they
are imported, keeps the inputs that reach a new one, and asks our mutator for mutants of these.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import random
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["NOT_READING", "PACKAGES", "fuzz", "has_atheris", "import_all"]

PACKAGES = ("calltape_schema", "calltape_analyzer")
NOT_READING = ("exporting", "programs", "replaying", "model", "observer", "comparison")
"""Wings of the analyzer that run models: a tape alone reaches little of them."""

_VIRTUAL = 12 * 10**9
"""Bytes of address space: torch reserves gigabytes; a mutant that wants more ends the process."""
_MUTANT_SECONDS = 60


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


def fuzz(target: Callable[[], Callable[[bytes], None]], corpus: Path, seed: int) -> NoReturn:
    """Gives mutants to a target, which ends the process.

    Args:
        target: makes the target. It is called after the packages were imported, so that what it
            imports is instrumented.
        corpus: the folder of what to begin with; inputs that reach something new are added.
        seed: the same seed gives the same mutants.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_VIRTUAL, _VIRTUAL))
    if has_atheris():
        _guided(target, corpus, seed)
    _unguided(target, seed)


def _guided(target: Callable[[], Callable[[bytes], None]], corpus: Path, seed: int) -> None:
    import atheris
    import torch
    from atheris.import_hook import HookManager

    torch.set_num_threads(1)
    # Comparisons are not traced: libFuzzer takes what they saw for mutants of its own, and ours are
    # made by grammar. It costs as much as all else.
    with HookManager(set(PACKAGES), set(), True, trace_dataflow=False):
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
    for name in PACKAGES:
        package: Any = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            wing = found.name.split(".")[1]
            if wing not in ("__main__", *NOT_READING):
                importlib.import_module(found.name)


def _unguided(target: Callable[[], Callable[[bytes], None]], seed: int) -> NoReturn:
    import torch

    from tests.fuzz.mutator import Mutator, seeds

    torch.set_num_threads(1)
    read, rng, mutator, known = target(), random.Random(seed), Mutator(), seeds()
    while True:
        read(mutator.mutant(rng.choice(known), rng))
