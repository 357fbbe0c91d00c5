"""``calltape view --out``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyzer.cli.commands import run


@pytest.mark.integration
def test_a_tape_and_a_directory_of_two_models(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    ran = run("view", runs / "llm.tape", "-o", out)
    assert (ran.code, ran.out) == (0, f"wrote {out}\n")
    assert run("view", runs / "llm.tape", "-o", out).code == 1
    assert run("view", runs, "-o", out, "--force").code == 0
    text = out.read_text()
    assert "2 recorded targets" in text
    assert run("view", runs, "-o", out, "--force", "--target", "Inner").code == 0
    assert "2 recorded targets" not in out.read_text()


def test_a_survey(runs: Path, tmp_path: Path) -> None:
    assert run("survey", runs, "-o", tmp_path / "s.tape", "--target", "Llm").code == 0
    assert run("view", tmp_path / "s.tape", "-o", tmp_path / "page.html").code == 0
    assert "a survey has no single call" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("-o", "page.txt"), 2, "a page ends with .html"),
        (("--target", "Inner"), 2, "--target goes with --out"),
    ],
)
def test_what_cannot_be(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...], code: int, words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    ran = run("view", runs / "llm.tape", *options)
    assert ran.code == code
    assert words in ran.err
    assert not list(tmp_path.iterdir())
