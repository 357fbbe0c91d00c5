"""``make test-often`` sees what fails, and its seed repeats an order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.often import Result, run

SUITE = """
import pytest

@pytest.fixture
def broken():
    raise OSError

def test_passes(): pass
def test_fails(): assert 0
def test_errs(broken): pass
def test_is_skipped(): pytest.skip("no such device")
@pytest.mark.parametrize("n", range(8))
def test_many(n): open("order.txt", "a").write(f"{n} ")
"""


@pytest.mark.integration
def test_what_fails_is_named_and_a_seed_gives_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    orders = []
    for number, seed in enumerate((1, 1, 2)):
        # One process: which of two would come first is not a matter of the seed.
        args = ["-n0", f"--rootdir={tmp_path}", str(tmp_path)]
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("tests.often.ROOT", tmp_path)
        found = run(number, seed, number == 1, args, tmp_path)
        assert set(found.failed) == {"test_it::test_fails", "test_it::test_errs"}
        assert found == Result(passed=9, skipped=1, failed=found.failed)
        orders.append((tmp_path / "order.txt").read_text())
        (tmp_path / "order.txt").unlink()
    assert orders[0] == orders[1] != orders[2]
    assert "".join(sorted(orders[0].split())) == "01234567"


@pytest.mark.integration
def test_a_run_that_collects_nothing_is_a_failure(tmp_path: Path) -> None:
    found = run(1, 1, False, [str(tmp_path)], tmp_path)
    assert "pytest ended with 5" in "".join(found.failed)
