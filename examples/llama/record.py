"""Process 1, the server: answers two chats of two turns each, with the recorder attached."""

import inspect
import logging
import os
import sys

import torch
from model import tiny_llama
from transformers import DynamicCache

from calltape_recorder import record


def main(path: str) -> None:
    # Where nobody configured logging, the recorder says on stderr what it records. We print that.
    logging.getLogger("calltape").addHandler(logging.NullHandler())
    model = tiny_llama()
    # transformers 5.24 gave this argument its name.
    names = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in names else "past_key_values"
    with record(model, path, overwrite=True) as recorder:
        for batch, length in ((2, 7), (3, 11)):
            cache = DynamicCache(config=model.config)
            options = {"do_sample": False, "return_dict_in_generate": True, name: cache}
            prompts = torch.randint(2, 128, (batch, length))
            first = model.generate(prompts, max_new_tokens=4, **options)
            question = torch.cat([first.sequences, torch.randint(2, 128, (batch, 5))], dim=1)
            model.generate(question, max_new_tokens=3, **options)
    stats = recorder.stats()
    size = f"{os.path.getsize(path) / 1024:.0f} KiB"
    print(f"recorded {stats.kept} of {stats.seen} calls of {type(model).__name__}, {size}")


if __name__ == "__main__":
    main(sys.argv[1])
