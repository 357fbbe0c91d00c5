"""The corpus that is committed: few small inputs that reach what a long run reached."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

__all__ = ["distil"]

_MOST_BYTES, _MOST_EACH = 400 * 1024, 12 * 1024


def distil(corpus: Path) -> str:
    """Writes ``tests/fuzz/corpus`` anew: of the inputs of a run those that reach lines which the
    golden tapes, and smaller inputs, do not. Returns what it did, in words."""
    import coverage

    tracing = coverage.Coverage(
        branch=True, data_file=None, source_pkgs=["calltape_schema", "calltape_analyzer"],
        messages=False,
    )  # fmt: skip
    tracing.start()
    from tests.fuzz.guidance import import_all
    from tests.fuzz.mutator import CORPUS, seeds
    from tests.fuzz.questions import chosen_for, read
    from tests.fuzz.target import OTHER

    import_all()
    scratch = corpus.parent / "distilled.tape"

    def reached(data: bytes) -> int:
        """How many branches were reached so far, these bytes included."""
        scratch.write_bytes(data)
        read(scratch, OTHER, chosen_for(data))
        found = tracing.get_data()
        return sum(len(found.arcs(name) or ()) for name in found.measured_files())

    for path in sorted(CORPUS.glob("*.tape")):
        path.unlink()
    seeds.cache_clear()
    known = max(map(reached, seeds()))
    began = known
    kept = total = 0
    candidates = sorted(corpus.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    CORPUS.mkdir(exist_ok=True)
    started = time.monotonic()
    for path in candidates:
        data = path.read_bytes()
        if len(data) > _MOST_EACH or total + len(data) > _MOST_BYTES:
            break
        now = reached(data)
        if now > known:
            (CORPUS / f"{hashlib.sha256(data).hexdigest()[:12]}.tape").write_bytes(data)
            kept, total, known = kept + 1, total + len(data), now
    tracing.stop()
    scratch.unlink()
    took = time.monotonic() - started
    return (
        f"{kept} of {len(candidates)} inputs, {total:,} bytes: {known - began} branches more than"
        f" the golden tapes' {began}, in {took:.0f} s"
    )
