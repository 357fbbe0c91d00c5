"""Keys of dicts are data if they do not recur."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from calltape_schema.data_keys import KeySets


def served(calls: int, at_once: int, steps: int) -> Iterable[set[str]]:
    """The requests that an engine has in each step; each stays for some steps."""
    chance = random.Random(1)
    left: dict[str, int] = {}
    for _ in range(calls):
        left = {name: n - 1 for name, n in left.items() if n > 1}
        while len(left) < at_once:
            left[f"{chance.getrandbits(64):x}"] = chance.randint(1, steps)
        yield set(left)


DATA = {
    "each its own": [{f"id{i}"} for i in range(9)],
    "several each": [{f"{i}a", f"{i}b", f"{i}c", f"{i}d"} for i in range(9)],
    "numbers": [{10_000 + 7 * i} for i in range(20)],
    "as many as there are": [{f"{i}-{n}" for n in range(i % 5)} for i in range(30)],
    "for some steps": list(served(200, 4, 12)),
    "and one that stays for long": [found | {"long"} for found in served(200, 3, 12)],
}
STRUCTURE = {
    "always the same": [{f"layer.{i}" for i in range(50)}] * 400,
    "one of eight": [{f"kind{i % 8}"} for i in range(400)],
    "any of ten": [
        set(random.Random(i).sample("abcdefghij", random.Random(i).randint(1, 4)))
        for i in range(400)
    ],
    "some more each time": [{f"k{n}" for n in range(i)} for i in range(40)],
    "few calls": [{f"id{i}"} for i in range(8)],
}


def lasting(sets: Iterable[Iterable[object]]) -> frozenset[object] | None:
    seen = KeySets()
    for keys in sets:
        seen.add(keys)
    return seen.lasting()


@pytest.mark.parametrize("name", DATA)
def test_keys_that_go_are_data(name: str) -> None:
    found = lasting(DATA[name])
    assert found is not None
    assert found <= {"long"}
    assert lasting(reversed(DATA[name])) == found


@pytest.mark.parametrize("name", STRUCTURE)
def test_keys_that_come_back_are_structure(name: str) -> None:
    assert lasting(STRUCTURE[name]) is None


def test_names_beside_them_are_kept() -> None:
    assert lasting([{"ids", f"request {i}"} for i in range(20)]) == {"ids"}


def test_memory_is_bounded() -> None:
    seen = KeySets()
    added = [seen.add({i}) for i in range(3000)]
    assert added == [True] * 1024 + [False] * 1976
