"""Where a recorder that redacts put pseudonyms: ``record(redact=...)``.

In come the manifests of a tape as it was recorded. Out goes whether texts and long numbers at a
path are pseudonyms. What was made of tapes says nothing: one of them may have been another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from calltape_schema.patterns import deciding
from calltape_schema.records import Manifest, Policy

__all__ = ["RecordedPseudonyms"]


class RecordedPseudonyms:
    """Answers for the recordings of a tape.

    Attributes:
        some: whether a recorder redacted any of them.
        every: whether recorders redacted all of them.
    """

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        redacted: dict[bytes, Policy] = {}
        others: set[bytes] = set()
        for manifest in manifests:
            if manifest.policy.redacts and not manifest.history:
                redacted[manifest.tape] = manifest.policy
            else:
                others.add(manifest.tape)
        # Files of one recording have one policy. If they do not, somebody put them together.
        self._policies = {tape: one for tape, one in redacted.items() if tape not in others}
        self.some, self.every = bool(self._policies), not others

    def at(self, tape: bytes, names: Collection[str]) -> bool:
        """Whether a recording has pseudonyms at a path.

        Args:
            tape: the id of the recording.
            names: the path, as patterns may name it.
        """
        policy = self._policies.get(tape)
        if policy is None:
            return False
        decides = next(deciding(reversed(policy.leaf_values), names), None)
        return decides is not None and decides[1] == "none"
