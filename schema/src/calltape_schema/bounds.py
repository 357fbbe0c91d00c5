"""The limits of the format, each with its reason. FORMAT.md lists them.

A reader compares what a tape announces with these before it allocates memory for it. A writer stays
within them. Limits whose error has the kind ``limit`` protect readers of untrusted tapes: a reader
compares with :func:`most` of them, and its caller may allow more.
"""

from __future__ import annotations

from contextvars import ContextVar

_times: ContextVar[int] = ContextVar("times", default=1)


def most(bound: int) -> int:
    """A limit of the kind ``limit``, times the factor that is allowed here (:func:`allow`)."""
    return bound * _times.get()


def allowed() -> int:
    """The factor by which limits of the kind ``limit`` may be exceeded here."""
    return _times.get()


def allow(times: int) -> None:
    """Lets readers in this thread or task exceed the limits of the kind ``limit`` by this
    factor."""
    _times.set(times)


# Documents.

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
"""A msgpack document, inflated: a reader holds all of it at once."""
MAX_DOCUMENT_TOKENS = 1_000_000
"""Values of a document: each becomes an object of some 64 bytes."""
MAX_STRING_BYTES = 1024 * 1024
"""The message of an error: some print a whole tensor."""
MAX_INT_BYTES = 1024
"""An int: Python prints one of many digits in quadratic time."""

# Trees.

MAX_DEPTH = 64
"""A tree, in nodes: validators recurse."""
MAX_NESTING = 2 * MAX_DEPTH + 2
"""Nested maps and arrays. A node is a map, which has its children in an array."""
MAX_NODES = 50_000
"""Nodes of a tree: each is a validated model of about a kilobyte."""
MAX_LEAVES = 50_000
"""Leaves of a tree, and tensors of a blob: as many as nodes."""
MAX_ALIASES = 1024
"""Leaves of a tree with the same bytes: each becomes a tensor of its own. The empty caches of a
model of 500 layers have as many."""
MAX_RANK = 64
"""Axes of a tensor: as many as torch has."""
MAX_ELEMENTS = 2**63 - 1
"""Elements of a tensor: torch counts them in 63 bits."""
MAX_AUTOCASTS = 16
"""Types of devices with autocast: more than torch knows."""
MAX_KEY_CHARACTERS = 1024
"""A key of a dict: keys become parts of paths."""
MAX_KEY_PARTS = 16
"""Parts of a key that is a tuple."""
MAX_ALIKE = 64
"""Keys of one dict with the same hash in CPython, which builds a dict of them in quadratic time.
This is no limit of the format: a mapping with more of them is not shown as a dict."""
MAX_PATHS_CHARACTERS = 4 * 1024 * 1024
"""Paths of all nodes of a tree together: a long key is part of the path of each node below it."""

MAX_FEATURES = 64
"""Features that a part of a tape requires: more than a format will ever have."""

# The manifest, and blobs.

MAX_COUNT = 2**63 - 1
"""Counts, times, sizes: other languages represent these without loss."""
MAX_PARAMETERS = 10_000
"""Parameters of a signature: more than people write."""
MAX_OUTSIDE = 16
"""Variables of modules that are named."""
MAX_STEPS = 100
"""Steps of a history."""
MAX_OPTIONS = 100
"""Options of a step."""
MAX_SOURCES = 1000
"""Recordings that a step read."""
MAX_PARTS = 64
"""Runs of files of a recording that a survey distinguishes."""
MAX_HEADER_BYTES = 16 * 1024 * 1024
"""The JSON of a blob: 50,000 tensors with long names."""
MAX_HEADER_NESTING = 64
"""Nested objects and arrays: a tensor needs three, and a parser may recurse."""
CHECKED_BYTES = 1024 * 1024
"""Bytes of a blob between two of its checksums: a reader reads these to check one value."""
MAX_BLOB_INFLATED_BYTES = 64 * 1024 * 1024
"""A compressed blob, inflated: a reader inflates all of it for one tensor."""
MAX_HEADER_BRACKETS = 8 * MAX_LEAVES
"""Brackets in it: three bytes of JSON become sixty of a reader. A tensor needs three."""

# The container.

MAX_MEMBER_BYTES = 64 * 1024 * 1024 + 64 * 1024
"""A msgpack member, which is read at once. No document is larger than 64 MiB, and an envelope adds
little. Without this limit, an untrusted file would decide how much memory a reader takes."""

MAX_GROUP_CALLS = 65_536
"""Calls of a group. Enough for the largest queue; a reader holds the table of one group."""
MAX_GROUP_BYTES = 64 * 1024 * 1024
"""The documents of a group of one call, inflated: a record may be as large as any document."""
GROUP_BYTES = 1024 * 1024
"""The documents of a group of several calls, inflated: a reader that wants one call inflates all of
its group, and all of its calls may share one structure. A writer begins the next group here."""
MAX_INFLATION = 128
"""The ratio of inflated to deflated bytes of the documents of a group. Deflate reaches 1,032, so
that many small bombs would cost minutes; records of real calls reach about 30."""
MAX_TABLE_INFLATION = 32
"""The same for the table of a group, which a walk inflates: it has no text that repeats."""
MAX_SHARING = 1024
"""The bytes that the calls of a group share, counted for each call, as a multiple of the bytes of
the
group: a reader looks at the structure and the leaves of each call. Calls of 70 bytes that share
64 KiB reach it."""
MAX_WIDTH = 1024
"""Bytes of an entry of a table or an index: room for all columns that the format may get."""
DEFLATE_FROM_BYTES = 1024
"""A writer deflates the documents of a group from this size on. Below it, at most two blocks could
be saved, and setting zlib up costs more than writing them."""

MAX_REFERENCES = 50_000
"""Tensors of a call whose bytes an earlier call has: as many as a tree has leaves."""
MAX_TAKEN = 64
"""Earlier calls that have bytes of one tensor: each may be damaged, and is a read of its own."""
MAX_TAKEN_PARTS = 2**19
"""Parts of all tensors of a call that earlier calls have: each becomes a tuple in a reader."""

MAX_INDEX_BYTES = 48 * 1024 * 1024
"""The index of a tape, inflated: a million groups of 48 bytes, each of a call of its own. By then a
recorder begins the next file."""
MAX_TABLE_BYTES = 64 * 1024 * 1024
"""The table of counted inputs, inflated: as any document."""
MAX_DELETED_RUNS = 1000
"""Runs of numbers of deleted files. Between two runs there is a file that was not deleted, so there
are fewer runs than files."""
TAIL_BYTES = 64 * 1024
"""The bytes that a reader fetches first from the end of a tape: nearly always the whole end."""

MAX_ROWS = 65_536
"""Distinct inputs that a table counts separately. Nobody looks at more, and the sizes of each axis
are still counted."""
MAX_ROW_BYTES = 8 * 1024 * 1024
"""The cost of all rows of a table. This is memory of the recorded application, for weeks."""
MAX_AXES = 4096
"""Axes, leaves and ints of all kinds of a table together: each may have 32 counted sizes."""
MAX_KIND_BYTES = 4 * 1024 * 1024
"""The structures of the kinds of a table together: memory of the application, as above."""
MAX_SIZES = 32
"""Sizes of an axis that are counted separately. An axis with more sizes is dynamic anyway."""
