"""The FastAPI example; its workers say now and then that all they answered is in their file."""

from __future__ import annotations

import itertools

from fastapi import Request
from server import Prompt, app, generate

__all__ = ["app"]

_EVERY = 5
_numbers = itertools.count(1)
app.router.routes[:] = [one for one in app.router.routes if getattr(one, "path", "") != "/generate"]


@app.post("/generate")
def flushing(prompt: Prompt, request: Request) -> dict[str, object]:
    answer, given = generate(prompt), next(_numbers)
    recorder = request.app.state.recorder
    flushed = recorder is not None and given % _EVERY == 0 and recorder.flush()
    return {**answer, "given": given, "flushed": flushed}
