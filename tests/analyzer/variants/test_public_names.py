"""The public name of a variant has nothing that was passed, whatever tells variants apart."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.markdown import tape_summary
from tests.analyzer.tapes import Recorded, write_tape

PHONE = 55512345
NAMED = "quokka@example.com"


class Mode(enum.Enum):
    QUOKKA = 1
    OTHER = 2


class Model(torch.nn.Module):
    def forward(
        self, x: Any, mask: Any = None, mode: str = "quokka", n: int = PHONE, users: Any = None,
        flag: bool = False, dtype: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        return x


def t(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.zeros(shape, dtype=dtype)


PRIVATE: dict[str, list[dict[str, Any]]] = {
    "texts": [{"mode": "quokka1"}, {"mode": "quokka2"}],
    "a text like our words": [{"mode": "decode"}, {"mode": "x"}],
    "floats": [{"more": 0.55512345}, {"more": None}],
    "enums": [{"more": Mode.QUOKKA}, {"more": Mode.OTHER}],
    "keys that are numbers": [{"users": {PHONE: t(2)}}, {"users": {PHONE + 1: t(2)}}],
    "keys that are texts": [{"users": {NAMED: t(2)}}, {"users": {"a": t(2)}}],
    "keys with dots": [{"users": {"555.123.45": t(2)}}, {"users": {"a": t(2)}}],
    "keywords with dots": [{"555.123.45": t(2)}, {}],
    "keys of digits": [{"users": {str(PHONE): t(2)}}, {"users": {"a": t(2)}}],
    "keywords": [{NAMED: t(2)}, {}],
    "bytes": [{"more": b"quokka"}, {"more": b"x"}],
    "keys with brackets": [{"users": {f"u[{PHONE}]": t(2)}}, {"users": {"a": t(2)}}],
}  # fmt: skip
PUBLIC: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "an argument": ([{"users": t(2)}, {}], ["users present", "no users"]),
    "a flag": ([{"flag": True}, {"flag": False}], ["flag=True", "flag=False"]),
    "a dtype": ([{"dtype": torch.float16}, {"dtype": torch.int8}], ["dtype=float16", "dtype=int8"]),
    "a rank": ([{"users": t(2)}, {"users": t(2, 2)}], ["users of rank 1", "users of rank 2"]),
    "a key": ([{"users": {"image": t(2)}}, {"users": {"audio": t(2)}}],
              ["users.image present", "no users.image"]),
    "a position": ([{"users": [t(2)]}, {"users": [t(2), t(2)]}],
                   ["1 tensor in users", "2 tensors in users"]),
}  # fmt: skip


def written(folder: Path, given: list[dict[str, Any]]) -> Path:
    calls = [Recorded((t(size, 3),), one) for one in given for size in (2, 3)]
    return write_tape(folder / "t.tape", calls, target=Model())


@pytest.mark.parametrize("what", PRIVATE)
def test_what_was_passed_is_in_no_public_text(tmp_path: Path, what: str) -> None:
    path = written(tmp_path, PRIVATE[what])
    with open_tape(path) as tape:
        names = [variant.name for variant in tape.variants()]
        public = [variant.public_name for variant in tape.variants()]
        table = tape.to_arrow().read_all()
        texts = [*public, tape_summary(tape), str(table.column("variant").to_pylist())]
        if "key" not in what:  # docs/tables.md: they name columns
            texts.append(str(table.schema))
    assert len(names) > 1
    assert len(set(public)) == len(public)
    assert any(name.startswith("variant ") for name in public)
    for text in texts:
        for secret in ("quokka", "QUOKKA", "555123", "555.123", "example"):
            assert secret not in text, (secret, text)


def test_a_key_with_brackets_is_no_axis(tmp_path: Path) -> None:
    calls = [
        Recorded((t(size, 3),), {"users": {f"u[{PHONE}]": t(other, 3)}})
        for size, other in ((4, 4), (5, 1), (6, 6))
    ]
    with open_tape(write_tape(tmp_path / "t.tape", calls, target=Model())) as tape:
        assert tape.variants()[0].name == f"users.u[{PHONE}][0] > 1"
        assert [variant.public_name for variant in tape.variants()] == ["variant 0", "variant 1"]
        assert str(PHONE) not in tape_summary(tape)


@pytest.mark.parametrize("what", PUBLIC)
def test_what_stands_in_code_is_told(tmp_path: Path, what: str) -> None:
    given, expected = PUBLIC[what]
    with open_tape(written(tmp_path, given)) as tape:
        assert [variant.public_name for variant in tape.variants()] == expected
        assert [variant.name for variant in tape.variants()] == expected


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ({"users": {str(PHONE): 0}}, "users.?"), ({"users": {PHONE: 0}}, "users.?"),
        ({"users": {-5: 0}}, "users.?"), ({"users": {1025: 0}}, "users.?"),
        ({"users": {1024: 0}}, "users.1024"), ({"users": [0]}, "users.0"),
        ({"users": {"007": 0}}, "users.?"), ({"users": {"٣": 0}}, "users.?"),
        ({"users": {"1e9": 0}}, "users.?"), ({"users": {"k[0]": 0}}, "users.?"),
        ({"users": {5: {PHONE: {"x": 0}}}}, "users.?"),
        ({"users": [0, [0, {"keys": 0}]]}, "users.1.1.keys"),
        ({"users": {"192.168.0.17": 0}}, "users.?"), ({"users": {"a.b": 0}}, "users.a.b"),
        ({"555.123.45": 0}, "?"), ({"5.5": [0]}, "?"), ({str(PHONE): 0}, "?"),
        ({"a.192.168.0.17": 0}, "?"), ({"1025": 0}, "?"), ({"users": {"größe": 0}}, "users.größe"),
        ({"users": {"größe12345": 0}}, "users.?"),
    ],
)  # fmt: skip
def test_keys_are_written_into_paths_unambiguously(
    tmp_path: Path, argument: dict[str, Any], shown: str
) -> None:
    given = torch.utils._pytree.tree_map(lambda _: t(2), argument)
    calls = [Recorded((t(2),), given)]
    with open_tape(write_tape(tmp_path / "t.tape", calls, target=Model())) as tape:
        assert tape.variants()[0].facts.group.layout.tensors[-1].public == shown
        assert f"| `{shown}` | `float32` | `[2]` |" in tape_summary(tape)


def test_two_places_of_one_path_are_one_feature(tmp_path: Path) -> None:
    """Whether a path may be told is no part of what tells variants apart."""
    calls = [Recorded((t(2),), {"m": {"1.2": t(2)}}), Recorded((t(2),), {"m": {"1": {"2": t(2)}}})]
    with open_tape(write_tape(tmp_path / "t.tape", calls, target=Model())) as tape:
        assert not any("no m.1.2" in variant.name for variant in tape.variants())
