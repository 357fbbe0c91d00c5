"""From a running model to a tape, and from the tape to torch.export and ONNX, in three processes.

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


def run(title: str, *command: str) -> None:
    pasted = ["calltape", *command[2:]] if command[0] == "-m" else ["python", *command]
    print(f"\n{title}\n$ {' '.join(map(shown, pasted))}", flush=True)
    subprocess.run([sys.executable, *command], check=True, env=QUIET)


def shown(argument: str) -> str:
    path = Path(argument)
    return os.path.relpath(path) if path.is_absolute() else argument


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tape, programs = str(folder / "llama.tape"), str(folder / "programs")
    scripts = HERE / "llama"
    run("1. A server records generate() of a small Llama.", str(scripts / "record.py"), tape)
    run("2. What is on the tape?", "-m", "calltape_analyzer", "info", tape)
    run("3. Another process, without the model, infers.", str(scripts / "analyze.py"), tape)
    run("4. A third exports, and runs every call.", str(scripts / "export.py"), tape, programs)
    print(f"\nThe tape is {shown(tape)}; look at it with `calltape ls` and `calltape variants`.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo").resolve())
