"""``python -m tests.analyzer.mutation COUNT [FIRST_SEED]``: any number of mutants, in processes
that are ended when they take too much, with what they found."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_EACH = 100
_VIRTUAL = 8 * 10**9
_SECONDS = 900


def _run_here(first: int, count: int) -> None:
    """One process's share: the lines of its tally, and what is counted, as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (_VIRTUAL, _VIRTUAL))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    faulthandler.enable()
    import torch

    from tests.analyzer.mutation.running import run

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        tally = run(range(first, first + count), Path(folder))
    print(
        json.dumps(
            {
                "mutants": tally.mutants,
                "kinds": tally.kinds,
                "slowest": tally.slowest,
                "largest": tally.largest,
                "findings": {
                    kind: [len(found), found[0][0], found[0][1].step, found[0][1].text]
                    for kind, found in tally.findings.items()
                },
            }
        )
    )


def _share(first: int, count: int) -> dict:
    words = [sys.executable, "-m", "tests.analyzer.mutation", "--here", str(first), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"mutants": 0, "kinds": {}, "slowest": [0, -1, ""], "largest": [0, -1],
                "findings": {f"process ended with {done.returncode}":
                             [1, first, "", done.stderr[-3000:]]}}  # fmt: skip


def main() -> int:
    if sys.argv[1] == "--here":
        _run_here(int(sys.argv[2]), int(sys.argv[3]))
        return 0
    count = int(sys.argv[1])
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    starts = range(first, first + count, _EACH)
    with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(starts)))) as pool:
        shares = []
        for share in pool.map(lambda at: _share(at, min(_EACH, first + count - at)), starts):
            shares.append(share)
            found = ", ".join(share["findings"]) or "nothing found"
            print(f"{len(shares)} of {len(starts)} shares: {found}", file=sys.stderr, flush=True)
    kinds: dict[str, int] = {}
    findings: dict[str, list] = {}
    for share in shares:
        for kind, number in share["kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + number
        for kind, (number, *rest) in share["findings"].items():
            known = findings.setdefault(kind, [0, *rest])
            known[0] += number
    print(f"{sum(share['mutants'] for share in shares)} mutants; errors by kind: {kinds}")
    print("slowest:", max(share["slowest"] for share in shares))
    print("largest:", max(share["largest"] for share in shares))
    for kind, (number, seed, step, text) in sorted(findings.items(), key=lambda i: -i[1][0]):
        print(f"FOUND {number} x {kind} (seed {seed}) at {step}")
        print("    " + text.strip().replace("\n", "\n    "))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
