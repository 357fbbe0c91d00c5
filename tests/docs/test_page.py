"""The reader of pages: what it takes for a file, a program, a command, and for a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page import Page

TEXT = """# A page

```python
# one.py
print("from a file")
```

```python
print("from the page")
print("12.5 s, or so")
```

```text
from the page
12.5 s…
```

```console
$ python one.py
from a file
$ true
```

```sh
false
```
"""


def page(folder: Path, text: str) -> Page:
    path = folder / "page.md"
    path.write_text(text)
    return Page(path)


def test_a_page_that_is_true_passes(tmp_path: Path) -> None:
    page(tmp_path, TEXT).follow(tmp_path)


@pytest.mark.parametrize(
    "shown", ["one\ntwo\nthree", "…\nthree", "one\n…", "…", "one\n…\nthree", "o…\n…"]
)
def test_what_is_left_out_is_marked(tmp_path: Path, shown: str) -> None:
    text = f"```console\n$ printf 'one\\ntwo\\nthree\\n'\n{shown}\n```\n"
    page(tmp_path, text).follow(tmp_path)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('print("from the page")', "raise SystemExit(3)"),
        ("$ true", "$ false"),
        ("$ true", "$ true\nnothing prints this"),
        ("12.5 s…", "12.6 s…"),
        ("12.5 s…", "12.5 s"),
        ('print("from a file")', 'print("from a file", "more")'),
        ('print("from a file")', 'print("from a file\\n")'),
        ('print("from a file")', 'print("more\\nfrom a file")'),
        ("from the page\n12.5 s…", "12.5 s…\nfrom the page"),
        ("from the page\n12.5", "from the page\n\n12.5"),
    ],
)
def test_a_page_that_is_wrong_fails(tmp_path: Path, right: str, wrong: str) -> None:
    with pytest.raises(AssertionError):
        page(tmp_path, TEXT.replace(right, wrong)).follow(tmp_path)
