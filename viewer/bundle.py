"""Puts the page into one file: ``python viewer/bundle.py`` writes ``calltape-viewer.html`` here.

Browsers load no modules, and start no threads, from a disk. So the page of one file has its style
and its modules inside: each module becomes a function, in the order of their imports. Nothing else
is changed. Content-Security-Policy names the script and the style by their digests. A module may
use only the forms of ``import`` and ``export`` that are below; every other form is an error here.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE / "calltape-viewer.html"

_IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.{1,2}/[\w./-]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*? |class |const )(\w+)", re.MULTILINE)
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)
_OTHER = re.compile(r"^(import|export)\b.*$|\bimport\(|\bimport\.meta\b", re.MULTILINE)


class Bundle:
    """Modules in the order in which they must run."""

    def __init__(self) -> None:
        self.names: dict[Path, str] = {}
        self.parts: list[str] = []
        self._open: list[Path] = []

    def add(self, module: Path) -> str:
        """Adds a module after those that it imports. Gives back its name."""
        if module in self.names:
            return self.names[module]
        if module in self._open:
            raise ValueError(f"{module.name} imports itself, by way of others")
        self._open.append(module)
        source = _SOURCE_MAP.sub("", module.read_text(encoding="utf-8"))

        def imported(match: re.Match[str]) -> str:
            other = self.add((module.parent / match[2]).resolve())
            wanted = " ".join(match[1].split()).rstrip(",").replace(" as ", ": ")
            return f"const {{ {wanted} }} = {other};\n"

        source = _IMPORT.sub(imported, source)
        exported = [match[2] for match in _EXPORT.finditer(source)]
        source = _EXPORT.sub(r"\1\2", source)
        if other := _OTHER.search(source):
            raise ValueError(f"{module.name}: no bundle can be made of {other[0]!r}")
        self._open.pop()
        name = self.names[module] = f"module_{len(self.names)}"
        given = f"return {{ {', '.join(exported)} }};"
        made = f"const {name} = (() => {{\n{source.strip()}\n{given}\n}})();"
        self.parts.append(f"// {module.relative_to(HERE).as_posix()}\n{made}\n")
        return name

    def text(self) -> str:
        return '"use strict";\n' + "\n".join(self.parts)


def program(entry: str) -> str:
    """One script of a module and all that it imports."""
    bundle = Bundle()
    bundle.add((HERE / entry).resolve())
    text = bundle.text()
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("the text of a module would end the script that it is in")
    return text


def page() -> str:
    """The page in one file."""
    page, reader = program("src/page.mjs"), program("src/reader.mjs")
    style = (HERE / "style.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_digest(page)}; style-src {_digest(style)}; "
        "connect-src 'self'; worker-src blob:; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types reader"
    )
    text = (HERE / "index.html").read_text(encoding="utf-8")
    text = re.sub(r'(http-equiv="Content-Security-Policy" content=")[^"]*', rf"\g<1>{policy}", text)
    text = _replaced(text, '<link rel="stylesheet" href="style.css">', f"<style>{style}</style>")
    text = _replaced(text, '<script type="module" src="src/page.mjs"></script>\n', "")
    text = re.sub(
        r'<p class="notice">.*?</p>', '<p class="notice">This page needs JavaScript.</p>', text
    )
    scripts = f'<script type="text/plain" id="reader-program">{reader}</script>\n'
    scripts += f"<script>{page}</script>\n"
    return _replaced(text, "</body>", f"{scripts}</body>")


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise ValueError(f"index.html has {old!r} {text.count(old)} times")
    return text.replace(old, new)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


if __name__ == "__main__":
    # Whole at any moment: tests that run at the same time read it.
    made = TARGET.with_suffix(f".{os.getpid()}")
    made.write_text(page(), encoding="utf-8")
    made.replace(TARGET)
    sys.stdout.write(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes\n")
