"""The facts of many files, packed: a survey of 100,000 tapes keeps a few hundred bytes of each.

As objects they take four times as much. They are packed and unpacked as they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from calltape_analyzer.surveying.file_facts import FileFacts, FileKey
from calltape_schema.endings import Coverage, Dump
from calltape_schema.fields import Record
from calltape_schema.records import Observed, Segment

__all__ = ["FileTable"]

_PART_BYTES = 8
_DIGEST_BYTES = 16
_MODELS = ("segment", "observed", "coverage")

R = TypeVar("R", bound=Record)


class FileTable(MutableMapping[FileKey, FileFacts]):
    """The facts of files by their keys. Most recordings have one file of each number."""

    def __init__(self) -> None:
        self._packed: dict[bytes, bytes | tuple[bytes, ...]] = {}
        self._count = 0

    def at(self, tape: bytes, part: int) -> list[FileKey]:
        """The keys of the files of one number of a recording."""
        return [FileKey(tape, part, one[:_DIGEST_BYTES]) for one in self._at(_place(tape, part))]

    def groups(self) -> Iterator[list[FileFacts]]:
        """The files, those of one number of a recording together."""
        for place in self._packed:
            yield [_unpacked(place, one) for one in self._at(place)]

    def _at(self, place: bytes) -> tuple[bytes, ...]:
        found = self._packed.get(place, ())
        return (found,) if isinstance(found, bytes) else found

    def _find(self, key: FileKey) -> bytes | None:
        place = _place(key.tape, key.part)
        return next((one for one in self._at(place) if one[:_DIGEST_BYTES] == key.digest), None)

    def __getitem__(self, key: FileKey) -> FileFacts:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return _unpacked(_place(key.tape, key.part), found)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, FileKey) and self._find(key) is not None

    def __setitem__(self, key: FileKey, facts: FileFacts) -> None:
        self.pop(key, None)
        place = _place(key.tape, key.part)
        made = (*self._at(place), _packed(facts))
        self._packed[place] = made[0] if len(made) == 1 else made
        self._count += 1

    def __delitem__(self, key: FileKey) -> None:
        known = self._find(key)
        if known is None:
            raise KeyError(key)
        place = _place(key.tape, key.part)
        rest = tuple(one for one in self._at(place) if one is not known)
        if rest:
            self._packed[place] = rest[0] if len(rest) == 1 else rest
        else:
            del self._packed[place]
        self._count -= 1

    def __iter__(self) -> Iterator[FileKey]:
        for place in self._packed:
            yield from self.at(*_of_place(place))

    def __len__(self) -> int:
        return self._count


def _place(tape: bytes, part: int) -> bytes:
    return tape + part.to_bytes(_PART_BYTES, "big")


def _of_place(place: bytes) -> tuple[bytes, int]:
    return place[:-_PART_BYTES], int.from_bytes(place[-_PART_BYTES:], "big")


def _packed(facts: FileFacts) -> bytes:
    """The digest of the key, and then all but the key."""
    own: dict[str, Any] = facts._asdict()
    del own["key"]
    for name in _MODELS:
        own[name] = None if own[name] is None else _fields(own[name])
    own["dumps"] = list(map(_fields, facts.dumps))
    made: Any = msgpack.packb(list(own.values()), unicode_errors="surrogatepass")
    return facts.key.digest + bytes(made)


def _unpacked(place: bytes, data: bytes) -> FileFacts:
    found: list[Any] = msgpack.unpackb(
        memoryview(data)[_DIGEST_BYTES:], unicode_errors="surrogatepass", strict_map_key=False
    )
    own = dict(zip(FileFacts._fields[1:], found, strict=True))
    own["segment"] = _optional(Segment, own["segment"])
    own["observed"] = _optional(Observed, own["observed"])
    own["coverage"] = _model(Coverage, own["coverage"])
    own["dumps"] = tuple(_model(Dump, one) for one in own["dumps"])
    return FileFacts(FileKey(*_of_place(place), data[:_DIGEST_BYTES]), **own)


def _fields(record: Record) -> list[Any]:
    return [getattr(record, name) for name in type(record).model_fields]


def _optional(kind: type[R], values: list[Any] | None) -> R | None:
    return None if values is None else _model(kind, values)


def _model(kind: type[R], values: list[Any]) -> R:
    """What was valid when it was packed is valid."""
    found: Any = kind.model_construct(**dict(zip(kind.model_fields, values, strict=True)))
    made: R = found
    return made
