"""vLLM's ``LLM`` with a few prompts, as a batch job runs it. It does not know of calltape.

calltape-record --target vllm.model_executor.models.llama:LlamaForCausalLM --tape runs/vllm \
    -- python examples/vllm_server/offline.py runs/tiny-llama
"""

import argparse

from vllm import LLM, SamplingParams

PROMPTS = ["w3 w4 w5", "w6 w7 w8 w9 w10 w11", "w12", "w13 w14 w15 w16"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="as vLLM does it by default")
    options = parser.parse_args()
    llm = LLM(
        options.folder,
        enforce_eager=not options.compiled,
        tensor_parallel_size=options.ranks,
        max_model_len=128,
        dtype="float32",
    )
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    for output in llm.generate(PROMPTS, sampling):
        print(output.outputs[0].token_ids)


if __name__ == "__main__":  # vLLM's processes import this file
    main()
