"""``python -m tests.fuzz scripts``, for a short while; and that it finds what it looks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.scripts import Fuzzing, main
from tests.security.forging import commanding
from tests.security.test_scripts import VULNERABLE

pytestmark = pytest.mark.integration

BUNDLE = ("bundle", "tape.tape", "--model", "model:build_model", "-o", "replay.py")


def test_a_round_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "findings"
    code = main(["--rounds", "1", "--names", "150", "--seed", "7", "--folder", str(folder)])
    assert code == 0, capsys.readouterr().out
    assert "0 findings" in capsys.readouterr().out
    assert not folder.exists()


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        (VULNERABLE.replace("a.tape", "tape.tape"), "subprocess.Popen"),
        ("print('\\x1b[31mred')", "prints"),
        ("raise KeyError('x')", "a traceback: KeyError"),
        ("open('../beside', 'w')", "open"),
    ],
)
def test_it_finds_what_a_vulnerable_script_does(planted: str, finding: str, tmp_path: Path) -> None:
    work = (tmp_path / "work").resolve()
    fuzzing = Fuzzing(tmp_path / "findings", names=1)
    fuzzing.prepare(work)
    tape = commanding(work / "tape.tape", "touch", str(tmp_path / "MARKER"))
    (work / "planted.py").write_text(planted)
    fuzzing.attempt(tape, work, of=[(BUNDLE, "planted.py")])
    assert any(finding in one.what for one in fuzzing.findings), fuzzing.findings
    assert all("planted" not in one.written for one in fuzzing.findings)
    assert not (tmp_path / "MARKER").exists()
    assert list((tmp_path / "findings").glob("*.tape"))
