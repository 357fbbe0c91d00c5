"""The two ways to attach to a module, for tests that try both."""

from __future__ import annotations

from typing import Literal

import pytest

__all__ = ["Via", "both"]

Via = Literal["hook", "method"]
both = pytest.mark.parametrize("via", ["hook", "method"])
