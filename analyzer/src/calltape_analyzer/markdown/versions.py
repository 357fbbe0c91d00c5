"""The versions of what reads a tape, beside those of what recorded it."""

from __future__ import annotations

import functools
import platform
import sys
from importlib import metadata

from calltape_analyzer.markdown.disclosure import version
from calltape_analyzer.markdown.document import Document
from calltape_analyzer.tape import Tape
from calltape_schema import __version__

__all__ = ["add_versions", "versions_here", "versions_of"]

_LIBRARIES = ("torch", "transformers", "onnx", "onnxruntime")
_TOLD = ("calltape", "python", "platform", *_LIBRARIES)


def versions_here() -> dict[str, str]:
    """Of calltape, Python, the platform, and the libraries that are installed. Nothing is
    imported."""
    found = {
        "calltape": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        # Not platform.platform(): a kernel may be named after the machine it was built for.
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in _LIBRARIES:
        installed = _version(name)
        if installed is not None:
            found[name] = installed
    return found


@functools.cache
def _version(name: str) -> str | None:
    """That of a library; None if it is not installed. To find it, folders and files are read."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions_of(tape: Tape) -> dict[str, str]:
    """Those that the tape was recorded with, as far as they are told of any tape."""
    recorded = tape.manifest.producer.model_dump(exclude_none=True)
    return {name: str(recorded[name]) for name in _TOLD if recorded.get(name)}


def add_versions(document: Document, tape: Tape) -> None:
    """A table of both."""
    here, there = versions_here(), versions_of(tape)
    rows = [
        (name, version(here.get(name, "-")), version(there.get(name, "-")))
        for name in _TOLD
        if name in here or name in there
    ]
    document.heading("Versions")
    document.table("versions", ("", "here", "recorded with"), rows)
