"""A tensor, a dict and a list to ONNX, with the batch dimension named in all three."""

import tempfile
from pathlib import Path

import torch

from calltape_analyzer import open_tape
from calltape_recorder import record


class Sum(torch.nn.Module):
    def forward(self, x, extras, more):
        return x + extras["bias"] + more[0]


def main(path):
    model = Sum().eval()
    with record(model, path):
        for batch in (3, 4, 6):
            model(
                torch.randn(batch, 8),
                {"bias": torch.randn(batch, 8)},
                [torch.randn(batch, 8)],
            )
    tape = open_tape(path)
    batch = {0: "batch_size"}
    args, kwargs = tape.infer_arguments()
    program = torch.onnx.export(
        model,
        args,
        kwargs=kwargs,
        dynamic_shapes=tape.infer_dynamic_shapes(
            dim_names={"x": batch, "extras": batch, "more": batch}
        ),
        dynamo=True,
        verbose=False,
    )
    for given in program.model.graph.inputs:
        print(given.name, given.shape)
    return program


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "sum.tape")
