"""The FastAPI example with one more route: a client learns what is surely in the file."""

from __future__ import annotations

import os

from fastapi import Request
from server import app

__all__ = ["app"]


@app.post("/flush")
def flush(request: Request) -> dict[str, object]:
    recorder = request.app.state.recorder
    return {"worker": os.getpid(), "flushed": recorder is not None and recorder.flush()}
