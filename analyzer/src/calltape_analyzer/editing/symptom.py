"""One thing that is wrong or unwise about a tape."""

from __future__ import annotations

from typing import Literal

from calltape_analyzer.plain_data import PlainData, Text
from calltape_analyzer.text import printable

__all__ = ["Symptom"]


class Symptom(PlainData):
    """One thing that is wrong or unwise about a tape. ``str()`` of it is text for people.

    Attributes:
        kind: what it is, for programs: ``damage``, ``duplicates``, ``unsealed``, ``missing_files``,
            ``lost``, ``open_end``, ``under_way``, ``empty``, ``all_raised``, ``one_size``,
            ``one_call``, ``batch_one``, ``layouts``, ``outputs_missing``, ``values_missing``,
            ``unknown_classes``, ``classes_not_stored``, ``values_not_stored``,
            ``tensors_not_stored``.
        level: ``error`` if calls cannot be trusted or read, ``warning`` if what follows from the
            tape may be wrong or incomplete, ``note`` for what one should know.
        text: what was found.
        advice: what to do.
    """

    kind: str
    level: Literal["error", "warning", "note"]
    text: Text
    advice: Text

    def __str__(self) -> str:
        advice = self.advice[:1].upper() + self.advice[1:]
        return f"{self.level}: {printable(self.text)}. {advice}."
