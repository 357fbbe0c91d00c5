"""``calltape TAPE``: what a tape is, in a few lines, and its variants."""

from __future__ import annotations

from calltape_analyzer.cli.options import OfTarget, Paths
from calltape_analyzer.cli.output import command, line
from calltape_analyzer.cli.recordings import (
    MOST_PATHS,
    coverage_text,
    files_text,
    policies_text,
    sealed_text,
    size,
)
from calltape_analyzer.cli.tapes import Part, opened
from calltape_analyzer.cli.variants import print_variants
from calltape_analyzer.text import some_of, time_text

__all__ = ["overview"]


@command
def overview(paths: Paths, target: OfTarget = None) -> None:
    """Show what a tape is, and the variants of its calls. The verbs show more."""
    with opened(paths, Part(target=target)) as tape:
        spans = [span for part in tape.segments if (span := part.span_ns) is not None]
        times = "no calls"
        if spans:
            begin, end = min(span[0] for span in spans), max(span[1] for span in spans)
            times = f"{time_text(begin)} to {time_text(end)}"
        rows = (
            ("tape", some_of(tape.paths, MOST_PATHS)),
            ("files", files_text(tape)),
            ("target", "unknown" if tape.target is None else tape.target.name),
            ("coverage", coverage_text(tape.coverage)),
            ("bytes", size(tape.nbytes)),
            ("time", times),
            ("sealed", sealed_text(tape)),
            ("policy", policies_text(tape.manifests)),
        )
        for name, text in rows:
            if text is not None:
                line(name.ljust(10), text, indent=11)
        print()
        found = tape.variants()
        if not found:
            line("no calls")
        print_variants(found)
