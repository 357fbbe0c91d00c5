"""Keyword arguments, one of them labels: arguments and shapes go straight into torch.export."""

import tempfile
from pathlib import Path

import torch

from calltape_analyzer import open_tape
from calltape_recorder import record


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.linear(x)
        if labels is None:
            return logits
        return logits, torch.nn.functional.cross_entropy(logits, labels)


def main(path):
    model = Classifier().eval()
    with record(model, path):
        for batch in (2, 5, 7):
            model(x=torch.randn(batch, 8), labels=torch.randint(0, 3, (batch,)))
    tape = open_tape(path)
    shapes = tape.infer_dynamic_shapes()
    program = torch.export.export(model, *tape.infer_arguments(), dynamic_shapes=shapes)
    logits, loss = program.module()(x=torch.randn(11, 8), labels=torch.randint(0, 3, (11,)))
    print(shapes)
    print("exported; at a batch of 11 it gives", tuple(logits.shape), float(loss.detach()))
    return shapes, logits


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "classifier.tape")
