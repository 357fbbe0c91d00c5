"""The FastAPI example, preloaded: model *and* recorder are made before the workers are forked."""

from __future__ import annotations

import os

from fastapi import Request
from server import app, model

from calltape_recorder import record

__all__ = ["app"]

recorder = record(model, f"{os.environ['PRELOADED']}/llama.tape")


@app.post("/flush")
def flush() -> dict[str, object]:
    return {"worker": os.getpid(), "flushed": recorder.flush()}


@app.get("/accounts")
def accounts(request: Request) -> dict[str, object]:
    stats = recorder.stats()
    return {
        "worker": os.getpid(), "state": stats.state, "seen": stats.seen, "kept": stats.kept,
        "path": recorder.path,
    }  # fmt: skip
