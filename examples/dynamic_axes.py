"""``torch.onnx.export(dynamic_axes=...)`` for inputs and outputs, from what went in and came out.

A linear layer keeps the batch; a recurrent model gives up the sequence; a reshape makes a dimension
of its own. Each model is exported and run at sizes that were never recorded.
"""

import tempfile
import warnings
from pathlib import Path

import onnxruntime
import torch

from calltape_analyzer import dynamic_axes, open_tape
from calltape_recorder import record


class LastState(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.RNN(4, 6, batch_first=True)
        self.linear = torch.nn.Linear(6, 2)

    def forward(self, x):
        _, last = self.rnn(x)
        return self.linear(last[0])


class Halves(torch.nn.Module):
    def forward(self, x):
        return x.reshape(-1, 4)


MODELS = {
    "linear": (torch.nn.Linear(4, 2), [(3, 4), (5, 4)], (9, 4)),
    "recurrent": (LastState(), [(2, 3, 4), (4, 5, 4), (3, 7, 4)], (6, 11, 4)),
    "reshape": (Halves(), [(3, 8), (5, 8)], (7, 8)),
}


def export(name, folder):
    model, recorded, unseen = MODELS[name]
    model.eval()
    tape_path, onnx_path = folder / f"{name}.tape", str(folder / f"{name}.onnx")
    with torch.no_grad(), record(model, tape_path):
        for shape in recorded:
            model(torch.randn(shape))
    tape = open_tape(tape_path)
    axes = dynamic_axes(tape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter of this form is deprecated, and says so
        torch.onnx.export(
            model,
            tape.infer_arguments().args,
            onnx_path,
            input_names=axes.input_names,
            output_names=axes.output_names,
            dynamic_axes=axes,
            dynamo=False,
        )
    session = onnxruntime.InferenceSession(onnx_path, providers=["CPUExecutionProvider"])
    x = torch.randn(unseen)
    (got,) = session.run(axes.output_names, {axes.input_names[0]: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(x).detach(), atol=1e-5, rtol=1e-5)
    return axes


def main(folder):
    found = {name: export(name, Path(folder)) for name in MODELS}
    for name, axes in found.items():
        print(f"{name}: {axes}")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
