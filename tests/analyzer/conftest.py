"""Fixtures of the analyzer's tests."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest


def _cache_classes() -> list[type]:
    from transformers import cache_utils

    found, waiting = [], [cache_utils.Cache]
    while waiting:
        cls = waiting.pop()
        found.append(cls)
        waiting += cls.__subclasses__()
    return found


@contextlib.contextmanager
def _registered(which: str) -> Iterator[None]:
    import torch
    from torch.utils import _pytree as pytree

    from calltape_analyzer import register_flattening_functions

    if which == "ours":
        with register_flattening_functions(patch_transformers=True):
            yield
        return
    if which == "executorch":
        from transformers.integrations import executorch

        executorch.register_dynamic_cache_export_support()
    elif which == "exporters":
        exporters = pytest.importorskip("transformers.exporters.exporter_dynamo")
        for cls in _cache_classes():
            exporters.register_pytree_node(cls)
    try:
        yield
    finally:
        for cls in _cache_classes():
            if cls in pytree.SUPPORTED_NODES:
                pytree._deregister_pytree_node(cls)
            torch.fx._pytree.SUPPORTED_NODES.pop(cls, None)
            torch.fx._pytree.SUPPORTED_NODES_EXACT_MATCH.pop(cls, None)


@pytest.fixture
def registrations() -> Callable[[str], Any]:
    """``with registrations(which):`` has "none", "ours", or one of transformers' own ("executorch",
    "exporters") active, and leaves none behind."""
    pytest.importorskip("transformers")
    return _registered


@pytest.fixture(autouse=True)
def _in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets fast tests run a model in this process where an export would fork: a fork of a test
    process with torch in it takes longer than what most tests run in it. Tests of forks are marked
    ``forks``, and integration tests fork as users do."""
    marks = map(request.node.get_closest_marker, ("forks", "integration", "chaos", "slow"))
    sandbox = sys.modules.get("calltape_analyzer.exporting.session.sandbox")
    if sandbox is not None and not any(marks):
        monkeypatch.setattr(sandbox, "may_fork", lambda device: False)


@pytest.fixture
def of_rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this process the rank of a job."""

    import torch

    def become(rank: int, ranks: int = 2) -> None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)

    return become
