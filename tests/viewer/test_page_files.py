"""The files of the viewer: what is vendored is unchanged, the page of one file is made of the
modules, and no module has a way to run what a tape says."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.viewer.node import VIEWER

MODULES = sorted((VIEWER / "src").glob("*.mjs"))
POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')


@pytest.fixture(scope="module")
def bundle() -> ModuleType:
    spec = importlib.util.spec_from_file_location("viewer_bundle", VIEWER / "bundle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["viewer_bundle"] = module
    spec.loader.exec_module(module)
    return module


def test_what_is_vendored_is_unchanged() -> None:
    folder = VIEWER / "vendor"
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    told = dict(reversed(line.split("  ")) for line in lines)
    found = {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and file.parent != folder
    }
    assert found == told
    assert (
        "ISC License" in (folder / "msgpack" / "LICENSE").read_text()
        or "ISC" in (folder / "README.md").read_text()
    )


# What runs text, or takes it for HTML.
SINKS = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function|DOMParser|"
    r"createContextualFragment|setHTML\w*|srcdoc|importScripts|localStorage|sessionStorage|"
    r"indexedDB|sendBeacon|XMLHttpRequest|WebSocket|EventSource|style\.cssText|window\.open)\b"
)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_no_module_takes_text_for_code(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert not SINKS.findall(text)
    assert len(text.splitlines()) < 400
    # Only the source of a server's tape, and the questions for its list and variants, ask it.
    assert text.count("fetch(") <= (module.stem in ("sources", "page", "variants_view"))


@pytest.mark.parametrize("name", ["index.html", "calltape-viewer.html"])
def test_the_policy_allows_nothing_from_elsewhere(name: str) -> None:
    text = (VIEWER / name).read_text(encoding="utf-8")
    match = POLICY.search(text)
    assert match is not None
    policy = dict(part.split(maxsplit=1) for part in match[1].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["connect-src"] == "'self'"
    assert not re.search(r"unsafe|https?:|\*", match[1])
    # The policy comes before everything that it is to hold for.
    assert text.index("Content-Security-Policy") < text.index("<script")
    assert not re.search(r"<[^>]*\son\w+=", text)


FORMS = {
    'import x from "./a.mjs";\n': "import x",
    'import "./a.mjs";\n': "import",
    "export default 1;\n": "export default",
    "const x = await import(y);\n": "import(",
    "const x = import.meta.url;\n": "import.meta",
    'export * from "./a.mjs";\n': "export *",
}


@pytest.mark.parametrize("text", FORMS)
def test_a_form_that_the_bundle_does_not_know_is_an_error(
    text: str, tmp_path: Path, bundle: ModuleType
) -> None:
    (tmp_path / "a.mjs").write_text("export const a = 1;\n")
    (tmp_path / "b.mjs").write_text(text)
    with pytest.raises(ValueError, match=re.escape(FORMS[text])):
        bundle.Bundle().add(tmp_path / "b.mjs")


def test_a_circle_of_modules_is_an_error(tmp_path: Path, bundle: ModuleType) -> None:
    (tmp_path / "a.mjs").write_text('import { b } from "./b.mjs";\nexport const a = 1;\n')
    (tmp_path / "b.mjs").write_text('import { a } from "./a.mjs";\nexport const b = 1;\n')
    with pytest.raises(ValueError, match="imports itself"):
        bundle.Bundle().add((tmp_path / "a.mjs").resolve())
