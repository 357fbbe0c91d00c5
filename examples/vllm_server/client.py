"""Waits for a server of vLLM, begins to record, sends a few requests, and seals the tape.

python examples/vllm_server/client.py runs/control.json --port 8000
"""

import argparse
import json
import os
import time
import urllib.request
from typing import Any

LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def wait_for(url: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            with LOCAL.open(f"{url}/health", timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def tell(control: str, **wishes: Any) -> None:
    """Writes the control file in one step, for its owner only. The recorder looks once a second."""
    with open(os.open(f"{control}.new", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        json.dump(wishes, file)
    os.replace(f"{control}.new", control)
    time.sleep(3)


def complete(url: str, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with LOCAL.open(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("control")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=600, help="how long the start may take")
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    wait_for(url, options.seconds)
    tell(options.control, paused=False)  # what came before were calls of vLLM's own warm-up
    for length in (3, 7, 12):
        print(complete(url, " ".join(f"w{number}" for number in range(3, length + 3))))
    tell(options.control, paused=False, seal=1)  # the tape is complete, however the server ends


if __name__ == "__main__":
    main()
