"""Tries the oldest and the newest of each promise, and writes docs/versions.md.

``make test-versions`` makes an environment for each case below ``build/versions``, installs the
distributions as a user would, and runs a part of the fast tests there: gigabytes and half an hour.
A Python that is not on this machine is a row that says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.versions.promises import EXTRAS, MEMBERS, PAGE, ROOT, promised

__all__ = ["CASES", "PARTS", "ROOT", "Case"]

_FOLDER = ROOT / "build" / "versions"
_UV = Path(sys.executable).with_name("uv")
_TOOLS = ("hypothesis>=6.100", "numpy>=1.26", "pytest>=8.3", "pytest-timeout>=2.3", "tomli>=2")

PARTS = {
    "recording": ("tests/recorder",),
    "reading": (
        "tests/schema",
        "tests/analyzer/reading",
        "tests/analyzer/pytree",
        "tests/analyzer/programs/test_torch_model.py",
        "tests/test_fixtures.py",
    ),
    "exports": (
        "tests/analyzer/exporting/test_attempts.py",
        "tests/analyzer/exporting/test_empty_results.py",
        "tests/analyzer/exporting/test_onnx_conversion.py",
        "tests/analyzer/programs/test_saving.py",
        "tests/analyzer/programs/test_trust.py",
        "tests/analyzer/replaying/test_runtimes.py",
    ),
    "pages": (),
}
"""What is run for each promise, of the fast tests. The pages are those of :mod:`tests.tour`, ONNX
included: they are followed from the first to the last block."""


@dataclass(frozen=True)
class Case:
    """One environment.

    Attributes:
        python: the version of Python, as ``3.10``.
        torch: the version of torch, as ``2.6``, or ``newest``.
        lowest: takes the lowest version of each direct dependency that is allowed.
        parts: what is run, names of :data:`PARTS`.
    """

    python: str
    torch: str
    lowest: bool
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"python{self.python}-torch{self.torch}{'-lowest' if self.lowest else ''}"

    @property
    def what(self) -> str:
        """What is run, as the page says it."""
        return ", ".join(self.parts)


def _cases() -> tuple[Case, ...]:
    promises = promised()
    oldest, newest = promises.pythons[0], promises.pythons[-1]
    tests = tuple(part for part in PARTS if part != "pages")
    return (
        Case(oldest, promises.torch, True, ("recording", "reading")),
        Case(newest, promises.torch, True, ("recording", "reading")),
        Case(oldest, promises.torch_of_exports, True, tests),
        Case(oldest, promises.torch_of_exports, False, ("pages",)),
        Case(oldest, "2.13", False, ("pages",)),
        Case(oldest, "2.14", False, ("pages",)),
        Case(newest, "newest", False, tuple(PARTS)),
    )


CASES = _cases()


@dataclass(frozen=True)
class Row:
    """What came of one case, as the page shows it."""

    case: Case
    versions: dict[str, str]
    result: str
    is_good: bool

    def as_text(self) -> str:
        """A row of the table."""
        found, case = self.versions, self.case
        python, torch = found.get("python", case.python), found.get("torch", case.torch)
        kind = "lowest" if case.lowest else "newest"
        return f"| {python} | {torch} | {kind} | {case.what} | {self.result} |"


def interpreter(version: str) -> str | None:
    """A Python of this version on this machine, None if there is none: on the path, or where pyenv
    keeps them."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = sorted(root.glob(f"versions/{version}.*/bin/python"))
    named = shutil.which(f"python{version}")
    for found in filter(None, (named, *map(str, kept))):
        command = [found, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return found
    return None


def tried(case: Case) -> Row:
    """Makes the environment of a case, and runs its tests there."""
    found = interpreter(case.python)
    if found is None:
        return Row(case, {}, f"not tried: no python{case.python} here", is_good=True)
    folder = _FOLDER / case.name
    python = str(folder / "bin" / "python")
    try:
        _install(case, found, folder, python)
    except subprocess.CalledProcessError:
        return Row(case, {}, "**could not be installed**", is_good=False)
    paths = [path for part in case.parts for path in PARTS[part]]
    log = _FOLDER / f"{case.name}.log"
    commands = []
    if paths:
        commands.append([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths])
    if "pages" in case.parts:
        commands.append([sys.executable, "-m", "tests.tour", python])
    is_good = True
    with log.open("w") as file:
        for command in commands:
            done = subprocess.run(
                command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False
            )
            is_good = is_good and done.returncode == 0
    result = _outcome(log.read_text())
    if not is_good:
        print(f"  see {log.relative_to(ROOT)}", flush=True)
    return Row(case, _versions(python), result if is_good else f"**{result}**", is_good)


def _install(case: Case, found: str, folder: Path, python: str) -> None:
    """What a user installs, and what the tests need beside it."""
    _uv("venv", "--clear", "--python", found, str(folder))
    extras = ",".join(EXTRAS)
    ours = [f"./{name}" for name in MEMBERS]
    torch = [] if case.torch == "newest" else [f"torch=={case.torch}.*"]
    how = "lowest-direct" if case.lowest else "highest"
    wanted = [*ours, f".[{extras}]", *torch]
    # Ours are built anew: an installer keeps what it built of a folder before.
    fresh = [f"--refresh-package=calltape-{name}" for name in MEMBERS]
    asked = ["--python", python, "--resolution", how, "--no-sources"]  # not editable
    _uv("pip", "install", *asked, *fresh, *wanted)
    _uv("pip", "install", "--python", python, *_TOOLS)


def _uv(*arguments: str) -> None:
    command = [str(_UV), *arguments, "--quiet", "--no-python-downloads"]
    subprocess.run(command, cwd=ROOT, check=True)


def _versions(python: str) -> dict[str, str]:
    """What was installed, by name."""
    ask = (
        "import importlib.metadata, platform; "
        "print(platform.python_version(), importlib.metadata.version('torch'))"
    )
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    return dict(zip(("python", "torch"), done.stdout.split(), strict=True))


def _outcome(log: str) -> str:
    """What pytest counted, without the seconds."""
    lines = [line for line in log.splitlines() if re.search(r" in [\d.:]+s", line)]
    counted = re.findall(r"(\d+) (failed|passed|skipped|errors?)", lines[-1]) if lines else []
    found = [f"{int(count):,} {what}" for count, what in counted]
    if followed := re.findall(r"^(?:ok|FAILED) \S+\.md$", log, re.MULTILINE):
        good = sum(line.startswith("ok") for line in followed)
        found.append(f"{good} of {len(followed)} pages")
    return ", ".join(found) or "ended before its tests were counted"


def page(rows: Sequence[str]) -> str:
    """The page as it is written."""
    table = "\n".join(rows)
    return f"""\
# Versions

`make test-versions` writes this page.

## Supported versions

{promised().as_text()}
## Tested environments

Each row is a separate environment on {platform.system()}, {platform.machine()}, CPU. "lowest" has
the lowest allowed version of each direct dependency, with the extras {", ".join(EXTRAS)}. A subset
of the fast tests ran in each; "pages" means README, Start and others, run block by block.

| Python | torch | dependencies | what | result |
| --- | --- | --- | --- | --- |
{table}
"""


def main() -> int:
    """Tries all cases, prints and writes the page."""
    parser = argparse.ArgumentParser(prog="make test-versions", description=__doc__)
    parser.add_argument("--only", default="", help="tries the cases whose name has this")
    given = parser.parse_args()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    is_good = True
    for case in (one for one in CASES if given.only in one.name):
        print(f"{case.name}: {case.what}", flush=True)
        row = tried(case)
        is_good = is_good and row.is_good
        print(f"  {row.as_text()}", flush=True)
        _row_file(case).write_text(row.as_text())
        shutil.rmtree(_FOLDER / case.name, ignore_errors=True)
    PAGE.write_text(page([_last_row(case) for case in CASES]))
    print(PAGE.relative_to(ROOT))
    return 0 if is_good else 1


def _row_file(case: Case) -> Path:
    return _FOLDER / f"{case.name}.row"


def _last_row(case: Case) -> str:
    """What came of a case when it was last tried: ``--only`` keeps the rows of the others."""
    file = _row_file(case)
    return file.read_text() if file.exists() else Row(case, {}, "not tried yet", False).as_text()


if __name__ == "__main__":
    sys.exit(main())
