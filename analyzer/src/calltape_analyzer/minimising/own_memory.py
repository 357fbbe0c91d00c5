"""The memory of a process."""

from __future__ import annotations

import os

__all__ = ["own_memory"]


def own_memory(process: int) -> int:
    """Bytes of memory that are a process's own; mapped files are not. 0 if nobody can tell."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
