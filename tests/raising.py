"""``pytest.raises`` for a ``TapeError`` of a kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from calltape_schema.errors import TapeError


@contextmanager
def raises(kind: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[TapeError]]:
    with pytest.raises(TapeError, match=match) as caught:
        yield caught
    assert caught.value.kind == kind
