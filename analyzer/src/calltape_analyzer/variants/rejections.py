"""Why sizes do not belong to a variant."""

from __future__ import annotations

from calltape_analyzer.facts import Fact, Names, Rejection

__all__ = ["ExcludedSize", "FixedSize", "NewZeros", "OtherVariant"]


class FixedSize(Rejection, code="fixed_size"):
    """A size or an int is another one than in every recorded call of the variant."""

    place: str
    got: int
    wanted: int


class OtherVariant(Rejection, code="other_variant"):
    """A condition that tells variants apart does not hold."""

    condition: str
    place: str = ""


class ExcludedSize(Rejection, code="excluded_size"):
    """A size or an int has the one value that the variant is not for."""

    place: str
    got: int
    is_int: bool


class NewZeros(Rejection, code="new_zeros"):
    """Dimensions are 0 that were so in no recorded call, and were not seen to work.

    Attributes:
        places: these dimensions.
        why: what came of trying them; None if nothing did.
    """

    places: Names
    why: Fact | None = None

    @property
    def dimension(self) -> str | None:
        return self.places[0]
