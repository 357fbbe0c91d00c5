"""From a running model to a tape, and from the tape to torch.export and ONNX, process by process.

make demo
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The exporters and transformers name every optional package that is missing; not our subject.
QUIET = {
    **os.environ,
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
    "TORCH_LOGS": "-all",
}


def step(title: str, *command: str) -> None:
    pasted = ["calltape", *command[2:]] if command[0] == "-m" else ["python", *command]
    print(f"{title}\n$ {' '.join(map(shown, pasted))}", flush=True)
    subprocess.run([sys.executable, *command], check=True, env=QUIET)
    print(flush=True)


def shown(argument: str) -> str:
    path = Path(argument)
    return os.path.relpath(path) if path.is_absolute() else argument


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tape, programs = str(folder / "llama.tape"), str(folder / "programs")
    explain = ("-m", "calltape_analyzer", "explain", tape)
    step(
        "1. A server answers two chats, and records each call of its model, a small Llama.",
        str(HERE / "llama" / "record.py"), tape,
    )  # fmt: skip
    step("2. What is dynamic? The tape is enough to tell, without the model.", *explain)
    step("3. Why?", *explain, "input_ids", "1", "--variant", "decode")
    step(
        "4. Export the model, and run every recorded call through the programs.",
        str(HERE / "llama" / "export.py"), tape, programs,
    )  # fmt: skip
    print(f"To look at every call in a browser: calltape view {shown(tape)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo").resolve())
