"""The fixtures folder, and its generator as importable modules."""

from __future__ import annotations

import sys
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures"
if str(FIXTURES) not in sys.path:
    sys.path.append(str(FIXTURES))
