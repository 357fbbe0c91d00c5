"""The pages from a failing call to a fixed test are one story: sharing.md makes the model and the
tape, and minimising.md, bisecting.md and testing.md continue with what the pages before them made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from calltape_recorder import record
from tests.docs.page import DOCS, Page

SHARING, MINIMISING, BISECTING, TESTING = (
    Page(DOCS / name) for name in ("sharing.md", "minimising.md", "bisecting.md", "testing.md")
)
AUTHOR = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
CULPRITS = {
    "Keep 16 positions": ("arange(64)", "arange(16)"),
    "Log every sentence": ("        x = self", "        time.sleep(0.7)\n        x = self"),
    "Scale the scores": ("scores = self.head(x)", "scores = self.head(x) * 1.5"),
}
"""What each of the bisections of the page is to find, and the change that this commit makes."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who has followed the pages up to the smallest tape."""
    folder = tmp_path_factory.mktemp("service")
    SHARING.follow(folder)
    MINIMISING.follow(folder)
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, source: str, message: str) -> None:
    (folder / "model.py").write_text(source)
    git(folder, "add", "model.py")
    git(folder, "commit", "-q", "-m", message)


def with_history(folder: Path) -> None:
    """Commits the model as it was when all was well, and then with one fault after the other. In
    the middle, where each bisection begins, is a commit that cannot be tested."""
    source = "import time\n\n" + SHARING.files["model.py"].replace("arange(16)", "arange(64)")
    git(folder, "init", "-q", "-b", "main")
    commit(folder, source, "one")
    git(folder, "tag", "v1")
    record_good(source, folder / "runs/good.tape")
    first, second, third = CULPRITS
    source = with_fault(folder, source, first)
    commit(folder, f"{source}\n", "three")
    commit(folder, f"{source}\n\n", "four")
    commit(folder, "import no_such_module\n", "cannot be tested")
    commit(folder, f"{source}\n", "six")
    source = with_fault(folder, source, second)
    source = with_fault(folder, source, third)
    commit(folder, f"{source}\n", "nine")


def with_fault(folder: Path, source: str, message: str) -> str:
    before, after = CULPRITS[message]
    assert before in source
    commit(folder, source.replace(before, after), message)
    return source.replace(before, after)


def record_good(source: str, path: Path) -> None:
    scope: dict[str, object] = {"__name__": "model"}
    exec(source, scope)
    model = scope["tagger"]()  # type: ignore[operator]
    with torch.no_grad(), record(model, path):
        for tokens in (5, 9):
            model(torch.randint(0, 100, (2, tokens)), mask=torch.ones(2, tokens))


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not shutil.which("git"), reason="no git here")
def test_the_bisections_of_the_page_find_their_culprits(
    service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AUTHOR.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "runs").mkdir()
    shutil.copy(service / "runs/small.tape", tmp_path / "runs")
    with_history(tmp_path)
    BISECTING.follow(tmp_path)
    found = {
        command.prints.strip()
        for command in BISECTING.commands
        if "refs/bisect/bad" in command.text
    }
    assert found == {*CULPRITS}
    skipped = ["this commit cannot be tested" in said for said in BISECTING.said]
    assert skipped.count(True) == len(CULPRITS)


@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_the_page_on_tests_works(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("PYTEST_", "COV_")):  # of this run, and not of the reader's
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    TESTING.follow(service)


def test_each_argument_of_the_mark_is_on_the_page() -> None:
    from calltape_analyzer.testing.parameters import OPTIONS

    page = (DOCS / "testing.md").read_text()
    for name in OPTIONS:
        assert f"`{name}=" in page, name
