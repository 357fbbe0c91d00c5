"""What was recorded below a directory: one row for each recording.

In comes a path. Out go the recordings, of whichever models, with their files, calls and times.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import SupportsIndex

from calltape_analyzer.errors import Damage
from calltape_analyzer.limits import bounded
from calltape_analyzer.notebook import Sketch
from calltape_analyzer.opening import opened_recordings
from calltape_analyzer.plain_data import PlainData, Text, Texts
from calltape_analyzer.reading.files import Paths
from calltape_analyzer.reading.recordings import goes_on
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.selection import target_name
from calltape_analyzer.text import counted

__all__ = ["Recording", "Recordings", "list_recordings", "recordings"]


class Recording(PlainData):
    """What one recorder wrote.

    Attributes:
        tape: the id that its files share, in hexadecimal digits.
        target: class and method, such as ``app:Llama.forward``, as ``open_tape(path, target=...)``
            takes it. ``unknown`` if the tape does not say.
        host: that recorded it, or the directory of its first file if the tape does not say.
        host_named: whether the tape says it.
        paths: its files, in the order of its calls, without copies.
        unsealed: those of them that no recorder closed.
        continues: whether it goes on after the last of its files, although that is sealed.
        calls: how many are on the tape.
        bytes: size of the files.
        first_ns: when the first call began, Unix time in nanoseconds; None without calls.
        last_ns: when the last call ended. Of a file that is not sealed, that is its last call by
            number.
        damage: how many places of its files are damaged, as far as was looked.
    """

    tape: str
    target: Text
    host: Text
    host_named: bool
    paths: Texts
    unsealed: Texts
    continues: bool
    calls: int
    bytes: int
    first_ns: int | None
    last_ns: int | None
    damage: int

    @property
    def sealed(self) -> bool:
        """Whether it ends as a closed recorder leaves it."""
        return not self.unsealed and not self.continues


class Recordings(PlainData):
    """Everything that was recorded below a path.

    Attributes:
        recordings: the one that began first comes first.
        damage: what is wrong, in words; also files that cannot be read, and copies.
    """

    recordings: tuple[Recording, ...]
    damage: Texts

    @property
    def targets(self) -> tuple[str, ...]:
        """What was recorded, sorted."""
        return tuple(sorted({one.target for one in self.recordings}))

    def __len__(self) -> int:
        return len(self.recordings)

    def _sketch(self) -> Sketch:
        rows = [
            (one.tape[:8], one.target, one.host, len(one.paths), one.calls, one.bytes,
             "yes" if one.sealed else "no")
            for one in self.recordings
        ]  # fmt: skip
        head = ("recording", "target", "host", "files", "calls", "bytes", "sealed")
        note = f"corruption: {counted(len(self.damage), 'place')}" if self.damage else None
        return Sketch("Recordings", head=head, rows=rows, note=note)

    def __getitem__(self, index: SupportsIndex) -> Recording:
        return self.recordings[index]


@bounded()
def recordings(path: Paths, *, scan: bool = False) -> Recordings:
    """Lists what was recorded, of whichever models. Of a sealed file its two ends are read, and no
    tensor of any.

    Args:
        path: as for :func:`open_tape`.
        scan: reads every record of the sealed files too.

    Raises:
        TapeError: as :func:`open_tape`, but not because there are several models.
    """
    damage = Damage()
    found = list_recordings(path, damage, scan=scan)
    return Recordings(recordings=tuple(found), damage=tuple(str(error) for error in damage.list()))


def list_recordings(path: Paths, damage: Damage, *, scan: bool = False) -> list[Recording]:
    """:func:`recordings`, with the damage as errors.

    Args:
        path: as for :func:`recordings`.
        damage: collects what is wrong.
        scan: as for :func:`recordings`.
    """
    with opened_recordings(path, damage, scan=scan) as found:
        rows = [_recording(parts) for parts in found]
    places = Counter(error.path for error in damage.list())
    return [
        row.model_copy(update={"damage": sum(places[one] for one in row.paths)}) for row in rows
    ]


def _recording(parts: Sequence[Segment]) -> Recording:
    times = [time for part in parts for time in part.span_ns or ()]
    host = parts[0].manifest.producer.host
    return Recording(
        tape=parts[0].manifest.tape.hex(),
        target=target_name(parts[0].manifest.target),
        host=host or os.path.dirname(parts[0].path) or ".",
        host_named=host is not None,
        paths=tuple(part.path for part in parts),
        unsealed=tuple(part.path for part in parts if part.end is None),
        continues=goes_on(parts),
        calls=sum(map(len, parts)),
        bytes=sum(part.size for part in parts),
        first_ns=min(times, default=None),
        last_ns=max(times, default=None),
        damage=0,
    )
