"""``make test-often`` sees what fails, and its seed repeats an order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.often import run

SUITE = """
import pytest

@pytest.fixture
def broken():
    raise OSError

def test_passes(): pass
def test_fails(): assert 0
def test_errs(broken): pass
@pytest.mark.parametrize("n", range(8))
def test_many(n): open("order.txt", "a").write(f"{n} ")
"""


@pytest.mark.integration
def test_what_fails_is_named_and_a_seed_gives_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    monkeypatch.setattr("tests.often.ROOT", tmp_path)
    # One process: which of two would come first is not a matter of the seed.
    args, orders = ["-n0", f"--rootdir={tmp_path}", str(tmp_path)], []
    for seed, busy in ((1, False), (1, True), (2, False)):
        counted, failed = run(seed, busy, args, tmp_path / "said.txt")
        assert set(failed) == {"test_it.py::test_fails", "test_it.py::test_errs"}
        assert counted.startswith("1 failed, 9 passed, 1 error in")
        orders.append((tmp_path / "order.txt").read_text())
        (tmp_path / "order.txt").unlink()
    assert orders[0] == orders[1] != orders[2]
    assert "".join(sorted(orders[0].split())) == "01234567"


@pytest.mark.integration
def test_a_run_that_collects_nothing_is_a_failure(tmp_path: Path) -> None:
    assert run(1, False, [str(tmp_path)], tmp_path / "said.txt")[1] == ["pytest ended with 5"]
