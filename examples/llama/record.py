"""Process 1, the server: answers two turns of a conversation, with the recorder attached."""

import inspect
import sys

import torch
from model import tiny_llama
from transformers import DynamicCache

from calltape_recorder import record


def main(path: str) -> None:
    model = tiny_llama()
    prompts = torch.randint(2, 128, (2, 7))
    with record(model, path, overwrite=True) as recorder:
        cache = DynamicCache(config=model.config)
        # transformers 5.24 gave this argument its name.
        names = inspect.signature(model.forward).parameters
        name = "cache" if "cache" in names else "past_key_values"
        options = {"do_sample": False, "return_dict_in_generate": True, name: cache}
        first = model.generate(prompts, max_new_tokens=4, **options)
        question = torch.cat([first.sequences, torch.randint(2, 128, (2, 5))], dim=1)
        model.generate(question, max_new_tokens=3, **options)
    stats = recorder.stats()
    print(f"recorded {stats.kept} of {stats.seen} calls of {type(model).__name__} on {path}")


if __name__ == "__main__":
    main(sys.argv[1])
