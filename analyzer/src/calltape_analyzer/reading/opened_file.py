"""A tape file by its path or URL: in comes a text, out go its bytes.

What URLs need is imported with the first URL. A process that reads local files never imports it.
"""

from __future__ import annotations

from calltape_analyzer.reading.tape_bytes import TapeBytes
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_analyzer.reading.urls import is_url, local_path

__all__ = ["opened_file"]


def opened_file(path: str) -> TapeBytes:
    """The bytes of a tape, decompressed if somebody compressed it.

    Args:
        path: of a file, or a URL.

    Raises:
        TapeError: ``not_found``, ``io`` or ``not_a_tape``; ``damaged``, ``limit`` or ``usage`` for
            a compressed file that cannot be read; ``usage`` for a URL without the extra ``remote``.
    """
    if not is_url(path):
        return TapeFile(local_path(path))
    from calltape_analyzer.reading.remote_file import opened_url

    return opened_url(path)
