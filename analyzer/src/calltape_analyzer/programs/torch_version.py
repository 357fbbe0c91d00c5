"""The torch that exported programs need.

Before 2.12 a program that was verified can give wrong results with no word: it serves the other
side of ``if mask.all()`` (2.9 to 2.11), or a size is wrong (2.6, 2.7). Recording, and reading
tapes, need less.
"""

from __future__ import annotations

import re

from calltape_analyzer.errors import UsageError

__all__ = ["NEEDED", "demand_torch"]

NEEDED = (2, 12)
"""What exports are tested with, and newer (docs/versions.md)."""


def demand_torch() -> None:
    """Rejects a torch that is too old for programs. Builds of one's own between two releases
    (``2.12.0a0+git1234``) count as the release that they lead to.

    Raises:
        UsageError: it is too old; says what is installed, and what is needed.
    """
    import torch

    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is not None and (int(found[1]), int(found[2])) < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise UsageError(
            f"torch {torch.__version__} is installed, and exported programs need {needed} or "
            "newer: with an older one they can give wrong results with no word",
            advice=f"install torch {needed} or newer here, or export on another machine; "
            "recording and reading tapes work with this one",
        )
