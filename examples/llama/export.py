"""Process 3, the developer's machine: the model and the tape give verified programs, for
torch.export and for ONNX Runtime."""

import sys
from pathlib import Path

import torch
from model import tiny_llama

from calltape_analyzer import export, open_tape


def main(path: str, folder: str) -> None:
    model = tiny_llama()
    with torch.no_grad(), open_tape(path) as tape:
        for to, name in (("torch", "torch.export"), ("onnx", "ONNX Runtime")):
            programs = export(tape, model, to=to)
            report = programs.verify()
            print(f"{name}: {report.summary}")
            for attempt in programs.attempts:
                print(
                    f"  {attempt.variant}: {attempt.what}, {attempt.agreed} of {attempt.probed} "
                    f"sizes that were never recorded hold"
                )
            if not report.ok:
                raise SystemExit(report.table())
            programs.save(Path(folder) / to)
    for file in sorted(Path(folder).glob("*/*.*")):
        print(f"{file.parent.name}/{file.name}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
