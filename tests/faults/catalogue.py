"""All faults, in the order of the packages."""

from __future__ import annotations

from tests.faults import (
    analyzer_faults,
    export_faults,
    recorder_faults,
    schema_faults,
    viewer_faults,
)

FAULTS = (
    *schema_faults.FAULTS,
    *recorder_faults.FAULTS,
    *analyzer_faults.FAULTS,
    *export_faults.FAULTS,
    *viewer_faults.FAULTS,
)
