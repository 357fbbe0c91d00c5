"""Mutants below right checksums: ``TapeError`` or an answer, at once and in little memory, and
nothing raw on a terminal. ``make fuzz`` reads as many as one likes."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from calltape_analyzer import TapeError, open_tape
from calltape_schema.groups import opened
from calltape_schema.packing import open_envelope
from calltape_schema.tar import MANIFEST, is_group, members
from tests.fixture_files import FIXTURES
from tests.fuzz.campaign import Campaign
from tests.fuzz.documents import encoded
from tests.fuzz.framing import joined, split
from tests.fuzz.guidance import has_atheris
from tests.fuzz.mutator import CORPUS, MOST_BYTES, Mutator, seeds, subjects
from tests.fuzz.questions import read_a_copy, read_some, warm_up
from tests.fuzz.tables import tabled
from tests.fuzz.tally import Tally
from tests.fuzz.target import OTHER


def mutants(seed: int, count: int) -> list[bytes]:
    rng, mutator = random.Random(seed), Mutator()
    return [mutator.mutant(rng.choice(seeds()), rng) for _ in range(count)]


def test_a_tape_that_was_taken_apart_reads_the_same(tmp_path: Path) -> None:
    for tape in subjects():
        path = tmp_path / f"{tape.name}.tape"
        path.write_bytes(encoded(tape))
        with open_tape(path) as made, open_tape(FIXTURES / "v1" / path.name) as golden:
            if golden.verify() == []:
                assert made.verify() == []
                assert len(made) == len(golden)
                assert made.coverage == golden.coverage
            if golden.damage == [] and golden.calls.has_single_calls:
                for one, other in zip(made, golden, strict=True):
                    assert repr(one.record.inputs) == repr(other.record.inputs)  # NaN, too


@pytest.mark.parametrize("name", ["calls-nested-cache", "calls-pad", "dropped_calls", "unsealed"])
def test_members_that_were_split_are_joined_again(tmp_path: Path, name: str) -> None:
    data = (FIXTURES / "v1" / f"{name}.tape").read_bytes()
    made = joined(split(data), sealed=name != "unsealed")
    # A member that is no regular file is not listed, so that the others move, and the index too.
    assert (made == data) is (name != "calls-pad")
    path = tmp_path / "joined.tape"
    path.write_bytes(made)
    with open_tape(path) as tape:
        assert tape.verify() == []
        assert len(tape) == 3


def test_unchanged_tapes_have_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    warm_up()
    for tape in subjects()[::40]:
        path.write_bytes(encoded(tape))
        assert read_some(path, path, random.Random(0), 3).findings == []


def test_mutants_are_the_same_for_the_same_seed() -> None:
    made = mutants(7, 30)
    assert made == mutants(7, 30)
    assert len(set(made)) > 25
    assert max(map(len, made)) <= MOST_BYTES


def test_a_mutant_is_not_its_seed() -> None:
    """A change that changed nothing was read and counted, one of eight."""
    rng, mutator = random.Random(2), Mutator()
    for seed in (rng.choice(seeds()) for _ in range(100)):
        assert mutator.mutant(seed, rng) != seed


def test_mutants_have_tables(tmp_path: Path) -> None:
    """Some are true, so that the analysis answers from them, and some lie or break the format."""
    path, found, rng = tmp_path / "mutant.tape", Counter[str](), random.Random(4)
    for tape in subjects()[::2]:
        data = encoded(tape)
        path.write_bytes(tabled(rng, data))
        with open_tape(path) as made:
            if made.segments[0].unscanned_end is None:
                found["refused" if tape.end is not None else "unsealed"] += 1
                continue
            with contextlib.suppress(TapeError):
                _ = made.single.findings
            is_used = made.segments[0].unscanned_end is not None
            found["used" if is_used else "broken"] += 1
            found["true" if not made.verify() else "a lie"] += 1
    assert min(found[one] for one in ("used", "refused", "broken", "true", "a lie")) > 0, found


def test_checksums_of_mutants_are_right() -> None:
    """What readers refuse at once, at a checksum, tests little. Some lie in the envelope on
    purpose."""
    found = Counter(checksums_hold(data) for data in mutants(3, 100))
    assert found[True] > 90


def checksums_hold(data: bytes) -> bool:
    damage: list[TapeError] = []
    for member in members(lambda at, size: data[at : at + size], len(data), damage.append):
        if member.name.endswith(".msgpack") and member.name != MANIFEST:
            try:
                content = data[member.start : member.start + member.size]
                if is_group(member.name):
                    opened(content, member.offset)
                else:
                    open_envelope(content)
            except TapeError as error:
                damage.append(error)
    return not any("checksum" in error.reason for error in damage)


@pytest.mark.integration
def test_some_mutants_raise_no_findings(tmp_path: Path) -> None:
    tally, path, rng = Tally(), tmp_path / "mutant.tape", random.Random(0)
    for number, data in enumerate(mutants(0, 25)):
        path.write_bytes(data)
        tally.add(str(number), read_some(path, OTHER, rng, 2))
    assert tally.findings == {}, "\n".join(tally.lines())
    # They do harm, and not only one kind of it.
    assert tally.kinds["invalid"] > 5
    assert tally.kinds["inference"] > 2


def test_the_corpus_is_small_and_reads_without_findings(tmp_path: Path) -> None:
    paths = sorted(CORPUS.glob("*.tape"))
    assert paths
    assert sum(path.stat().st_size for path in paths) < 500 * 1024
    tally, rng = Tally(), random.Random(1)
    for path in rng.sample(paths, min(10, len(paths))):
        tally.add(path.name, read_some(path, OTHER, rng, 1))
    assert tally.findings == {}, "\n".join(tally.lines())


@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_the_whole_corpus_raises_no_findings(tmp_path: Path) -> None:
    read_a_copy(OTHER, OTHER, tmp_path)  # imports are no tape's
    tally = Tally()
    for path in sorted(CORPUS.glob("*.tape")):
        tally.add(path.name, read_a_copy(path, OTHER, tmp_path))
    assert tally.findings == {}, "\n".join(tally.lines())


@pytest.mark.integration
@pytest.mark.timeout(7200)
@pytest.mark.slow
def test_a_campaign_raises_no_findings(tmp_path: Path) -> None:
    """As ``make fuzz`` does, which has another seed each time. By default it reads a number of
    mutants: a fast machine would read further, and fail where a slow one did not come to.
    ``CALLTAPE_FUZZ_SECONDS`` says how long instead."""
    asked = os.environ.get("CALLTAPE_FUZZ_SECONDS")
    began = len(seeds())
    tally = Campaign(tmp_path, float(asked or 900), 0 if asked else 4000).run()
    assert tally.findings == {}, "\n".join(tally.lines())
    assert tally.mutants > began
    # What reaches something new is kept.
    assert not has_atheris() or len(list((tmp_path / "corpus").iterdir())) > began
