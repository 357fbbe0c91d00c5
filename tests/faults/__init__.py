"""Deliberate faults, and whether the tests find them: ``python -m tests.faults``.

A suite that became faster must still find what the slow one found. Each fault is one that a
maintainer could make; it breaks a promise to a user. It is planted in a copy of the tree, where
tests run until one fails.
"""

from __future__ import annotations

from tests.faults import (
    analyzer_faults,
    export_faults,
    recorder_faults,
    schema_faults,
    viewer_faults,
)

__all__ = ["FAULTS"]

FAULTS = (
    *schema_faults.FAULTS,
    *recorder_faults.FAULTS,
    *analyzer_faults.FAULTS,
    *export_faults.FAULTS,
    *viewer_faults.FAULTS,
)
