"""Who may read what was written."""

from __future__ import annotations

from pathlib import Path


def check_private(folder: Path) -> None:
    """Only the owner may read a folder, and each file and folder in it."""
    found = [folder, *folder.rglob("*")]
    assert any(path.is_file() for path in found)
    for path in found:
        expected = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == expected, path
