"""Write ONNX test data from a tape: ``test_data_set_N/input_K.pb`` and ``output_K.pb``.

``onnxruntime_perf_test`` and ONNX's backend tests read them. Each program that
``calltape export --to onnx`` wrote gets a folder with its ``model.onnx`` and a set per call:

    python examples/onnx_test_data.py runs/llm.tape runs/llm_onnx runs/test_data
"""

import shutil
import sys
from collections import Counter
from pathlib import Path

import onnx
import torch

from calltape_analyzer import load_programs, open_tape


def write(folder, side, declared, values):
    for number, (known, value) in enumerate(zip(declared, values, strict=True)):
        value = torch.view_as_real(value) if value.is_complex() else value
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype = known.type.tensor_type.elem_type
        proto = onnx.helper.make_tensor(known.name, dtype, value.shape, data, raw=True)
        (folder / f"{side}_{number}.pb").write_bytes(proto.SerializeToString())


def main(tape_path, exported, out):
    programs, counts = load_programs(exported), Counter()
    with open_tape(tape_path) as tape:
        for call in tape:
            if call.record.outputs is None:
                continue  # it raised, had not ended, or was recorded without outputs
            name, inputs = programs.inputs_for(*call.inputs.args, **call.inputs.kwargs)
            file = Path(programs[name].exported)
            folder = Path(out) / file.stem
            data_set = folder / f"test_data_set_{counts[name]}"
            data_set.mkdir(parents=True)
            if not counts[name]:
                shutil.copy(file, folder / "model.onnx")
                for weights in file.parent.glob(f"{file.name}.data"):
                    shutil.copy(weights, folder)
            counts[name] += 1
            graph = onnx.load(file, load_external_data=False).graph
            outputs = [one for one in graph.output if one.name != "calltape_checks"]
            write(data_set, "input", graph.input, inputs.values())
            write(data_set, "output", outputs, call.tensors("outputs").values())


if __name__ == "__main__":
    main(*sys.argv[1:])
