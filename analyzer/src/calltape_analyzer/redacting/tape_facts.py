"""What a tape says besides its calls, without what is private.

In comes a manifest. Out goes one without the name of the host, without names of files, and with
times that are relative to each other only.
"""

from __future__ import annotations

import re
from pathlib import Path

from calltape_analyzer.editing.rewriting import EditReport, Revision, Rewriting, rewrite
from calltape_analyzer.redacting.call_redaction import CallRedaction
from calltape_analyzer.tape import Tape
from calltape_schema.end import Dump
from calltape_schema.inputs_table import InputsTable
from calltape_schema.privacy import without_text
from calltape_schema.records import Manifest, Policy, Producer, Source, Step

__all__ = ["BEGIN_NS", "TapeFacts", "copy_redacted", "plain_platform"]

BEGIN_NS = 946_684_800 * 10**9
"""When the first file of a redacted tape began, as it says: 2000-01-01, which is nobody's date."""

_SYSTEMS = ("Linux", "Windows", "macOS", "Darwin", "FreeBSD")
_MACHINES = re.compile(r"x86_64|AMD64|aarch64|arm64|ppc64le|s390x|riscv64|i686")


class TapeFacts(Revision):
    """Takes what is private out of everything that is no call.

    Args:
        calls: changes the calls of the same tape.
    """

    def __init__(self, calls: CallRedaction) -> None:
        self._calls = calls

    def manifest(self, manifest: Manifest) -> Manifest:
        observed = manifest.observed
        if observed is not None:
            since = self.moment(observed.since_ns)
            observed = observed.model_copy(update={"since_ns": since})
        history = tuple(manifest.history or ())
        return manifest.model_copy(
            update={
                "created_ns": self.moment(manifest.created_ns),
                "producer": _producer(manifest.producer),
                "policy": _policy(manifest.policy),
                "observed": observed,
                "history": (*map(_foreign_step, history[:-1]), *map(_own_step, history[-1:])),
            }
        )

    def unkept(self, table: InputsTable) -> InputsTable:
        return self._calls.unkept(table)

    def dump(self, dump: Dump) -> Dump:
        when = self.moment(dump.time_ns)
        return dump.model_copy(update={"time_ns": when, "reason": without_text(dump.reason)})

    def moment(self, time_ns: int) -> int:
        return self._calls.moment(time_ns)


def plain_platform(text: str) -> str:
    """The system and the machine's architecture; not the build of the kernel."""
    system = next((name for name in _SYSTEMS if text.startswith(name)), "")
    machine = _MACHINES.search(text)
    return "-".join(filter(None, (system, machine and machine[0]))) or "unknown"


def copy_redacted(tape: Tape, path: Path) -> EditReport:
    """Writes the calls of a tape that was redacted as a whole, without the names of files that were
    given after that.

    Raises:
        TapeError: ``exists``, ``io``, ``limit``.
    """
    how = Rewriting("filter", tape.selected, revision=_WithoutFiles())
    calls = tape.calls
    return rewrite(tape, path, calls, len(calls), how)


class _WithoutFiles(Revision):
    def manifest(self, manifest: Manifest) -> Manifest:
        # The words of those who redacted stay, and no others.
        history = (
            _own_step(step) if step.verb == "redact" else _foreign_step(step)
            for step in manifest.history or ()
        )
        return manifest.model_copy(update={"history": tuple(history)})


def _producer(producer: Producer) -> Producer:
    platform = None if producer.platform is None else plain_platform(producer.platform)
    return producer.model_copy(update={"host": None, "platform": platform})


def _policy(policy: Policy) -> Policy:
    # The name of a predicate and patterns of paths are the host's words.
    return policy.model_copy(update={"keep": None, "leaf_values": ()})


def _foreign_step(step: Step) -> Step:
    """A step without names of files, and without the words of who made it."""
    options = tuple((name, without_text(value)) for name, value in step.options)
    return _own_step(step).model_copy(update={"options": options})


def _own_step(step: Step) -> Step:
    """A step without names of files. Its options are the words of who redacts."""
    return step.model_copy(update={"sources": tuple(map(_source, step.sources))})


def _source(source: Source) -> Source:
    files = source.other_files + len(source.files)
    return source.model_copy(update={"files": (), "other_files": files, "host": None})
