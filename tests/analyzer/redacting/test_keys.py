"""A key decides what stands for a value. One under which the result would be wrong is not used."""

from __future__ import annotations

import itertools
import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calltape_analyzer import RedactionError, Variant, open_tape, redact
from calltape_analyzer.redacting import keyed_redaction, redaction
from calltape_analyzer.redacting.tape_words import ordered_keys
from calltape_recorder import record
from calltape_schema.privacy import is_name
from tests.analyzer.cli.commands import run
from tests.analyzer.redacting.random_calls import written
from tests.fixture_files import FIXTURES
from tests.unpacked import readable

Patch = pytest.MonkeyPatch
_KEY = 32


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two calls with numbers that have nothing to do with sizes. What stands for them may have."""
    calls: list[Any] = [
        ((torch.ones(size, 3),), {"more": [number] * 9}) for size, number in ((8, 4), (9, 6))
    ]
    return written(tmp_path / "a.tape", calls)


def of_numbers(patch: Patch, numbers: Iterator[int]) -> None:
    """The next keys follow from these numbers."""
    others = secrets.token_bytes

    def token_bytes(size: int) -> bytes:
        return next(numbers).to_bytes(size, "big") if size == _KEY else others(size)

    patch.setattr(secrets, "token_bytes", token_bytes)


def is_refused(source: Path, number: int) -> bool:
    """Whether nothing is written under one key."""
    result = source.with_name("try.tape")
    with pytest.MonkeyPatch.context() as patch, open_tape(source) as tape:
        patch.setattr(redaction, "_MAX_KEYS", 1)
        of_numbers(patch, iter([number]))
        try:
            redact(tape, result, overwrite=True)
        except RedactionError:
            return True
    return False


def test_another_key_is_tried(source: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    refused = {number: is_refused(source, number) for number in range(40)}
    bad = [number for number, is_bad in refused.items() if is_bad]
    assert 0 < len(bad) < len(refused), "it depends on the key"
    good = next(number for number in refused if number not in bad)
    of_numbers(monkeypatch, iter([bad[0], bad[1], good]))
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")
    assert sorted(os.listdir(tmp_path)) == ["a.tape", "b.tape", "try.tape"]


def test_it_ends(source: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    bad = next(number for number in itertools.count() if is_refused(source, number))
    given = itertools.count()
    keys = (bad for _ in given)
    of_numbers(monkeypatch, keys)
    with open_tape(source) as tape:
        with pytest.raises(RedactionError):
            redact(tape, tmp_path / "b.tape")
        assert next(given) == 2, "the second key has the same difference"
        monkeypatch.setattr(redaction, "_SAME", 99)
        with pytest.raises(RedactionError):
            redact(tape, tmp_path / "b.tape")
        assert next(given) == 3 + 6
        monkeypatch.setattr(redaction, "_MAX_SECONDS", 0.0)
        with pytest.raises(RedactionError):
            redact(tape, tmp_path / "b.tape")
        assert next(given) == 10 + 1, "one more"
    assert not (tmp_path / "b.tape").exists()


def test_a_number_that_is_kept_beside_equal_ones_that_are_not(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(redaction, "_MAX_KEYS", 1)
    with open_tape(FIXTURES / "v1" / "containers.tape") as tape:
        for number in range(20):
            redact(tape, tmp_path / f"{number}.tape", keep="args.0.0.0")


class Model(torch.nn.Module):
    def forward(self, ids: Any, **more: Any) -> Any:
        return ids


def recorded(path: Path, *calls: dict[str, Any]) -> Path:
    model = Model()
    with record(model, path):
        for one in calls:
            model(**one)
    return path


def _ids(number: int, count: int) -> list[int]:
    """Numbers without an order."""
    return random.Random(number).sample(range(2000, 50_000), count)


def test_a_list_that_is_long_in_some_calls_beside_equal_numbers(tmp_path: Path) -> None:
    """Its numbers are data in all calls: elsewhere equal ones are others too."""
    calls = []
    for number in range(24):
        ids = _ids(number, number % 6 + 6)
        one = {"ids": torch.ones(number % 5 + 1), "given": ids, "table": {"a": tuple(ids[:6])}}
        calls.append(one)
    source = recorded(tmp_path / "a.tape", *calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")
    same = 0
    with open_tape(tmp_path / "b.tape") as tape:
        for call, one in zip(tape.calls, calls, strict=True):
            assert call.inputs.kwargs["given"][:6] == list(call.inputs.kwargs["table"]["a"])
            same += len(set(call.inputs.kwargs["given"]) & set(one["given"]))
    assert same < 6, "by chance one may be among the others; one list that stays has six"


def test_keys_of_numbers_keep_their_order(tmp_path: Path) -> None:
    """The names of variants follow it, and each call has other keys here."""
    calls = []
    for number in range(24):
        ids = _ids(number, 12)
        table = {tuple(ids[:6]): torch.ones(6), tuple(ids[6:]): torch.ones(number % 2 + 1)}
        more = {ids[0]: 1, -ids[1]: 2, (ids[2], "a text", 7): 3}
        calls.append({"ids": torch.ones(number % 5 + 1), "table": table, "more": more})
    source = recorded(tmp_path / "a.tape", *calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")
    data = readable((tmp_path / "b.tape").read_bytes())
    assert b"a text" not in data


def test_a_size_that_is_also_a_key(tmp_path: Path) -> None:
    calls = [{"ids": torch.ones(5000), "table": {5000: torch.ones(rows)}} for rows in (3, 4, 5)]
    source = recorded(tmp_path / "a.tape", *calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")


_INTS = st.integers(-5000, 5000) | st.integers(-(10**12), 10**12)
_PARTS = _INTS | st.sampled_from(["a", "ab", "a text", "b1"])


@given(st.lists(_PARTS | st.tuples(_PARTS, _PARTS), unique_by=repr, max_size=40))
def test_new_keys_have_the_order_of_the_old_ones(keys: list[Any]) -> None:
    parts = dict.fromkeys(
        part for key in keys for part in (key if isinstance(key, tuple) else (key,))
    )
    names = ordered_keys(parts)

    def made(key: Any) -> Any:
        if isinstance(key, tuple):
            return tuple(names.get(part, part) for part in key)
        return names.get(key, key)

    assert sorted(map(made, keys), key=repr) == [made(key) for key in sorted(keys, key=repr)]
    assert all(is_name(part) is (part not in names) for part in parts)
    assert not any(map(is_name, names.values()))
    assert len(set(names.values())) == len(names)


def test_advice_that_works(tmp_path: Path) -> None:
    """What stands for floats has no order, so that a tape with such keys may say something else."""
    calls = [
        {"ids": torch.ones(2), "table": {key + 0.5: torch.ones(key % 3 + 1) for key in ids}}
        for ids in (_ids(number, 4) for number in range(8))
    ]
    source = recorded(tmp_path / "a.tape", *calls)
    refused = run("redact", source, "-o", tmp_path / "b.tape")
    assert refused.code == 1
    assert "the dicts whose keys were (table.*) in `--keep`" in refused.err
    assert run("redact", source, "-o", tmp_path / "b.tape", "--keep", "table.*").code == 0


def test_advice_for_numbers_that_works(tmp_path: Path) -> None:
    """Sizes have to do with them."""
    calls = [
        {"ids": torch.ones(number + 1), "given": list(range(number + 1000, number + 1010))}
        for number in range(12)
    ]
    source = recorded(tmp_path / "a.tape", *calls)
    refused = run("redact", source, "-o", tmp_path / "b.tape")
    assert refused.code == 1
    assert "the numbers at given.*. Name these paths with `--keep`" in refused.err
    assert run("redact", source, "-o", tmp_path / "b.tape", "--keep", "given.*").code == 0
    assert run("redact", source, "-o", tmp_path / "c.tape", "--shapes-only", "given.*").code == 0


def test_a_row_that_is_kept_at_another_path(tmp_path: Path) -> None:
    """It is on the new tape, because somebody wants it there."""
    ids = torch.tensor([[700, 30_000, 412, 5]])
    source = recorded(
        tmp_path / "a.tape",
        {"ids": ids, "labels": ids.clone(), "text": "a long text", "title": "a long text, once"},
    )
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape", keep=["ids", "title"])
    data = (tmp_path / "b.tape").read_bytes()
    assert data.count(ids.numpy().tobytes()) == 1


def test_names_of_arguments_that_are_no_identifiers(tmp_path: Path) -> None:
    """They are keys of a dict for Python (``f(**{"my name": 1})``), and have pseudonyms."""
    names = ("my name", "\x1b[31mred", "new\nline", "[bold]", "漢字😀", "a.b", "x=1", "")
    values = {name: torch.zeros(2) if name < "b" else 3 for name in names}
    calls = ({"ids": torch.zeros(2 + rows, 8), **values} for rows in range(3))
    source = recorded(tmp_path / "a.tape", *calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")
    data = (tmp_path / "b.tape").read_bytes()
    assert not [name for name in names if len(name) > 4 and name.encode() in data]
    with open_tape(tmp_path / "b.tape") as tape:
        assert len(tape.calls[0].inputs.kwargs) == 1 + len(names)


@pytest.mark.parametrize("key", ["my name", "1", 4041, "a.b c", "présent"])
def test_symbols_and_variants_that_are_named_after_keys(key: str | int, tmp_path: Path) -> None:
    """A size that varies by itself is a symbol, and a key that not all calls have is a variant:
    both have names that are made of the key."""
    calls: list[dict[str, Any]] = [
        {"ids": torch.zeros(2, 3 + 2 * number), "meta": {key: torch.zeros(9 - number**2 % 5)}}
        for number in range(4)
    ]
    calls.append({"ids": torch.zeros(2, 1), "meta": {}})
    if isinstance(key, str):
        calls.append({"ids": torch.zeros(2, 1), key: torch.zeros(4)})
        calls.append({"ids": torch.zeros(2, 6), key: torch.zeros(1)})
    source = recorded(tmp_path / "a.tape", *calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")
        before = [_numbered_shapes(one) for one in tape.variants()]
    with open_tape(tmp_path / "b.tape") as tape:
        assert [_numbered_shapes(one) for one in tape.variants()] == before


@pytest.mark.parametrize(
    "keys",
    [("a", "a b"), ("1", "1 1"), ("(0)", "()"), ("[]", "a"), ("no a", "a b"), ("'", '"')],
)
def test_keys_that_begin_alike_or_look_like_something_else(
    keys: tuple[str, str], tmp_path: Path
) -> None:
    calls = []
    for number in range(3):
        few = {keys[0]: torch.zeros(5 + number**2)}
        more = {keys[1]: torch.zeros(9 - number), keys[0]: torch.zeros(9 - number, 1)}
        calls += [{"ids": torch.zeros(2, 3 + number), **one} for one in (few, more)]
        calls += [{"ids": torch.zeros(2, 3 + number), "meta": one} for one in (few, more)]
    source = recorded(tmp_path / "a.tape", *calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")


@pytest.mark.parametrize("keys", [(";", ":"), ("a b", "a,b"), ("a b", "a-b"), ("é b", "à b")])
def test_keys_that_are_spelt_alike_in_names_of_symbols(
    keys: tuple[str, str], tmp_path: Path
) -> None:
    """In one variant both, which get numbers; and each in another one, which get the same name."""
    calls: list[dict[str, Any]] = []
    for number in range(3):
        ids, one, other = (torch.zeros(n) for n in (3 + number, 9 - number, 4 + number**2))
        calls += [{"ids": ids, "meta": {keys[0]: one}}, {"ids": ids, "meta": {keys[1]: other}}]
        calls.append({"ids": ids, "meta": {keys[0]: other, keys[1]: one, "more": ids}})
    source = recorded(tmp_path / "a.tape", *calls)
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")


# Whole numbers among keys do not keep their order, which answers may follow. A dot may be one
# between the parts of a path.
KEYS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=4),
    min_size=1, max_size=3, unique=True,
)  # fmt: skip
SIZES = st.lists(st.integers(1, 9), min_size=6, max_size=6)


@settings(max_examples=15)
@given(KEYS, st.lists(SIZES, min_size=1, max_size=5), st.booleans())
def test_any_keys_of_tensors(
    tmp_path_factory: pytest.TempPathFactory, keys: list[Any], sizes: list[list[int]], named: bool
) -> None:
    calls = []
    for rows, columns, *others in sizes:
        tensors = {k: torch.zeros(n) for k, n in zip(keys, others, strict=False) if n != 9}
        ids = torch.zeros(rows, columns)
        if named:
            texts = {f"{k}": one for k, one in tensors.items() if k not in ("ids", "self", "m")}
            calls.append({"ids": ids, **texts})
        else:
            calls.append({"ids": ids, "meta": tensors})
    folder = tmp_path_factory.mktemp("keys")
    source = recorded(folder / "a.tape", *calls)
    with open_tape(source) as tape:
        redact(tape, folder / "b.tape")  # which compares the answers


def _numbered_shapes(variant: Variant) -> list[list[Any]]:
    """The shapes of a variant, with symbols by their number."""
    findings = variant.findings
    numbers: dict[str, int] = {}
    return [
        [
            axis if isinstance(axis, int) else f"<{numbers.setdefault(str(axis), len(numbers))}>"
            for axis in one.shape
        ]
        for one in findings.tensors
    ]


def test_a_refusal_names_the_argument(tmp_path: Path, monkeypatch: Patch) -> None:
    """By the name that the old tape has: it is what ``keep`` takes."""
    answers = keyed_redaction.Comparison.answers

    def other(self: Any, tape: Any, *, is_new: bool) -> Any:
        found = answers(self, tape, is_new=is_new)
        return {asked: is_new if asked.number else one for asked, one in found.items()}

    monkeypatch.setattr(keyed_redaction.Comparison, "answers", other)
    source = recorded(tmp_path / "a.tape", {"ids": torch.zeros(2), "my name": torch.zeros(3)})
    with open_tape(source) as tape, pytest.raises(RedactionError, match="tensor my name"):
        redact(tape, tmp_path / "b.tape")


class Traffic(torch.nn.Module):
    def forward(
        self, x: Any = None, mask: Any = None, ids: Any = None, meta: Any = None, prompt: str = "",
        account: int = 0,
    ) -> Any:  # fmt: skip
        return x


def of_traffic(path: Path, calls: list[dict[str, Any]]) -> Path:
    model = Traffic()
    with record(model, path):
        for one in calls:
            model(**one)
    return path


@pytest.mark.parametrize(
    "calls",
    [
        [
            {"x": torch.ones(3 + i), "account": account, "meta": {f"alice {i}": 123_456 + i}}
            for i, account in enumerate((4_915_112_345_678, 4_916_098_761_234))
        ],
        [
            {
                "x": torch.ones(3 + i),
                "ids": [4000 + j * 37 + i * 13 for j in range(5)],
                "meta": {f"user {i:04d}": 123_456},
            }
            for i in range(4)
        ],
        [
            {"ids": [4000 + j * 37 + i * 13 for j in range(5)], "meta": {f"u {i:04d}": 123_456 + i}}
            for i in range(4)
        ],
    ],
    ids=["few", "rows", "no tensor"],
)
def test_numbers_at_keys_that_are_data_do_not_stay(
    calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    """That their keys have pseudonyms was taken for a difference that the numbers make."""
    source = of_traffic(tmp_path / "a.tape", calls)
    report = redact(open_tape(source), tmp_path / "b.tape")
    assert not [note for note in report.notes if "may be data and stay" in note]
    old = [number for one in calls for number in _numbers_of(one)]
    with open_tape(tmp_path / "b.tape") as tape:
        new = [n for call in tape for n in _numbers_of(dict(call.inputs.kwargs))]
    assert len(new) == len(old)
    same = sum(one == other for one, other in zip(old, new, strict=True))
    assert same <= len(old) // 4, "by chance a number stands for itself"


def _numbers_of(call: dict[str, Any]) -> list[int]:
    meta = call.get("meta") or {}
    account = [call["account"]] if call.get("account") else []
    return [*(call.get("ids") or []), *meta.values(), *account]


@pytest.mark.parametrize("what", ["texts", "masks"])
def test_several_recordings_become_one(what: str, tmp_path: Path) -> None:
    """Their calls have other numbers and another order then."""
    x = torch.ones
    calls: dict[str, list[list[dict[str, Any]]]] = {
        "texts": [[{"x": x(3 + i), "prompt": f"user {i}"} for i in range(3)]] * 2,
        "masks": [
            [{"x": x(3 + i), "mask": x(3 + i)} for i in range(3)],
            [{"x": x(2 + i)} for i in range(3)],
        ],
    }
    paths = [of_traffic(tmp_path / f"{n}.tape", one) for n, one in enumerate(calls[what])]
    with open_tape(paths) as tape:
        assert redact(tape, tmp_path / "b.tape").calls == 6
