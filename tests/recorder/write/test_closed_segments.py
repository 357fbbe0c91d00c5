"""The bytes of closed files are a sum that is kept, and is right at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calltape_recorder import record
from calltape_recorder.write.segments import ClosedSegments
from tests.recorder.models import Identity
from tests.recorder.write.test_segments import KIB, block, call


@pytest.mark.parametrize(
    "options",
    [{}, {"max_disk_bytes": 200 * KIB, "when_full": "delete_oldest"}],
)
def test_the_sum_is_that_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    asked = []
    kept = ClosedSegments.nbytes.fget  # type: ignore[attr-defined]

    def nbytes(closed: ClosedSegments) -> int:
        found: int = kept(closed)
        asked.append(found == sum(one.tape.size for one in list(closed._all)))
        return found

    monkeypatch.setattr(ClosedSegments, "nbytes", property(nbytes))
    model = Identity()
    with record(model, tmp_path / "a.tape", segment_bytes=20 * KIB, **options) as recorder:
        for _ in range(40):
            model(block(kib=4))
            recorder.flush()
        call(recorder, model, 1)
    assert asked
    assert all(asked)
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert recorder.stats().disk_bytes == sum(path.stat().st_size for path in files)
