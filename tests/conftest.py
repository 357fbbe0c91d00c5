"""What every test gets: the same random numbers each time, and no CUDA test without a device."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import settings

# Machines are shared: a slow example is not a failure.
settings.register_profile("calltape", deadline=None)
settings.load_profile("calltape")


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
