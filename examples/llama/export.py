"""Process 3, the developer's machine: the model and the tape give a torch.export program and an
ONNX file, and every recorded call is run through both."""

import sys
from pathlib import Path

import onnxruntime
import torch
from model import tiny_llama

from calltape_analyzer import open_tape, register_flattening_functions


def main(path: str, onnx_path: str) -> None:
    model = tiny_llama()
    with torch.no_grad(), register_flattening_functions(), open_tape(path) as tape:
        shapes = tape.infer_dynamic_shapes(set_batch_dimension_for=True)

        program = torch.export.export(
            model, (), kwargs=tape.infer_arguments(), dynamic_shapes=shapes, strict=False
        )
        exported = program.module()
        worst = max(
            difference(exported(**tape.infer_arguments(call.index)).logits, call.outputs.logits)
            for call in tape
        )
        print(
            f"torch.export: {len(tape)} recorded calls reproduced, largest difference {worst:.1e}"
        )

        torch.onnx.export(
            model,
            (),
            onnx_path,
            kwargs=tape.infer_arguments(),
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
        session = onnxruntime.InferenceSession(onnx_path, providers=["CPUExecutionProvider"])
        worst = max(
            difference(run(session, tape.infer_arguments(call.index)), call.outputs.logits)
            for call in tape
        )
        print(
            f"ONNX Runtime: {len(tape)} recorded calls reproduced, largest difference {worst:.1e}"
        )
        print(f"ONNX file: {onnx_path} ({Path(onnx_path).stat().st_size} bytes)")


def run(session: onnxruntime.InferenceSession, arguments: dict[str, object]) -> torch.Tensor:
    """Feeds the tensors by name, in the order in which the exporter flattened the arguments."""
    leaves = torch.utils._pytree.tree_leaves(arguments)
    tensors = [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    names = [given.name for given in session.get_inputs()]
    logits, *_ = session.run(None, dict(zip(names, tensors, strict=True)))
    return torch.from_numpy(logits)


def difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    return float((got - expected).abs().max())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
