"""The bounds of the recorder, each with its reason.

What a tape may have at most is in :mod:`calltape_schema.bounds`.
"""

from __future__ import annotations

# Options.

MAX_COUNT = 2**63 - 1
"""The largest integer of a manifest."""
MAX_PATTERNS = 1000
"""Patterns of ``values``: each leaf of a new structure is compared with all of them."""
MAX_PATTERN_CHARACTERS = 1000
"""One of these patterns: the manifest has it."""
MAX_KEEP_CHARACTERS = 4096
"""A policy as text, in the manifest."""
LEAST_DISK_BYTES = 128 * 1024
"""``max_disk_bytes``. A smaller bound has no room for a call: 64 KiB stay free for the end of its
file."""
OLDEST_SHARE = 8
"""With deletion, and no size or age of a segment, the bound is so many segments."""
OWNER_ONLY = 0o600
"""The least permissions of a file, and those that it has unless an option says otherwise: a tape
has what users sent. Whoever may read the files of a new directory may search it too."""

# The text of options.

MAX_POLICY_CHARACTERS = 2000
"""A policy: Python's parser is given it."""
MAX_POLICY_DEPTH = 50
"""Policies in each other: they are read, and asked, recursively."""
