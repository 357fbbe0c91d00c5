"""How Sphinx makes the site: ``make docs``.

The source directory is the root of the repository, so that a link of a page is the same in the
repository and on the site. Every warning is an error, an anchor that is not there too.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "calltape"
author = "the authors of calltape"
version = release = version_of("calltape")

extensions = [
    "myst_parser",
    "accessible",
    "generated_parts",
    "self_contained",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "schema/FORMAT.md",
    "fixtures/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "**/.*", "build", "dist", "runs"]

nitpicky = True
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"calltape {version}"
html_extra_path = ["start"]  # an index.html at the root, which leads to this one
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_show_search_summary = False  # it is fetched, which no browser does for pages from disk


def setup(app: Sphinx) -> None:
    app.add_lexer("hex", TextLexer)  # FORMAT.md shows bytes
