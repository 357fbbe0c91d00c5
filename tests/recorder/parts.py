"""A recording made of its parts, for tests of what the accounts do not tell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calltape_recorder.capture.names import ModuleNames
from calltape_recorder.handler import CallHandler
from calltape_recorder.host.hooks import HookPair
from calltape_recorder.host.listener import Attachment
from calltape_recorder.host.method import ReplacedMethod
from calltape_recorder.options import check_options
from calltape_recorder.recording import Recording

__all__ = ["recording"]


@contextlib.contextmanager
def recording(model: Any, path: Path, **given: Any) -> Iterator[Recording]:
    """Records the calls of a model, as ``record`` does; closes the tape at the end."""
    options = check_options(given)
    parts = Recording(options, str(path), False, ModuleNames(), lambda _: None, lambda: None)
    handler = CallHandler(parts, lambda: None, outputs=options.outputs)
    attachment: Attachment
    if options.via == "method":
        attachment = ReplacedMethod(model, options.method, handler)
    else:
        attachment = HookPair(model, handler)
    parts.begin(None)
    try:
        yield parts
    finally:
        attachment.detach()
        handler.close()
        parts.close()
