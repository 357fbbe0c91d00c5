"""An image with the first call only, a cache with the later ones only.

No call has both, so ``value_if_missing`` says what "no image" looks like.
"""

import torch
from transformers import DynamicCache

from calltape_analyzer import InputObserver


class ImageAndText(torch.nn.Module):
    def forward(self, input_ids, pixel_values=None, attention_mask=None, past_key_values=None):
        return input_ids + 1


def cache(length):
    return DynamicCache([(torch.randn(1, 2, length, 4), torch.randn(1, 2, length, 4))])


def main():
    model = ImageAndText()
    observer = InputObserver(value_if_missing={"pixel_values": torch.empty(0, 3, 224, 224)})
    with observer(model):
        model(
            input_ids=torch.ones(1, 9, dtype=torch.int64),
            pixel_values=torch.rand(1, 3, 224, 224),
            attention_mask=torch.ones(1, 9, dtype=torch.int64),
        )
        for length in (9, 10):
            model(
                input_ids=torch.ones(1, 1, dtype=torch.int64),
                attention_mask=torch.ones(1, length + 1, dtype=torch.int64),
                past_key_values=cache(length),
            )
    shapes = observer.infer_dynamic_shapes(set_batch_dimension_for=True)
    arguments = observer.infer_arguments()
    print(shapes)
    print("pixel_values in the arguments:", list(arguments["pixel_values"].shape))
    return shapes, arguments


if __name__ == "__main__":
    main()
