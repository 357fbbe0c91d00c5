"""A server that knows nothing of calltape: recorded by its command line, sealed by a file."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.servers import recorded
from tests.servers.service import Load, served

__all__ = ["check_sealed_from_outside"]


def check_sealed_from_outside(command: Sequence[str], folder: Path) -> None:
    """Runs a ``calltape-record`` command that records to ``folder/tapes`` under load, has the files
    sealed by the control file, and sends SIGTERM: what was answered before the sealing is in sealed
    files, and the rest is there as far as it came."""
    tapes, control = folder / "tapes", folder / "control.json"
    name, *rest = command
    with served([name, "--control", str(control), *rest], folder) as service:
        load = Load(service, range(20_000))
        load.start()
        load.wait_for(40)
        answered = load.so_far()
        first = sorted(tapes.glob("*.tape"))  # one of each worker
        control.write_text(json.dumps({"seal": 1}))
        # A second file is begun when the first one is complete.
        service.wait_until(lambda: len(list(tapes.glob("*-00001.tape"))) == len(first))
        load.wait_for(len(load.so_far()) + 20)
        service.stop(signal.SIGTERM)
        load.stop()
    assert recorded.altered(load.answers) == []
    sealed = recorded.tapes(first)
    assert sealed.sealed
    assert recorded.missing(sealed, answered) == []
    assert recorded.adds_up(sealed)  # a call that was under way is in a later file
    whole = recorded.tapes(tapes)
    assert not whole.sealed  # nobody closed the recorder
    assert whole.verify() == []
    assert recorded.adds_up(whole)
    lost = recorded.missing(whole, load.answers)
    variants = recorded.analysis(whole)
    print(
        f"\nuntouched, sealed from outside: {len(answered)} answers before, 0 missing; SIGTERM:"
        f" {len(load.answers)} answers, {len(lost)} missing, {len(whole)} calls, {variants}"
    )
