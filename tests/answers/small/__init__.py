"""Small models, each with one habit that an exporter got wrong before: a mask as wide as the
longest sequence, labels that are the inputs, a branch on a float, no row at all."""

from __future__ import annotations

from tests.answers.small import objects, sizes, values
from tests.answers.small.case import Small

__all__ = ["SMALL", "Small"]

SMALL: dict[str, Small] = {
    case.name: case for family in (sizes.CASES, values.CASES, objects.CASES) for case in family
}
"""Every small case by its name."""
