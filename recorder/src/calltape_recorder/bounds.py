"""The bounds of the recorder, each with its reason, and the dict that keeps within them.

What a tape may have at most is in :mod:`calltape_schema.bounds`; bounds of single options are in
:mod:`calltape_recorder.options`. Files in ``launch/startup`` have their own, since they import
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from calltape_schema.bounds import MAX_DEPTH, MAX_NODES

# Options.

MAX_COUNT = 2**63 - 1
"""The largest integer of a manifest."""
MAX_PATTERNS = 1000
"""Patterns of ``values``: each leaf of a new structure is compared with all of them, which takes
0.02 ms; 0.4 ms if the path has the longest literal part of each of them."""
MAX_PATTERN_CHARACTERS = 1000
"""One of these patterns: the manifest has it."""
LEAST_DISK_BYTES = 128 * 1024
"""``max_disk_bytes``. A smaller bound has no room for a call: 64 KiB stay free for the end of its
file."""
OLDEST_SHARE = 8
"""With deletion, and no size or age of a segment, the bound is so many segments."""
OWNER_ONLY = 0o600
"""The least permissions of a file, and those that it has unless an option says otherwise: a tape
has what users sent. Users who may read the files of a new directory may search it too."""
MAX_POLICY_CHARACTERS = 2000
"""A policy as text: the manifest has it, and Python's parser is given it. With twice as many, that
of Python 3.13 ends the process where a thread has a stack of 512 KiB."""
MAX_POLICY_DEPTH = 50
"""Policies in each other: they are read, and asked, recursively."""

# What is captured of a call.

MAX_TREE_DEPTH = MAX_DEPTH - 8
"""Below the limit of the format: the root and the context of a custom node need some levels."""
MAX_TREE_NODES = MAX_NODES - 1000
"""Below the limit of the format, as above. All chunks of a stream together become one tree."""
MAX_TEXT_BYTES = 16 * 1024 * 1024
"""Texts of one side: they are held in the queue, and become part of one document."""
MAX_INT_BITS = 8 * 1000
"""An int: the format has at most 1024 bytes of one, and a reader prints it in quadratic time."""
MAX_NAME_CHARACTERS = 1000
"""A name, key or path of the application: the format has room for 1024."""
MAX_TYPE_NAME_CHARACTERS = 512
"""The name of a class: it stands at each node."""
MAX_CHUNKS = 256
"""Chunks that a stream yields: a structure is remembered for each length of their list."""
MAX_CLASSES = 10_000
"""Classes that are known by now: each is kept alive, and an application may make new ones
forever."""
MAX_SEARCHED = 2000
"""Objects, functions or classes of layers that are looked at to find whether a method leads to
another one, or which variables a model reads: ``attach`` waits for it."""
MAX_OUTSIDE = 8
"""Variables of modules that a tape lists as read by the model."""
MAX_OUTSIDE_CHARACTERS = 200
"""The name of one of these."""
MAX_RANGE_BYTES = 1024 * 1024
"""A leaf of integers that has a range on the tape: the writer reads each element for it."""

# What is remembered of earlier calls.

MAX_CACHED_WEIGHT = 128 * 1024
"""Tensors, or nodes, of all entries of one cache: some tens of megabytes."""
MAX_STRUCTURES = 1024
"""Structures that are known again: a model has dozens, an application that makes keys any
number."""
MAX_CACHED_SIDES = 1024
"""Structures with their dtypes and shapes: the steps of a generation have as many lengths."""
MAX_FACTS = 1024
"""Facts of plain tensors (dtype, device) that are shared by all that are like them."""
MAX_SHAPES = 4096
"""Shapes that equal ones are one object of."""
MAX_LEAVES_KNOWN = 2048
"""Leaves of records that are encoded already."""
MAX_HEADERS_KNOWN = 512
"""Headers of blobs that are made already; they are longer."""
MAX_MODULE_SEARCHES = 16
"""Searches for the name of a module that is a key: in a model that gets new parts again and again,
most are found in the end."""
MAX_KNOWN_PATHS = 4096
"""Paths for which it is known what is omitted."""
MAX_DATA_KEY_PLACES = 256
"""Dicts whose keys are watched: whether they come back."""
MAX_EARLIER_TENSORS = 4096
"""Copies that a later call may have again: as many references are held to tensors."""
EARLIER_SHARE = 4
"""These copies have at most this part of the memory of the queue: calls that wait need the rest."""
MAX_ORIGINS = 16_384
"""Copies of which it is known where in a file they are, so that references can lead to them. What
is forgotten is written again."""
MAX_STRIPS = 1024
"""Strips of a tensor that grew: each is compared and copied by itself."""
FEWEST_BYTES_OF_STRIP = 1024
"""Of several of these strips: shorter ones take longer to compare than all of them to copy."""
MAX_GROWING_TENSORS = 4096
"""Tensors of one side of which only tails are written: a reader follows each through its parts."""
MAX_TAILS = 32
"""Tails of one tensor. Then it is written as a whole again: a reader that wants it reads all its
parts, and one of them may be damaged."""

# What policies and counts remember.

MAX_POLICY_STRUCTURES = 4096
"""Structures that a policy counts the calls of."""
MAX_NOVELTY_CALLS = 65_536
"""Calls whose sizes are known exactly: they answer first."""
MAX_NOVELTY_STRUCTURES = 1024
"""Structures of which it is known what calls have shown."""
MAX_NOVELTY_NUMBERS = 256 * 1024
"""Numbers that are remembered of all structures together: some ten megabytes."""
MAX_NOVELTY_SPAN = 16 * 1024
"""Numbers of the relations of one pattern of equal sizes: a call takes a step for each, 2 ms in
all, and other threads wait for it."""
MAX_NOVELTY_CONSTANTS = 256
"""Sets of constants per structure: more never repeat, so they are nothing new."""
REMEMBER_SECONDS = 10.0
"""After a loss, policies forget what they kept, so more calls are kept. If these are what does not
fit, more losses follow: so they forget at most once in this time."""
MAX_REMEMBER_SECONDS = 3600.0
"""The same, where files with novel calls make room for others: it doubles each time up to this."""
SHARE_CREDIT_NS = 1_000_000_000
"""With ``max_share``, no more is saved up than the share of so much time of calls. A burst costs no
more than that."""
MAX_CHARGE_NS = 100_000_000
"""What one call takes from the share at most, besides a nanosecond for each byte that it copies: if
it took longer, the process was stopped meanwhile, and calls would not be recorded for hours."""
MAX_WAITING_CALLS = 512
"""Distinct structures and sizes that count calls, until they are added to the table."""
MAX_WAITING_WEIGHT = 200_000
"""Dtypes and shapes of those that are evicted and not in the table yet. From half of it on they are
added to the table; if the writer is late, more are not told apart."""
MAX_NAMEABLE_STRUCTURES = 4096
"""Structures that the table may name although values are omitted."""

# The queue, the files, and waits.

QUEUED_CALL_BYTES = 1024
"""What a call without any tensor takes in the queue."""
FEWEST_QUEUED_CALLS = 256
"""So many of these may wait in any case."""
STUCK_SECONDS = 30.0
"""At the end, nobody waits longer than this for a disk that takes nothing any more. The time in
which the process was paused does not count."""
MAX_PARTS_OF_WRITE = 512
"""Parts of one write: Linux and macOS take 1024."""
MAX_CALLS_IN_FILE = 1_000_000
"""The index of a file may have as many groups."""
LOOK_SECONDS = 1.0
"""The writer looks so often at what must not wait for a call."""
COUNT_SECONDS = 60.0
"""What was counted is on the disk at the latest after this time, or after ``segment_seconds`` if
that is less: it is what a process that is killed does not tell."""
COUNTS_BYTES = 4 * 512
"""What was counted takes so much of a file, in two places, nearly always."""
MAX_UNSEALED_FILES = 16
"""Open files that wait for their ends: each is a descriptor of the application."""
END_SHARE = 8
"""An end takes at most this part of ``max_disk_bytes``, besides its index."""
AHEAD_SHARE = 4
"""At most this part of ``max_disk_bytes`` is left free for calls under way."""
MAX_AHEAD_FILES = 256
"""Calls under way that are written ahead: each has a file."""
MAX_DUMPS = 1000
"""Dumps of a flight recorder that one file tells of."""
MAX_REASON_CHARACTERS = 1000
"""The reason of one."""
MAX_INSTANCES = 32
"""Instances of a class that one process records: each has a tape and a thread."""

# What is said, and read from outside.

MAX_NEWS = 100
"""News that wait to be said, and lines for the log that a greenlet is to say."""
AGAIN_SECONDS = 60.0
"""The same news are not said again before this."""
MAX_TROUBLES = 1000
"""Troubles that are said once each: they are remembered for it."""
MAX_TROUBLE_CHARACTERS = 500
"""The text of one: it may quote a file."""
MAX_NAMED_PATTERNS = 10
"""Patterns of ``values`` that one warning names."""
MAX_CONTROL_BYTES = 64 * 1024
"""A control file: it is read once a second."""

# An application may make calls of thousands of tensors whose structure never comes again. What is
# remembered of each then takes a megabyte: so entries have a weight.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Values by key. The oldest are evicted first. Only one thread at a time may change it; any
    thread may read it.

    Args:
        max_entries: how many there may be.
        weigher: the weight of a key and its value. All together have at most
            :data:`MAX_CACHED_WEIGHT`, and what is heavier by itself is not kept.
        on_evict: is called with each value that is evicted, or not kept.

    Attributes:
        get: the value of a key, or None.
        values: all values.
    """

    def __init__(
        self, max_entries: int, weigher: Callable[[K, V], int],
        on_evict: Callable[[V], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._entries: dict[K, V] = {}
        self._max_entries = max_entries
        self._weigher = weigher
        self._weight = 0
        self._on_evict = on_evict
        self.get: Callable[[K], V | None] = self._entries.get
        self.values: Callable[[], Iterable[V]] = self._entries.values

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, key: K, value: V) -> None:
        """Keeps a value, in the place of the one that the key had."""
        entries, weight = self._entries, self._weigher(key, value)
        if key in entries:
            self._evict(key)
        if weight > MAX_CACHED_WEIGHT:
            self._on_evict(value)
            return
        while entries and (
            len(entries) >= self._max_entries or self._weight + weight > MAX_CACHED_WEIGHT
        ):
            self._evict(next(iter(entries)))
        entries[key] = value
        self._weight += weight

    def _evict(self, key: K) -> None:
        value = self._entries.pop(key)
        self._weight -= self._weigher(key, value)
        self._on_evict(value)
