"""Process 2, anywhere: neither the model nor transformers, only the tape."""

import sys

from calltape_analyzer import open_tape

# Proof rather than promise: from here on, importing transformers fails.
sys.modules["transformers"] = None  # type: ignore[assignment]


def main(path: str) -> None:
    with open_tape(path) as tape:
        print("dynamic shapes:")
        for name, shapes in tape.infer_dynamic_shapes(dim_names=True).items():
            print(f"  {name}: {shapes}")


if __name__ == "__main__":
    main(sys.argv[1])
