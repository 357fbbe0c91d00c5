"""From the bytes of one tape to those of a mutant, whose checksums are right."""

from __future__ import annotations

import pickle
import random
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.fixture_files import FIXTURES
from tests.fuzz.documents import TapeDocument, document_of, encoded
from tests.fuzz.framing import reframe
from tests.fuzz.grammar import mutate
from tests.fuzz.tables import tabled

__all__ = ["CORPUS", "MOST_BYTES", "Mutator", "seeds", "subjects"]

CORPUS = Path(__file__).parent / "corpus"
MOST_BYTES = 96 * 1024
"""Of a mutant: what is to be found shows in small files, and small files are read often."""

_REFRAMED, _TABLED = 0.2, 0.2
_KEPT, _TRIES = 2048, 8


@cache
def subjects() -> tuple[TapeDocument, ...]:
    """The golden tapes, taken apart."""
    paths = sorted((FIXTURES / "v1").glob("*.tape"))
    found = [document_of(path.read_bytes(), path.stem) for path in paths]
    return tuple(tape for tape in found if tape is not None)


@cache
def seeds() -> tuple[bytes, ...]:
    """What a run begins with: the golden tapes, and the committed corpus."""
    golden = sorted((FIXTURES / "v1").glob("*.tape"))
    return tuple(path.read_bytes() for path in (*golden, *sorted(CORPUS.glob("*.tape"))))


class Mutator:
    """Makes mutants; remembers how the latest tapes are taken apart."""

    def __init__(self, others: Sequence[TapeDocument] = ()) -> None:
        self._others = others or subjects()
        # Pickled: to load one is faster than to copy its dicts, and they are nobody's garbage.
        self._parsed: OrderedDict[bytes, bytes | None] = OrderedDict()

    def mutant(self, data: bytes, rng: random.Random) -> bytes:
        """Another tape, of at most ``MOST_BYTES``; the same for the same arguments. A change that
        changes nothing makes no mutant: one of eight did, and was read and counted."""
        for _ in range(_TRIES):
            try:
                made = self._made(data, rng)
            except Exception:  # no encoder can write what a change made: no mutant
                continue
            if len(made) <= MOST_BYTES and made != data:
                return made
        return data[: min(MOST_BYTES, len(data) - 1)]

    def _made(self, data: bytes, rng: random.Random) -> bytes:
        made = self._changed(data, rng)
        return tabled(rng, made) if rng.random() < _TABLED else made

    def _changed(self, data: bytes, rng: random.Random) -> bytes:
        if rng.random() < _REFRAMED:
            return reframe(rng, data)
        tape = self._document(data) or rng.choice(self._others).copied()
        made, _ = mutate(rng, tape, self._others)
        found = encoded(made, fits=rng.random() < 0.9)
        return reframe(rng, found) if rng.random() < _REFRAMED / 2 else found

    def _document(self, data: bytes) -> TapeDocument | None:
        """The document of a tape, for the caller to change; None if it has none."""
        if data not in self._parsed:
            found = document_of(data, "corpus")
            self._parsed[data] = None if found is None else pickle.dumps(found)
            if len(self._parsed) > _KEPT:
                self._parsed.popitem(last=False)
            return found
        known = self._parsed[data]
        if known is None:
            return None
        document: TapeDocument = pickle.loads(known)  # our own bytes
        return document
