"""What a reference does with arguments that nobody recorded.

In come a tape with changed calls and a model that is right. Out goes the tape with its outputs.
"""

from __future__ import annotations

from typing import Any

from calltape_analyzer.minimising.changed_calls import is_changed
from calltape_analyzer.replaying.runners import runner_of
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.built_calls import build_tree
from calltape_analyzer.writing.tape_writer import TapeWriter

__all__ = ["settle"]


def settle(tape: Tape, model: Any, path: str) -> bool:
    """Writes the tape anew, with what the model returns for calls that have no outcome.

    Returns:
        Whether it returned each time: arguments that the reference refuses show nothing.
    """
    with (
        TapeWriter(path, tape.manifest, overwrite=True) as writer,
        runner_of(tape, model, trusted=False) as runner,
    ):
        for call in tape.calls:
            if not is_changed(call):
                writer.copy(call)
                continue
            values: dict[str, Any] = {}
            for place, leaf in enumerate(call.record.inputs.facts()):
                if leaf.key is not None:
                    values[leaf.key] = call.stored("inputs", place)
            try:
                result = runner.prepared(call).start()
            except Exception:
                return False
            tree = build_tree(result, "outputs", values)
            changed = {"outputs": tree, "outputs_missing": None, "blob": None}
            writer.write(call.record.model_copy(update=changed), values)
        writer.seal()
    return True
