"""Two tensors by position: which of their dimensions are dynamic?

With ``y`` of batch 1 in every call, only its second dimension is.
"""

import torch

from calltape_analyzer import InputObserver


class Add(torch.nn.Module):
    def forward(self, x, y):
        return x + y


def main():
    model = Add()
    same, broadcast = InputObserver(), InputObserver()
    with same(model):  # keeps the first three calls
        for batch, sequence in [(3, 4), (5, 6), (7, 8), (9, 10)]:
            model(torch.randn(batch, sequence), torch.randn(batch, sequence))
    with broadcast(model):
        for batch, sequence in [(3, 4), (5, 6), (7, 8)]:
            model(torch.randn(batch, sequence), torch.randn(1, sequence))
    print(same.num_obs(), "calls:", same.infer_dynamic_shapes())
    print(broadcast.num_obs(), "calls:", broadcast.infer_dynamic_shapes())
    return same, broadcast


if __name__ == "__main__":
    main()
