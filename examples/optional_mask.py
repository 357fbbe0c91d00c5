"""An argument that no recorded call passes: ``value_if_missing`` says what it looks like."""

import torch

from calltape_analyzer import InputObserver


class Masked(torch.nn.Module):
    def forward(self, x, mask=None):
        return x if mask is None else x * mask.sum(0)


def main():
    model = Masked()
    observer = InputObserver(value_if_missing={"mask": torch.ones(0, 10)})
    with observer(model):
        model(x=torch.randn(4, 10))
        model(x=torch.randn(6, 10), mask=torch.ones(6, 10))
        model(x=torch.randn(8, 10))
    arguments = observer.infer_arguments()
    shapes = observer.infer_dynamic_shapes()
    print({name: tuple(tensor.shape) for name, tensor in arguments.items()})
    print(shapes)
    return arguments, shapes


if __name__ == "__main__":
    main()
