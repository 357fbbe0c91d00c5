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
"""If files are deleted and segments have no size or age of their own, this many fill the bound."""
OWNER_ONLY = 0o600
"""The least permissions of a file, and its default permissions: a tape contains what users sent.
Users who may read the files of a new directory may search it too."""
MAX_POLICY_CHARACTERS = 2000
"""A policy as text, which the manifest has and Python's parser reads. At twice as many, the parser
of Python 3.13 ends the process in a thread with a stack of 512 KiB."""
MAX_POLICY_DEPTH = 50
"""Nested policies: they are parsed and decide recursively."""

# What is captured of a call.

MAX_TREE_DEPTH = MAX_DEPTH - 8
"""Below the limit of the format: the root and the context of a custom node need some levels."""
MAX_TREE_NODES = MAX_NODES - 1000
"""Below the limit of the format, as above. All chunks of a stream together become one tree."""
MAX_TEXT_BYTES = 16 * 1024 * 1024
"""Texts of one side: they wait in the queue, and become part of one document."""
MAX_INT_BITS = 8 * 1000
"""An int: the format has at most 1024 bytes of one, and a reader prints it in quadratic time."""
MAX_NAME_CHARACTERS = 1000
"""A name, key or path of the application: the format has room for 1024."""
MAX_TYPE_NAME_CHARACTERS = 512
"""The name of a class: each node has one."""
MAX_CHUNKS = 256
"""Chunks that a stream yields: a structure is remembered for each length of their list."""
MAX_CLASSES = 10_000
"""Classes that are remembered: each is kept alive, and an application may create new ones
forever."""
MAX_SEARCHED = 2000
"""Objects, functions or classes of layers that are searched to find out whether a method leads to
another one, or which variables a model reads: ``attach`` waits for it."""
MAX_OUTSIDE = 8
"""Variables of modules that a tape lists as read by the model."""
MAX_OUTSIDE_CHARACTERS = 200
"""The name of one of these."""
MAX_RANGE_BYTES = 1024 * 1024
"""A leaf of integers with a range on the tape: the writer reads each element for it."""

# What is remembered of earlier calls.

MAX_CACHED_WEIGHT = 128 * 1024
"""Tensors, or nodes, of all entries of one cache: some tens of megabytes."""
MAX_STRUCTURES = 1024
"""Structures that are remembered: a model has dozens, an application that generates keys any
number."""
MAX_CACHED_SIDES = 1024
"""Structures with their dtypes and shapes: a generation has about as many lengths."""
MAX_FACTS = 1024
"""Facts of plain tensors (dtype, device), shared by all tensors that look the same."""
MAX_SHAPES = 4096
"""Distinct shapes, shared by all tensors that have them."""
MAX_LEAVES_KNOWN = 2048
"""Leaves of records whose encoding is remembered."""
MAX_HEADERS_KNOWN = 512
"""Headers of blobs that are remembered; they are longer."""
MAX_MODULE_SEARCHES = 16
"""Searches for the name of a module that is a key: a model may get new parts again and again."""
MAX_KNOWN_PATHS = 4096
"""Paths for which it is known what is omitted."""
MAX_DATA_KEY_PLACES = 256
"""Dicts whose keys are watched, to learn which of them recur."""
MAX_EARLIER_TENSORS = 4096
"""Copies that a later call may share."""
EARLIER_SHARE = 4
"""These copies take at most this part of the memory of the queue: waiting calls need the rest."""
MAX_ORIGINS = 16_384
"""Copies whose place in a file is remembered, so that later calls can refer to them. What is
forgotten is written again."""
MAX_STRIPS = 1024
"""Strips of a tensor that grew: each is compared and copied separately."""
FEWEST_BYTES_OF_STRIP = 1024
"""The bytes of a strip, if there are several: comparing shorter strips takes longer than copying
the whole tensor."""
MAX_GROWING_TENSORS = 4096
"""Tensors of one side of which only tails are written: a reader follows each through its parts."""
MAX_TAILS = 32
"""Tails of one tensor in a row. Then it is written as a whole again: a reader of the tensor reads
all its parts, and one of them may be damaged."""

# What policies and counts remember.

MAX_POLICY_STRUCTURES = 4096
"""Structures that a policy counts the calls of."""
MAX_NOVELTY_CALLS = 65_536
"""Calls whose exact sizes are remembered: they are compared first."""
MAX_NOVELTY_STRUCTURES = 1024
"""Structures whose evidence is remembered."""
MAX_NOVELTY_NUMBERS = 256 * 1024
"""Numbers that are remembered of all structures together: some ten megabytes."""
MAX_NOVELTY_SPAN = 16 * 1024
"""Numbers of the relations of one pattern of equal sizes: a call takes a step for each, 2 ms in
all, and other threads wait for it."""
MAX_NOVELTY_CONSTANTS = 256
"""Sets of constants per structure: more never repeat, so they are nothing new."""
REMEMBER_SECONDS = 10.0
"""After a loss, policies forget what they kept, so they keep more calls. If there is no room for
these, more losses follow. So policies forget at most once in this time."""
MAX_REMEMBER_SECONDS = 3600.0
"""The same if files with novel calls make room for others: the time doubles up to this."""
SHARE_CREDIT_NS = 1_000_000_000
"""With ``max_share``, credit accumulates up to the share of this much time in calls, which bounds
the cost of a burst."""
MAX_CHARGE_NS = 100_000_000
"""The most that one call takes from the share, besides a nanosecond per byte that it copies. If it
took longer, the process was stopped, and otherwise no calls would be recorded for hours."""
MAX_WAITING_CALLS = 512
"""Distinct structures and sizes whose counts wait until they are added to the table."""
MAX_WAITING_WEIGHT = 200_000
"""Dtypes and shapes of evicted entries that are not in the table yet. From half of this on, they
are added to the table. If the writer is late, further calls are counted without their inputs."""
MAX_NAMEABLE_STRUCTURES = 4096
"""Structures that the table may name although values are omitted."""

# The queue, the files, and waits.

QUEUED_CALL_BYTES = 1024
"""The size of a call without tensors in the queue."""
FEWEST_QUEUED_CALLS = 256
"""At least this many of these may wait."""
STUCK_SECONDS = 30.0
"""``close`` waits no longer than this for a disk that does not respond. Time in which the process
was paused does not count."""
MAX_PARTS_OF_WRITE = 512
"""Parts of one write: Linux and macOS take 1024."""
MAX_CALLS_IN_FILE = 1_000_000
"""The index of a file may have as many groups."""
LOOK_SECONDS = 1.0
"""How often the writer does what must not wait for a call."""
COUNT_SECONDS = 60.0
"""Counters are on the disk after this time at the latest, or after ``segment_seconds`` if that is
less: a killed process loses what it counted since."""
COUNTS_BYTES = 4 * 512
"""The size of the counters in a file, which has them in two places, nearly always."""
MAX_UNSEALED_FILES = 16
"""Open files that wait for their ends: each is a descriptor of the application."""
END_SHARE = 8
"""An end takes at most this part of ``max_disk_bytes``, not counting its index."""
AHEAD_SHARE = 4
"""At most this part of ``max_disk_bytes`` is left free for calls under way."""
MAX_AHEAD_FILES = 256
"""Calls under way that are written ahead: each has a file."""
MAX_DUMPS = 1000
"""Dumps of a flight recorder that one file lists."""
MAX_REASON_CHARACTERS = 1000
"""The reason of one."""
MAX_INSTANCES = 32
"""Instances of a class that one process records: each needs a tape and a thread."""

# The log, and the control file.

MAX_NEWS = 100
"""News that wait to be logged, and lines that a greenlet has to log."""
AGAIN_SECONDS = 60.0
"""News of one kind are logged at most once in this time."""
MAX_TROUBLES = 1000
"""Problems that are logged once each, and therefore remembered."""
MAX_TROUBLE_CHARACTERS = 500
"""The text of one: it may quote a file."""
MAX_NAMED_PATTERNS = 10
"""Patterns of ``values`` that one warning names."""
MAX_CONTROL_BYTES = 64 * 1024
"""A control file: it is read once a second."""

# An application may make calls with thousands of tensors whose structure never recurs. Remembering
# one of them takes a megabyte, so entries have a weight.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Values by key. The oldest are evicted first. Only one thread at a time may change it; any
    thread may read it.

    Args:
        max_entries: how many there may be.
        weigher: the weight of a key and its value. All entries together weigh at
            most :data:`MAX_CACHED_WEIGHT`. A heavier entry is not kept.
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
