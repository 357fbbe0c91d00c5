"""``python -m tests.analyzer.mutation COUNT [FIRST_SEED]``: any number of mutants, in processes
that are ended when they take too much, with what they found."""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.analyzer.mutation.reading import Finding
from tests.analyzer.mutation.running import Tally, run

_EACH = 100
_VIRTUAL = 8 * 10**9
_SECONDS = 900


def _run_here(first: int, count: int) -> None:
    """One process's share: writes its tally to standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (_VIRTUAL, _VIRTUAL))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tally = run(range(first, first + count), Path(folder))
    sys.stdout.buffer.write(pickle.dumps(tally))


def _share(first: int, count: int) -> Tally:
    words = [sys.executable, "-m", "tests.analyzer.mutation", "--here", str(first), str(count)]
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode == 0:
        found: Tally = pickle.loads(done.stdout)  # of our own child
        return found
    kind = f"process ended with {done.returncode}"
    finding = Finding("", kind, done.stderr.decode(errors="replace")[-3000:])
    return Tally(findings={kind: [(first, finding)]})


def main() -> int:
    if sys.argv[1] == "--here":
        _run_here(int(sys.argv[2]), int(sys.argv[3]))
        return 0
    count = int(sys.argv[1])
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    starts = range(first, first + count, _EACH)
    tally = Tally()
    with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(starts)))) as pool:
        shares = pool.map(lambda at: _share(at, min(_EACH, first + count - at)), starts)
        for number, share in enumerate(shares, 1):
            found = ", ".join(share.findings) or "nothing found"
            print(f"{number} of {len(starts)} shares: {found}", file=sys.stderr, flush=True)
            tally.merge(share)
    print("\n".join(tally.lines()))
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
