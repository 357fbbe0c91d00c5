"""A FastAPI service whose workers record what their model is called with.

TAPES=runs/served uvicorn --app-dir examples/fastapi_server server:app --workers 2

Every worker has a tape of its own in that folder, ``LlamaForCausalLM-<process>.tape``. Without
``TAPES`` nothing is recorded; and without a word of calltape in the code it would be recorded by

calltape-record --target server:model --tape runs/served -- \
    uvicorn --app-dir examples/fastapi_server server:app --workers 2

Then:

calltape info runs/served
calltape variants runs/served --python
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI, Request
from model import tiny_llama
from pydantic import BaseModel

from calltape_recorder import record

torch.set_num_threads(1)  # the workers share the cores
model = tiny_llama()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # Here, and not where the model is made: this runs in each worker, after any fork, and it ends
    # when the worker has given its last answer. uvicorn then dies of the signal that it was sent,
    # and Python's own exit handlers do not run.
    app.state.recorder = None
    if tapes := os.environ.get("TAPES"):
        with record(model, f"{tapes}/") as app.state.recorder:
            yield
    else:
        yield


app = FastAPI(lifespan=lifespan)


class Prompt(BaseModel):
    ids: list[int]
    new_tokens: int = 4


@app.post("/generate")
def generate(prompt: Prompt) -> dict[str, object]:
    ids = torch.tensor([prompt.ids])
    with torch.inference_mode():
        tokens = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=prompt.new_tokens,
            do_sample=False,
        )
    return {"ids": tokens[0, len(prompt.ids) :].tolist(), "worker": os.getpid()}


@app.get("/recorder")
def recorder(request: Request) -> dict[str, object]:
    """What this worker's recorder has counted: for a dashboard, or to see that it is on."""
    recorder = request.app.state.recorder
    if recorder is None:
        return {"worker": os.getpid(), "state": "off"}
    stats = recorder.stats()
    return {
        "worker": os.getpid(),
        "state": stats.state,
        "seen": stats.seen,
        "kept": stats.kept,
        "dropped": dict(stats.dropped),
    }
