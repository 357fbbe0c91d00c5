"""The bounds of the container, each with its reason. FORMAT.md lists them.

A reader compares what a tape announces with these before it allocates memory for it. A writer stays
within them. The bounds of what stands inside a document are beside its models (:mod:`.packing`,
:mod:`.interning`, :mod:`.tree`).
"""

from __future__ import annotations

__all__ = [
    "DEFLATE_FROM_BYTES",
    "GROUP_BYTES",
    "MAX_AXES",
    "MAX_GROUP_BYTES",
    "MAX_GROUP_CALLS",
    "MAX_INDEX_BYTES",
    "MAX_INFLATION",
    "MAX_KIND_BYTES",
    "MAX_MEMBER_BYTES",
    "MAX_REFERENCES",
    "MAX_ROWS",
    "MAX_ROW_BYTES",
    "MAX_SIZES",
    "MAX_TABLE_BYTES",
    "TAIL_BYTES",
]

MAX_MEMBER_BYTES = 64 * 1024 * 1024 + 64 * 1024
"""A msgpack member that is read at once. No document is larger than 64 MiB, and an envelope adds
little; above it, a stranger's file would decide how much memory a reader takes."""

MAX_GROUP_CALLS = 65_536
"""Calls of a group. Enough for the largest queue; a reader holds the table of one group."""
MAX_GROUP_BYTES = 64 * 1024 * 1024
"""The documents of a group, inflated: one record may be as large as any document."""
GROUP_BYTES = 1024 * 1024
"""A writer begins the next group when the documents of one have so many bytes: a reader that wants
one call inflates all of its group."""
MAX_INFLATION = 128
"""How many times the bytes of what is deflated the inflated documents of a group may have. Deflate
reaches 1,032, so many small bombs would cost minutes; records of real calls reach about 30."""
DEFLATE_FROM_BYTES = 1024
"""A writer deflates the documents of a group from here on. Below it there are two blocks at most to
be saved, and setting zlib up costs more than writing them."""

MAX_REFERENCES = 50_000
"""Tensors of a call whose bytes an earlier call has: not more than a tree has leaves."""

MAX_INDEX_BYTES = 32 * 1024 * 1024
"""The index of a tape, inflated: a million groups of 32 bytes, each of a call of its own. By then a
recorder begins the next file."""
MAX_TABLE_BYTES = 64 * 1024 * 1024
"""The table of counted inputs, inflated: as any document."""
TAIL_BYTES = 64 * 1024
"""What a reader fetches first from the end of a tape: the whole end of nearly all tapes."""

MAX_ROWS = 65_536
"""Distinct inputs that a table counts by themselves. More than this no person looks at, and the
sizes of each axis are counted further."""
MAX_ROW_BYTES = 8 * 1024 * 1024
"""What the rows of a table cost together. This is memory of a recorder's host, for weeks."""
MAX_AXES = 4096
"""Axes, leaves and ints of all kinds of a table together: each may have 32 counted sizes."""
MAX_KIND_BYTES = 4 * 1024 * 1024
"""The structures of the kinds of a table together: memory of the host, as above."""
MAX_SIZES = 32
"""Sizes of an axis that are counted by themselves. More sizes than this follow no rule of a table:
the axis is dynamic."""
