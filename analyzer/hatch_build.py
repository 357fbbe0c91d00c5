"""Makes the page of ``calltape view`` and puts it into the distributions. Its modules are in
another folder of the repository; an sdist has the page, made, beside this file. An editable install
finds it in the repository."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = "calltape-viewer.html"


class ViewerPage(BuildHookInterface[Any]):
    """Includes the page in a wheel as a file of the package, and in an sdist beside this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        page = Path(self.root) / PAGE
        viewer = Path(self.root).parent / "viewer"
        if not page.is_file():
            runpy.run_path(str(viewer / "bundle.py"), run_name="__main__")
            page = viewer / PAGE
        in_wheel = f"calltape_analyzer/{PAGE}"
        build_data["force_include"][str(page)] = in_wheel if self.target_name == "wheel" else PAGE
