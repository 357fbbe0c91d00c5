"""A language model: prefill without a cache, then decoding with one of two layers.

The batch never varied, so it is declared; heads and head size stay static. Nothing has to be
registered to record or to infer, only to export.
"""

import torch
from transformers import DynamicCache

from calltape_analyzer import InputObserver, register_flattening_functions

HEADS, HEAD_SIZE = 2, 4


class Decoder(torch.nn.Module):
    """Embeds tokens, and reads keys and values of both layers of its cache."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(32, HEADS * HEAD_SIZE)

    def forward(self, input_ids, past_key_values=None):
        hidden = self.embed(input_ids)
        if past_key_values is None:
            return hidden
        seen = sum(layer.keys.mean() + layer.values.mean() for layer in past_key_values.layers)
        return hidden + seen


def cache(length, batch=1):
    shape = (batch, HEADS, length, HEAD_SIZE)
    return DynamicCache([(torch.randn(shape), torch.randn(shape)) for _ in range(2)])


def main():
    model = Decoder().eval()
    observer = InputObserver()
    with observer(model):
        model(input_ids=torch.randint(0, 32, (1, 6)))
        model(input_ids=torch.randint(0, 32, (1, 2)), past_key_values=cache(6))
        model(input_ids=torch.randint(0, 32, (1, 3)), past_key_values=cache(8))
    shapes = observer.infer_dynamic_shapes(set_batch_dimension_for=True)
    for name, shape in shapes.items():
        print(f"{name}: {shape}")

    # torch.export specializes sizes 0 and 1, so it gets a call of batch 2.
    with observer(model):
        model(input_ids=torch.randint(0, 32, (2, 4)), past_key_values=cache(9, batch=2))
    with register_flattening_functions():
        program = torch.export.export(
            model,
            (),
            kwargs=observer.infer_arguments(observer.num_obs() - 1),
            dynamic_shapes=observer.infer_dynamic_shapes(),
        )
        ids, past = torch.randint(0, 32, (3, 5)), cache(11, batch=3)
        got = program.module()(input_ids=ids, past_key_values=past)
        torch.testing.assert_close(got, model(ids, past))
    print("exported; a call of batch 3 with 11 cached tokens gives the same as the model")
    return shapes


if __name__ == "__main__":
    main()
