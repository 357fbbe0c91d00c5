"""Where a recorder that redacts put pseudonyms: ``record(redact=...)``.

In come the manifests of a tape as it was recorded. Out goes whether texts and long numbers at a
path are pseudonyms. What was made of tapes says nothing: one of them may have been another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from calltape_schema.patterns import matches, matches_whole
from calltape_schema.records import Manifest, Policy

__all__ = ["RecordedPseudonyms"]


class RecordedPseudonyms:
    """Answers for the recordings of a tape.

    Attributes:
        some: whether a recorder redacted any of them.
        every: whether recorders redacted all of them.
    """

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self._policies: dict[bytes, Policy] = {}
        self.every = True
        for manifest in manifests:
            if manifest.policy.redacts and not manifest.history:
                self._policies[manifest.tape] = manifest.policy
            else:
                self.every = False
        self.some = bool(self._policies)

    def at(self, tape: bytes, names: Collection[str]) -> bool:
        """Whether a recording has pseudonyms at a path.

        Args:
            tape: the id of the recording.
            names: the path, as patterns may name it.
        """
        policy = self._policies.get(tape)
        if policy is None:
            return False
        for pattern, kept in reversed(policy.leaf_values):
            if (matches if kept == "all" else matches_whole)(pattern, names):
                return kept == "none"
        return False
