"""The classes that objects of a tape may be made of."""

from __future__ import annotations

import pytest

from calltape_analyzer.pytree.classes import ClassIndex


def test_a_loaded_configuration_of_transformers_is_known() -> None:
    transformers = pytest.importorskip("transformers")
    cls = transformers.GPT2Config
    assert ClassIndex().get(f"{cls.__module__}:GPT2Config") is cls
    assert ClassIndex().get(f"{cls.__module__}:GPT2Model") is None
