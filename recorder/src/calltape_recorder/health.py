"""``python -m calltape_recorder.health DIR``: whether the recorders of a directory record.

It is ``calltape health`` for images that have no analyzer. torch is not imported.
"""

from __future__ import annotations

import sys

from calltape_schema.health_command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(program="python -m calltape_recorder.health"))
