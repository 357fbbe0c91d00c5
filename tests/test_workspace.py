"""The distributions as installed: versions, dependencies, and who imports whom."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MEMBERS = ("schema", "recorder", "analyzer")

# Top-level modules that a member may import besides the standard library and itself.
_SCHEMA = {"msgpack", "pydantic", "pydantic_core", "typing_extensions", "zlib_ng"}
_RECORDER = {*_SCHEMA, "calltape_schema", "opentelemetry", "torch"}
ALLOWED = {"schema": _SCHEMA, "recorder": _RECORDER}

# What installing a member installs. Recorders go into servers, so theirs is not to grow unnoticed.
REQUIRED = {
    "schema": {"msgpack", "pydantic", "typing-extensions"},
    "recorder": {"calltape-schema", "torch"},
    "analyzer": {"calltape-schema", "rich", "safetensors", "torch", "typer"},
}


def package_of(member: str) -> Path:
    spec = importlib.util.find_spec(f"calltape_{member}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def imports_of(package: Path) -> Iterator[tuple[Path, str]]:
    """Every absolute import below ``package``, also those inside functions."""
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield file, node.module


def test_all_distributions_have_one_version() -> None:
    versions = {importlib.metadata.version(f"calltape-{member}") for member in MEMBERS}
    assert versions == {importlib.metadata.version("calltape")}


def test_one_distribution_brings_all_of_this_version() -> None:
    version = importlib.metadata.version("calltape")
    requires = [line for line in importlib.metadata.requires("calltape") or [] if ";" not in line]
    assert sorted(requires) == sorted(f"calltape-{member}=={version}" for member in MEMBERS)


def test_one_distribution_has_the_extras_of_all() -> None:
    extras = {
        extra
        for member in MEMBERS
        for extra in importlib.metadata.metadata(f"calltape-{member}").get_all("Provides-Extra", [])
    }
    found = set(importlib.metadata.metadata("calltape").get_all("Provides-Extra", []))
    assert found == extras - {"observer"}  # which is there anyway


@pytest.mark.parametrize("member", MEMBERS)
def test_module_and_metadata_have_the_same_version(member: str) -> None:
    # Read, not imported: torch takes seconds.
    source = (package_of(member) / "__init__.py").read_text(encoding="utf-8")
    version = importlib.metadata.version(f"calltape-{member}")
    assert f'__version__ = "{version}"' in source


@pytest.mark.parametrize("member", MEMBERS)
def test_each_distribution_is_typed(member: str) -> None:
    assert (package_of(member) / "py.typed").is_file()


@pytest.mark.parametrize("member", MEMBERS)
def test_each_distribution_has_few_dependencies(member: str) -> None:
    requires = importlib.metadata.requires(f"calltape-{member}") or []
    names = {re.split(r"[^\w.-]", line)[0] for line in requires if "extra ==" not in line}
    assert names == REQUIRED[member]


@pytest.mark.parametrize("member", sorted(ALLOWED))
def test_imports_only_what_is_allowed(member: str) -> None:
    allowed = {*ALLOWED[member], f"calltape_{member}", *sys.stdlib_module_names}
    package = package_of(member)
    strangers = {
        f"{file.relative_to(package)}: {name}"
        for file, name in imports_of(package)
        if name.partition(".")[0] not in allowed
    }
    assert not strangers


def test_only_the_observer_and_the_export_of_parts_import_the_recorder() -> None:
    package = package_of("analyzer")
    importers = {
        file.relative_to(package).as_posix()
        for file, name in imports_of(package)
        if name.partition(".")[0] == "calltape_recorder"
    }
    assert importers <= {"observer/input_observer.py", "exporting/parts.py"}


def test_schema_loads_without_tensors() -> None:
    modules = sorted(
        f"calltape_schema.{file.stem}"
        for file in package_of("schema").glob("*.py")
        if file.stem != "__init__"
    )
    program = (
        f"import sys, {', '.join(['calltape_schema', *modules])}\n"
        "print({'torch', 'numpy', 'safetensors'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


@pytest.mark.skipif(not shutil.which("git") or not (ROOT / ".git").exists(), reason="no git here")
def test_git_has_no_lock_file() -> None:
    command = ["git", "ls-files", "*uv.lock"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not result.stdout
