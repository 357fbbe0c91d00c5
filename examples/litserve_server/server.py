"""A LitServe service whose inference workers record what their model is called with.

TAPES=runs/served python examples/litserve_server/server.py --workers 2

Every worker has a tape of its own in that folder, ``LlamaForCausalLM-<process>.tape``. Without
``TAPES`` nothing is recorded; and without a word of calltape in the code all models of that class
would be recorded by

calltape-record --target transformers.models.llama.modeling_llama:LlamaForCausalLM \
    --tape runs/served -- python examples/litserve_server/server.py --workers 2

Then:

calltape info runs/served
calltape variants runs/served --python
"""

import argparse
import os
import signal
import sys

import litserve
import torch
from model import tiny_llama

from calltape_recorder import record


class Generate(litserve.LitAPI):
    def setup(self, device: str) -> None:
        # In the worker, which was spawned: neither model nor recorder can come from its parent.
        torch.set_num_threads(1)  # the workers share the cores
        self.model = tiny_llama().to(device)
        if tapes := os.environ.get("TAPES"):
            self.recorder = record(self.model, f"{tapes}/")
            # LitServe ends its workers with SIGTERM, of which Python dies at once. This way it
            # exits, and seals the tape on the way out.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    def decode_request(self, request: dict[str, object]) -> dict[str, object]:
        return request

    def predict(self, request: dict[str, object]) -> list[int]:
        ids = torch.tensor([request["ids"]])
        with torch.inference_mode():
            tokens = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.get("new_tokens", 4),
                do_sample=False,
            )
        return tokens[0, ids.shape[1] :].tolist()

    def encode_response(self, output: list[int]) -> dict[str, object]:
        return {"ids": output, "worker": os.getpid()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    # What stops a container is SIGTERM. LitServe's own process dies of it and leaves its workers
    # behind; of an interrupt it ends with them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = litserve.LitServer(
        Generate(api_path="/generate"),
        accelerator="cpu",
        workers_per_device=options.workers,
        restart_workers=True,  # a worker that dies is started anew, with a tape of its own
    )
    server.run(host="127.0.0.1", port=options.port, num_api_servers=1, generate_client_file=False)


if __name__ == "__main__":
    main()
