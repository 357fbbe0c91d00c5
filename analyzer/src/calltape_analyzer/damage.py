"""What a reader found damaged."""

from __future__ import annotations

from calltape_analyzer.descriptors import DescriptorError
from calltape_schema.errors import TapeError

__all__ = ["Damage", "is_damage"]

_MAX_LISTED = 1000


def is_damage(error: TapeError) -> bool:
    """Whether an error says something of the tape, and not of the process that reads it."""
    return error.kind != "closed" and not isinstance(error, DescriptorError)


class Damage:
    """What was found damaged, in the order found; bounded, so that a file of nothing but damage
    does not fill the memory."""

    def __init__(self) -> None:
        self._listed: list[TapeError] = []
        self._more = 0

    def add(self, error: TapeError) -> None:
        if len(self._listed) < _MAX_LISTED:
            # Kept for as long as the tape, and the frames of a traceback would be with it.
            error.__traceback__ = error.__context__ = None
            self._listed.append(error)
        else:
            self._more += 1

    def take(self, other: Damage) -> None:
        """Adds all that another one has."""
        for error in other._listed:
            self.add(error)
        self._more += other._more

    def __bool__(self) -> bool:
        return bool(self._listed)

    def list(self) -> list[TapeError]:
        more = f"{self._more} more places are damaged"
        return [*self._listed, TapeError("damaged", more)] if self._more else list(self._listed)
