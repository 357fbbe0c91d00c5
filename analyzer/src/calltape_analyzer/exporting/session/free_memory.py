"""How many bytes of memory are free for a run, by the system and by the limits of containers, and
how many a process has."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["half_of_free", "own_memory"]

_UNKNOWN = 4 * 2**30
_CGROUPS = Path("/sys/fs/cgroup")
# Of version 2 and 1: the limit, what is used, and what of that is cached.
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def half_of_free(device: str = "cpu") -> int:
    """Half of the bytes that are free now on a device. On the CPU that is what the system says is
    available, or what the limits of the process's control groups leave, whichever is less."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0]) // 2
    known = [free for free in (_available(), _left_in_group()) if free is not None]
    return min(known, default=_UNKNOWN) // 2


def own_memory(process: int) -> int:
    """The bytes of memory that are a process's own, without mapped files; 0 if the system does not
    tell."""
    try:
        _, pages, shared, *_ = map(int, Path(f"/proc/{process}/statm").read_text().split())
        return (pages - shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # it has ended, or there is no /proc
        return 0


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # other systems tell only how much there is, free or not
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):
        return None


def _left_in_group() -> int | None:
    """What the limits of the process's control group, and of the groups around it, leave; None if
    no limit can be read."""
    found = [left for group in _groups() if (left := _left_in(group)) is not None]
    return min(found, default=None)


def _groups() -> list[Path]:
    """The folders of the groups that the process is in. In a container the outermost folder is the
    one of the container's group."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers in ("", "memory"):
            inside = Path(path.strip("/"))
            found += [_CGROUPS / controllers / part for part in (inside, *inside.parents)]
    return found


def _left_in(group: Path) -> int | None:
    for limit, used, cached in _LIMITS:
        try:
            most, now = (int((group / name).read_text()) for name in (limit, used))
            facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # The kernel drops pages of files if memory is short.
            return max(most - now + int(facts.get(cached, 0)), 0)
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
