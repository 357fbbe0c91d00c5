"""``python -m tests.frozen`` writes the archive of the frozen reader from the code of today.

It is made once for each version of the format, and kept: until the first release, whenever the
format changes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = Path(__file__).with_name("reader-1.zip")
_DATE = (2026, 1, 1, 0, 0, 0)  # the same bytes whenever it is made


def main() -> None:
    package = ROOT / "schema" / "src" / "calltape_schema"
    files = {f"calltape_schema/{path.name}": path for path in sorted(package.glob("*.py"))}
    files |= {name: ROOT / "fixtures" / name for name in ("elements.py", "plain_form.py")}
    files["__main__.py"] = Path(__file__).with_name("reader.py")
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), path.read_bytes(), zipfile.ZIP_DEFLATED)
    print(f"{ARCHIVE.relative_to(ROOT)}: {ARCHIVE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
