"""What a survey keeps of each file: enough to know it again, and to account for its calls."""

from __future__ import annotations

from typing import NamedTuple

from calltape_analyzer.surveying.bounds import digest_of
from calltape_schema.endings import Coverage, Dump
from calltape_schema.packing import pack
from calltape_schema.records import Manifest, Observed, Segment, decode_manifest, encode_manifest

__all__ = ["FileFacts", "FileKey", "head_of", "manifest_of", "target_digest"]

_NO_TAPE = bytes(16)


class FileKey(NamedTuple):
    """Equal for copies of a file.

    Attributes:
        tape: the id of its recording.
        part: its number among the files of the recording.
        digest: of what its end says of its calls, or, of a file that was scanned, of the numbers
            and places of its calls.
    """

    tape: bytes
    part: int
    digest: bytes


class FileFacts(NamedTuple):
    """One file.

    Attributes:
        key: tells it from all others.
        path: where it was read; of copies the one that sorts first.
        head: the digest of its manifest, without what differs from file to file.
        nbytes: its size.
        created_ns, segment, observed: as in its manifest.
        closed_ns: when it was sealed, Unix time in nanoseconds; None if it is not sealed.
        continues, dumps: as in its trailer.
        calls: how many are on it.
        coverage: of its calls, by its trailer, or by the numbers of its calls.
        first_call, last_call: the lowest and the highest of their numbers; None without calls.
        first_ns, last_ns: when its first call began and its last one ended, Unix time in
            nanoseconds.
        raised: how many of the calls raised.
        tensor_bytes: the size of all blobs.
        unfinished: bytes at its end that belong to a call that was being written.
        is_ahead: whether its only call was under way when the process died.
        scanned: whether each record was read, and not only the end.
        counted: whether it has counters of its traffic that are used.
        damaged: in how many places it is damaged.
    """

    key: FileKey
    path: str
    head: bytes
    nbytes: int
    created_ns: int
    segment: Segment | None
    observed: Observed | None
    closed_ns: int | None
    continues: bool | None
    dumps: tuple[Dump, ...]
    calls: int
    coverage: Coverage
    first_call: int | None
    last_call: int | None
    first_ns: int | None
    last_ns: int | None
    raised: int
    tensor_bytes: int
    unfinished: int
    is_ahead: bool
    scanned: bool
    counted: bool
    damaged: int

    @property
    def sealed(self) -> bool:
        """Whether it ends with a trailer."""
        return self.closed_ns is not None

    def has_all_of(self, other: FileFacts) -> bool:
        """Whether another file is an earlier state of this one: a copy that was made, or a survey
        that was taken, before this one was written to its end."""
        if self.key[:2] != other.key[:2] or other.sealed or self.is_ahead or other.is_ahead:
            return False
        if self.rank < other.rank:
            return False
        if other.first_call is None or other.last_call is None:
            return True
        if self.first_call is None or self.last_call is None:
            return False
        return self.first_call <= other.first_call and other.last_call <= self.last_call

    @property
    def rank(self) -> tuple[bool, int, bytes]:
        """Sorts states of one file: the latest is the last."""
        return self.sealed, self.calls, self.key.digest

    def overlaps(self, other: FileFacts) -> bool:
        """Whether both may have the same calls, by their numbers."""
        if self.first_call is None or self.last_call is None:
            return False
        if other.first_call is None or other.last_call is None:
            return False
        return self.first_call <= other.last_call and other.first_call <= self.last_call


def head_of(manifest: Manifest) -> bytes:
    """The manifest of a file, encoded, without what differs from file to file: many files share
    it."""
    bare = {"tape": _NO_TAPE, "created_ns": 0, "segment": None, "observed": None}
    return encode_manifest(manifest.model_copy(update=bare))


def manifest_of(head: Manifest, facts: FileFacts) -> Manifest:
    """The manifest of a file from its shared part and its own."""
    return head.model_copy(
        update={
            "tape": facts.key.tape,
            "created_ns": facts.created_ns,
            "segment": facts.segment,
            "observed": facts.observed,
        }
    )


def target_digest(head: bytes) -> bytes:
    """Equal for files that record the same: the same method of the same class, with the same
    signature. How its calls were seen, and what its code reads besides, does not count."""
    target = decode_manifest(head).target
    if target is None:
        return digest_of(b"")
    # Not as JSON: a default may be bytes.
    return digest_of(pack(target.model_copy(update={"via": "hook", "outside": None}).model_dump()))
