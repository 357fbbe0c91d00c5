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
        for to, engine in (("torch", "torch.export"), ("onnx", "ONNX Runtime")):
            programs = export(tape, model, to=to)
            report = programs.verify()
            if not report.ok:
                raise SystemExit(report.table())
            programs.save(Path(folder) / to)
            agreed = sum(attempt.agreed for attempt in programs.attempts)
            probed = sum(attempt.probed for attempt in programs.attempts)
            print(f"{engine}: {report.summary}")
            print(f"  at {agreed} of {probed} sizes that no call had, it agrees with the model")
            for file in sorted((Path(folder) / to).glob("*-*")):
                print(f"  saved {to}/{file.name}, {file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
