"""The pages are true: each file, folder, function, class, test and benchmark that they name exists,
each folder is on the page of the architecture, and each term of the glossary has one meaning and is
used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [ROOT / f"{name}/src/calltape_{name}" for name in ("schema", "recorder", "analyzer")]
DECISIONS = [file.relative_to(ROOT).as_posix() for file in (ROOT / "docs/decisions").glob("*.md")]
NAMES = (
    "docs/architecture.md",
    "docs/privacy.md",
    "docs/minimising.md",
    "docs/testing.md",
    "docs/remote.md",
    "docs/surveys.md",
    "CONTRIBUTING.md",
    *DECISIONS,
)
PAGES = {name: (ROOT / name).read_text() for name in NAMES}

A_PATH = re.compile(r"`([\w./*-]*\.(?:py|md|toml)|[\w./-]+/)`")
A_TEST = re.compile(r"`(test_\w+)`")
A_BENCHMARK = re.compile(r"`python -m benchmarks\s+([\w ]+)`")
A_STEP = re.compile(r"\| `([\w/]+\.py)` \| `([\w.]+)` \|$", re.MULTILINE)


def found(path: str) -> list[Path]:
    """Where a path of a page leads: below the repository's root, or below a package."""
    return [file for root in (ROOT, *PACKAGES) for file in root.glob(path)]


def names_in(file: Path) -> set[str]:
    """Functions, classes and methods: ``f``, ``C``, ``C.m``."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            names |= {f"{node.name}.{part.name}" for part in inner}
    return names


PATHS = {(page, path) for page, text in PAGES.items() for path in A_PATH.findall(text)}


@pytest.mark.parametrize(("page", "path"), sorted(PATHS))
def test_each_path_exists(page: str, path: str) -> None:
    assert found(path), f"{page} names {path}, which is not there"


def test_each_decision_is_listed() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", PAGES["docs/decisions/README.md"])
    pages = {Path(name).name for name in DECISIONS} - {"README.md"}
    assert len(pages) > 10
    assert sorted(listed) == sorted(pages)


def test_each_test_exists() -> None:
    named = {name for page in DECISIONS for name in A_TEST.findall(PAGES[page])}
    assert named
    tests = [file.read_text() for file in (ROOT / "tests").rglob("test_*.py")]
    assert not {name for name in named if not any(f"def {name}(" in text for text in tests)}


def test_each_benchmark_exists() -> None:
    found = {names for page in DECISIONS for names in A_BENCHMARK.findall(PAGES[page])}
    named = {name for names in found for name in names.split()}
    assert named
    known = re.findall(
        r'^    "(\w+)": \1\.rows,$', (ROOT / "benchmarks/__main__.py").read_text(), re.M
    )
    assert not named - set(known)


@pytest.mark.parametrize(("path", "name"), A_STEP.findall(PAGES["docs/architecture.md"]))
def test_each_step_is_a_function(path: str, name: str) -> None:
    assert any(name in names_in(file) for file in found(path)), f"{path} has no {name}"


@pytest.mark.parametrize("package", PACKAGES[1:], ids=lambda package: package.name)
def test_each_wing_is_on_the_page(package: Path) -> None:
    wings = {file.parent.name for file in package.glob("*/__init__.py")}
    named = set(re.findall(r"^\| `(\w+)/` \|", PAGES["docs/architecture.md"], re.MULTILINE))
    assert wings <= named, wings - named


GLOSSARY = (ROOT / "docs/glossary.md").read_text()


def test_each_class_of_the_glossary_exists() -> None:
    classes = {
        node.name
        for package in PACKAGES
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    named = set(re.findall(r"`([A-Z]\w+)`", GLOSSARY))
    assert named
    assert named <= classes


TERMS = [
    name
    for term in re.findall(r"^\| ([^|]+) \|", GLOSSARY, re.MULTILINE)
    for name in term.split(", ")
    if term != "term" and not term.startswith("---")
]


def test_a_term_has_one_meaning() -> None:
    assert len(TERMS) > 30
    assert len(TERMS) == len(set(TERMS))


def test_each_term_is_used() -> None:
    files = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "schema/FORMAT.md"]
    pages = [file for file in files if file.name != "glossary.md"]
    text = " ".join(file.read_text().lower() for file in pages)
    words = re.sub(r"\s+", " ", text)
    assert not {term for term in TERMS if term not in words}
