"""Reports what a process does: Python imports this module first, where its folder is on
``PYTHONPATH``, and so in every process that the first one starts.

``CALLTAPE_WATCH`` is a file that gets a line of JSON per event. ``CALLTAPE_WATCH_FOLDER`` is the
folder that may be written to. What is in ``CALLTAPE_WATCH_ALLOWED``, a JSON list of ``[event,
what]``, a harmless run did too; anything else is reported, and does not happen.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

_LOG = os.open(os.environ["CALLTAPE_WATCH"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_FOLDER = os.path.realpath(os.environ["CALLTAPE_WATCH_FOLDER"])
_ALLOWED = {tuple(one) for one in json.loads(os.environ.get("CALLTAPE_WATCH_ALLOWED", "[]"))}
_MEASURES = "CALLTAPE_WATCH_ALLOWED" not in os.environ

_PROCESSES = (
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
    "os.spawn", "os.startfile", "os.kill", "os.killpg", "pty.spawn",
)  # fmt: skip
_CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod",
    "os.chown", "shutil.rmtree", "os.truncate", "os.utime", "os.setxattr", "os.removexattr",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TEMPORARY = re.compile(r"(?<=/)(tmp|pymp-|torchinductor_|\.)[^/]*")
_busy = False


def _event(event: str, args: tuple[Any, ...]) -> str | None:
    """What is to be reported of an event; None if it is of no interest."""
    if event in _PROCESSES or event.startswith("socket."):
        return _plain(args)
    if event in ("ctypes.dlopen", "pickle.find_class", "webbrowser.open"):
        return _plain(args)
    if event in _CHANGES:
        # A path, or a descriptor of a folder beside it.
        paths = [one for one in args if isinstance(one, (str, bytes, os.PathLike))]
        return None if all(map(_is_inside, paths)) else _plain(args)
    if event == "open":
        path, mode, flags = args
        writes = isinstance(mode, str) and any(one in mode for one in "wax+")
        writes = writes or (isinstance(flags, int) and bool(flags & _WRITING))
        if writes and isinstance(path, (str, bytes)) and not _is_inside(path):
            return _plain((path,))
    return None


def _is_inside(path: Any) -> bool:
    real = os.path.realpath(os.fsdecode(path))
    return real == "/dev/null" or real == _FOLDER or real.startswith(_FOLDER + os.sep)


def _plain(args: Any) -> str:
    """Arguments without what is another each time: numbers, and names of temporary files."""
    text = _TEMPORARY.sub("TMP", repr(args).replace(_FOLDER, "FOLDER"))
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)[:400]


def _audit(event: str, args: tuple[Any, ...]) -> None:
    global _busy
    if _busy:
        return
    _busy = True
    try:
        what = _event(event, args)
        if what is None or (event, what) in _ALLOWED:
            return
        os.write(_LOG, json.dumps([event, what]).encode() + b"\n")
    finally:
        _busy = False
    if not _MEASURES:
        raise PermissionError(f"not in here: {event}")


sys.addaudithook(_audit)
