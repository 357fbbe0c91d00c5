"""Puts the page of ``calltape view`` into the distributions. It is made in another folder of the
repository; in an sdist it lies beside this file. An editable install finds it in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = "calltape-viewer.html"


class ViewerPage(BuildHookInterface[Any]):
    """Includes the page in a wheel as a file of the package, and in an sdist beside this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        places = (root / PAGE, root.parent / "viewer" / PAGE)
        page = next((place for place in places if place.is_file()), None)
        if page is None:
            raise FileNotFoundError(f"{PAGE} is not there: run viewer/bundle.py")
        in_wheel = f"calltape_analyzer/{PAGE}"
        build_data["force_include"][str(page)] = in_wheel if self.target_name == "wheel" else PAGE
