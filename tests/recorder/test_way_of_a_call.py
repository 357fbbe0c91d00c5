"""How much a reader has to know to follow one call from the hook to the disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.recorder.processes import child

MOST_FUNCTIONS, MOST_FILES = 88, 24  # lower them if you can (docs/decisions/house.md)


@pytest.mark.integration
@pytest.mark.skipif(sys.version_info < (3, 11), reason="no qualified names of code before 3.11")
def test_a_call_passes_few_functions(tmp_path: Path) -> None:
    """Those of recorder and schema that run for a call, besides comprehensions and lambdas."""
    found = child(
        """
        own, is_on = threading.get_ident(), []
        called, wrote = {}, {}  # by the thread of the call, and by that of the writer
        done = threading.Event()

        def note(frame, event, argument):
            code = frame.f_code
            if is_on and event == "call" and "calltape_" in code.co_filename:
                if not code.co_name.startswith("<"):
                    passed = called if threading.get_ident() == own else wrote
                    passed[code.co_filename, code.co_qualname] = None
                    # the writer waits again: it is done with the call
                    if code.co_qualname == "Event.wait" and passed is wrote:
                        if any("write_at" in name for _, name in wrote):
                            done.set()

        class Model(torch.nn.Module):
            def forward(self, x, y):
                return {"a": x + 1, "b": [x]}

        threading.setprofile(note)
        sys.setprofile(note)
        model = Model()
        with record(model, sys.argv[1]) as recorder:
            for _ in range(5):
                model(torch.ones(4, 8), y="hello")
                recorder.flush()
            is_on.append(True)
            model(torch.ones(4, 8), y="hello")
            sys.setprofile(None)  # the wait is none of the call
            assert done.wait(60)
            is_on.clear()
            assert recorder.flush() and recorder.stats().kept == 6
        for file, name in {**called, **wrote}:
            print(file.partition("calltape_")[2], name)
        """,
        str(tmp_path / "a.tape"),
    ).split("\n")
    functions = [line for line in found if ".py " in line]
    files = {line.partition(" ")[0] for line in functions}
    listed = f"{len(functions)} functions in {len(files)} files:\n" + "\n".join(functions)
    assert functions[0].endswith("hooks.py _Before.__call__"), listed
    assert any("TapeFile.write_at" in line for line in functions), listed
    assert len(functions) <= MOST_FUNCTIONS, listed
    assert len(files) <= MOST_FILES, listed
