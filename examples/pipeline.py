"""A transformers pipeline: recorded while it answers, and its calls analyzed.

Model and tokenizer are made here, nothing is downloaded; a pipeline of your own is recorded in the
same way, by its ``.model``.
"""

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, pipeline

from calltape_analyzer import open_tape
from calltape_recorder import record

TEXT = "what does the model see when a server calls it with long and short text"


def tiny_pipeline():
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<unk>", *TEXT.split()])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    return pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")


def main(path):
    generate = tiny_pipeline()
    options = {"max_new_tokens": 3, "do_sample": False, "return_full_text": False}
    prompts = ["what does the model see", "a server", "when a server calls it with long text"]
    expected = [generate(prompt, **options) for prompt in prompts]
    with record(generate.model, path, overwrite=True) as recorder:
        answers = [generate(prompt, **options) for prompt in prompts]
        generate(prompts, batch_size=3, **options)
    assert answers == expected
    stats = recorder.stats()
    print(f"recorded {stats.kept} of {stats.seen} calls")
    with open_tape(recorder.path) as tape:
        for variant in tape.variants():
            shapes = variant.infer_dynamic_shapes()
            print(f"{variant.name}: {len(variant)} calls, input_ids {shapes['input_ids']}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/pipeline.tape")
