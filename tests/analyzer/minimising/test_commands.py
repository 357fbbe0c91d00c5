"""What a command says of a tape."""

from __future__ import annotations

from pathlib import Path

import pytest

from calltape_analyzer.minimising.search import CheckResult, CommandCheck

TRACEBACK = """cat >&2 <<END
Traceback (most recent call last):
  File "check.py", line 3, in <module>
RuntimeError: size 21 must match 16
END
exit 1 # {}"""


def outcome(command: str, path: Path, seconds: float = 60) -> CheckResult:
    return CommandCheck(command).run(str(path), seconds)._replace(seconds=0)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("exit 0 # {}", CheckResult("passed")),
        ("echo ValueError: no; exit 0 # {}", CheckResult("passed")),
        ("exit 3 # {}", CheckResult("failed", ("exit code 3",))),
        (TRACEBACK, CheckResult("failed", ("RuntimeError: size # must match #",))),
        (
            "echo '5  my.app:OddError: 7'; echo then KeyError; exit 1 # {}",
            CheckResult("failed", ("KeyError", "my.app:OddError: #")),
        ),
        ("echo KeyError; kill -SEGV $$ # {}", CheckResult("failed", ("ended by SIGSEGV",))),
        ("sh -c 'kill -ABRT $$'; exit $? # {}", CheckResult("failed", ("ended by SIGABRT",))),
        ("echo no model; exit 125 # {}", CheckResult("unusable", ("exit code 125", "no model"))),
    ],
)
def test_the_end_of_a_command_is_classified(
    command: str, expected: CheckResult, tmp_path: Path
) -> None:
    assert outcome(command, tmp_path) == expected


def test_a_missing_command_is_unusable(tmp_path: Path) -> None:
    found = outcome("no-such-command", tmp_path)
    assert (found.end, found.reasons[0]) == ("unusable", "exit code 127")
    assert "not found" in found.reasons[1]


@pytest.mark.parametrize("command", ["grep -q found {}", "grep -q found"])
def test_the_path_of_the_tape_is_quoted_in_the_command(command: str, tmp_path: Path) -> None:
    path = tmp_path / "it's a $HOME; tape.tape"
    path.write_text("found")
    assert outcome(command, path).end == "passed"
    assert CommandCheck("a {} b").command("c d") == "a 'c d' b"


def test_a_command_that_hangs_ends_with_all_that_it_started(tmp_path: Path) -> None:
    assert outcome("sleep 600 & sleep 600 # {}", tmp_path, seconds=0.1).end == "time"


def test_only_the_end_of_a_long_output_is_read(tmp_path: Path) -> None:
    found = outcome("head -c 3000000 /dev/zero; echo; echo OSError: full; exit 1 # {}", tmp_path)
    assert found.reasons == ("OSError: full",)
