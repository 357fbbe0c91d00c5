"""The beginning of a tape file: its manifest."""

from __future__ import annotations

from calltape_analyzer.reading.scan import content_of
from calltape_analyzer.reading.tape_bytes import TapeBytes
from calltape_schema.errors import TapeError
from calltape_schema.framing import MANIFEST, Member, members
from calltape_schema.records import Manifest, decode_manifest

__all__ = ["manifest_of"]

_UNREADABLE = (
    "without its manifest nothing in this file can be read; copy it again from where it came"
)


def manifest_of(file: TapeBytes) -> tuple[Member, Manifest]:
    """The first member of a file, and the manifest that it has.

    Raises:
        TapeError: ``not_a_tape``, ``version``, ``damaged``, ``invalid`` or ``io``.
    """
    stray: list[TapeError] = []
    found = members(file.read, file.size, stray.append, next_data=file.next_data)
    first = next(found, None)
    if first is None or first.offset or first.name != MANIFEST:
        if file.read(0, len(MANIFEST)) == MANIFEST.encode():
            ends = first is None
            reason = "the file ends within its manifest" if ends else "its header is damaged"
            raise TapeError("damaged", reason, member=MANIFEST, offset=0, advice=_UNREADABLE)
        raise TapeError("not_a_tape", "the file does not start with a tape's manifest")
    try:
        return first, decode_manifest(content_of(file.read, first))
    except TapeError as error:
        if error.kind == "damaged":
            error.advice = _UNREADABLE
        raise error.at(member=MANIFEST, offset=0) from None
