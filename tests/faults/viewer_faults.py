"""Faults of the page that shows a tape, and of the second reader of the format."""

from __future__ import annotations

from tests.faults.fault import Fault

FAULTS = (
    Fault(
        "viewer-checksum-of-records",
        "viewer/src/sections.mjs",
        "if (crc32(data) !== checksum) throw",
        'if (what !== "the records of a group" && crc32(data) !== checksum) throw',
        "The page shows records with flipped bits as if they were what was recorded.",
        ("viewer/test_conformance.py", "viewer/test_units.py"),
    ),
    Fault(
        "viewer-milliseconds-as-seconds",
        "viewer/src/numbers.mjs",
        "if (value < 1e9) return",
        "if (value < 1e12) return",
        "The page says 12000 ms, rounded to three digits, for twelve seconds.",
        ("viewer/test_units.py",),
    ),
)
