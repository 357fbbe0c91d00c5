"""Write recorded calls as JSON for ``polygraphy run --load-inputs`` and ``--load-outputs``.

Each program that ``calltape export --to onnx`` wrote gets a file of inputs and one of outputs:

    python examples/polygraphy_inputs.py runs/llm.tape runs/llm_onnx runs/polygraphy
    polygraphy run runs/llm_onnx/00-decode.onnx --onnxrt \
        --load-inputs runs/polygraphy/00-decode.inputs.json \
        --load-outputs runs/polygraphy/00-decode.outputs.json
"""

import sys
from collections import defaultdict
from pathlib import Path

import onnx
from polygraphy.comparator import IterationResult, RunResults
from polygraphy.json import save_json

from calltape_analyzer import load_programs, open_tape


def main(tape_path, exported, out):
    programs, inputs, outputs = load_programs(exported), defaultdict(list), defaultdict(list)
    with open_tape(tape_path) as tape:
        for call in tape:
            if call.record.outputs is None:
                continue  # it raised, had not ended, or was recorded without outputs
            name, values = programs.inputs_for(*call.inputs.args, **call.inputs.kwargs)
            file = Path(programs[name].exported)
            inputs[file.stem].append({name: value.numpy() for name, value in values.items()})
            declared = onnx.load(file, load_external_data=False).graph.output
            names = [one.name for one in declared if one.name != "calltape_checks"]
            values = [value.numpy() for value in call.tensors("outputs").values()]
            found = dict(zip(names, values, strict=True))
            outputs[file.stem].append(IterationResult(found, call.duration, "calltape"))
    Path(out).mkdir(parents=True, exist_ok=True)
    for stem in inputs:
        save_json(inputs[stem], f"{out}/{stem}.inputs.json")
        RunResults([("calltape", outputs[stem])]).save(f"{out}/{stem}.outputs.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
