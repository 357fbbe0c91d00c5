"""What every test gets: the same random numbers each time, no CUDA test without a device, no graphs
or garbage of the files before it, and all the time that an export may want."""

from __future__ import annotations

import gc
import random
import sys

import pytest
from hypothesis import HealthCheck, settings

# How many examples a property is tried with. Machines are shared: a slow example is not a failure,
# nor is one that took long to draw.
# A red build is to mean that the change broke something, so CI tries the same examples each time;
# ``make test-all`` tries new ones.
_ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", _ANY_SPEED, max_examples=30, derandomize=True)
settings.register_profile("ci", _ANY_SPEED, max_examples=200, derandomize=True)
settings.register_profile("thorough", _ANY_SPEED, max_examples=200)
settings.load_profile("fast")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(0)
    # Not imported here: tests of the schema run without torch.
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which sizes an export tries does not depend on how fast this machine is just now."""
    if "calltape_analyzer" in sys.modules:
        from calltape_analyzer.exporting.session import budget

        monkeypatch.setattr(budget, "MIN_PATIENCE", 600.0)


@pytest.fixture(autouse=True, scope="module")
def _collected() -> None:
    # Without it each full collection looks at all that torch and the other tests brought: 0.7 s.
    gc.collect()
    gc.freeze()
    # A recorder warns of graphs that were compiled before it was attached, by whomever.
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # what is frozen is not freed at the end, which triton calls a leak
