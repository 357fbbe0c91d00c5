"""``python -m tests.fuzz scripts``, for a short while; and that it finds what it looks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forging.strangers import commanding
from tests.fuzz.scripts import Fuzzing
from tests.security.vulnerable import VULNERABLE

pytestmark = pytest.mark.integration


@pytest.mark.slow
def test_a_round_finds_nothing(tmp_path: Path) -> None:
    fuzzing = Fuzzing(tmp_path / "findings", seed=7, names=150)
    fuzzing.run()
    assert fuzzing.findings == []
    assert fuzzing.runs >= 3  # of a forged tape as a script, an export and a zip


PLANTED = {
    "subprocess.Popen": VULNERABLE.replace("a.tape", "tape.tape"),
    "prints": "print('\\x1b[31mred')",
    "a traceback: KeyError": "raise KeyError('x')",
    "open": "open('../beside', 'w')",
}


@pytest.mark.slow
def test_the_fuzzer_finds_what_vulnerable_scripts_do(tmp_path: Path) -> None:
    work = (tmp_path / "work").resolve()
    fuzzing = Fuzzing(tmp_path / "findings", names=1)
    fuzzing.prepare(work)
    tape = commanding(work / "tape.tape", "touch", str(tmp_path / "MARKER"))
    for number, (finding, planted) in enumerate(PLANTED.items()):
        (work / "planted.py").write_text(planted)
        words = ("bundle", "tape.tape", "--model", "model:build_model", "-o", f"{number}.py")
        fuzzing.attempt(tape, work, of=[(words, "planted.py")])
        assert fuzzing.runs == number + 1
        assert any(finding in one.what for one in fuzzing.findings), (finding, fuzzing.findings)
        assert list((tmp_path / "findings").glob("*.tape"))
        fuzzing.findings.clear()
    assert not (tmp_path / "MARKER").exists()
    assert not (tmp_path / "beside").exists()
