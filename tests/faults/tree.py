"""A copy of the repository in which faults are planted, with an interpreter that imports the copy.

The packages are installed from the working tree, and tests start Pythons with a ``PYTHONPATH`` of
their own, or isolated. So the copy has an environment of its own: its packages come before those
that are installed, and the commands in its ``bin`` start its interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.fault import ROOT, Fault

PACKAGES = ("schema", "recorder", "analyzer")
_BUNDLE = "viewer/bundle.py"
_MOST_SCRIPT = 64 * 1024


class Tree:
    """A copy of all files of the working tree that git does not ignore.

    Args:
        folder: a new one.

    Raises:
        RuntimeError: its interpreter does not import the copy.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        stdout = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, stdout.decode().split("\0")):
            source, target = ROOT / name, folder / name
            if source.is_file():  # one that was removed, and not from the index
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self.python = self._environment()
        self._check()

    def _environment(self) -> Path:
        home = self.folder / ".venv"
        venv.EnvBuilder(symlinks=True, with_pip=False).create(home)
        own = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
        installed = sysconfig.get_path("purelib")
        # Lines with a path only: the .pth files of that folder, which lead to the working tree,
        # are not read.
        paths = [*(str(self.folder / package / "src") for package in PACKAGES), installed]
        Path(own, "calltape-copy.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
        python = home / "bin" / "python"
        before = Path(sys.executable).parent
        for script in before.iterdir():
            target = python.parent / script.name
            if target.exists() or not script.is_file() or script.stat().st_size > _MOST_SCRIPT:
                continue
            text = script.read_bytes()
            if text.startswith(b"#!" + os.fsencode(before)):
                _, _, rest = text.partition(b"\n")
                target.write_bytes(b"#!" + os.fsencode(python) + b"\n" + rest)
                target.chmod(0o755)
        return python

    @property
    def environment(self) -> dict[str, str]:
        """The environment for processes in the copy."""
        found = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        found["PATH"] = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        return found

    def _check(self) -> None:
        names = [f"calltape_{one}" for one in PACKAGES]
        program = f"import {', '.join(names)}\nprint({', '.join(f'{n}.__file__' for n in names)})"
        for flags in ([], ["-I"]):
            done = subprocess.run(
                [self.python, *flags, "-c", program],
                cwd=self.folder, env=self.environment, capture_output=True, text=True,
            )  # fmt: skip
            inside = [Path(one).is_relative_to(self.folder) for one in done.stdout.split()]
            if len(inside) != len(names) or not all(inside):
                raise RuntimeError(f"the copy is not what is imported: {done.stdout}{done.stderr}")

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Plants a fault until the end of the block.

        Raises:
            StaleFaultError: its text is not there exactly once.
        """
        path = self.folder / fault.file
        before = path.read_text(encoding="utf-8")
        try:
            self._write(path, fault.planted_in(before))
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        if path.suffix == ".py":
            # Python compares times in whole seconds: what was compiled could seem to be current.
            Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
        else:
            # The page of one file is what people open. A test that it is current finds no fault.
            subprocess.run(
                [self.python, self.folder / _BUNDLE],
                check=True,
                capture_output=True,
                cwd=self.folder,
            )
