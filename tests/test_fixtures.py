"""Golden pairs: written anew byte for byte the same, and analyzed as their JSON says."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.docs.page import Page
from tests.fixture_files import FIXTURES

import generate  # isort: skip
from analysis import analyze  # isort: skip
from power_set import SWITCHES  # isort: skip

V1 = FIXTURES / "v1"
TAPES = sorted(V1.glob("*.tape"))


@pytest.mark.integration  # more than a thousand tapes
def test_generating_writes_the_same_bytes(tmp_path: Path) -> None:
    generate.write_all(tmp_path)
    for folder in ("v1", "future", "hostile", "analysis"):
        written = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        committed = {path.name: path.read_bytes() for path in (FIXTURES / folder).iterdir()}
        assert written.keys() == committed.keys()
        changed = [name for name in written if written[name] != committed[name]]
        assert changed == [], "run `make fixtures`, and look at what changed"
    assert (tmp_path / "SHA256SUMS").read_text() == (FIXTURES / "SHA256SUMS").read_text()


def test_the_suite_is_frozen() -> None:
    """Each file has the digest that is listed, and each is listed."""
    lines = (FIXTURES / "SHA256SUMS").read_text().splitlines()
    listed = {line[66:]: line[:64] for line in lines}
    there = [path for part in ("v1", "future", "hostile") for path in (FIXTURES / part).iterdir()]
    found = {
        path.relative_to(FIXTURES).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in there
    }
    assert found == listed


def test_the_generator_only_adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ("v1", "calls.json", b"one"), ("hostile", "new.tape", b"two")
    monkeypatch.setattr(generate, "suite_files", lambda: iter([first]))
    assert generate.write_all(tmp_path) == ["v1/calls.json"]
    monkeypatch.setattr(generate, "suite_files", lambda: iter([first, second]))
    assert generate.write_all(tmp_path) == ["hostile/new.tape"]
    monkeypatch.setattr(generate, "suite_files", lambda: iter([("v1", "calls.json", b"2"), second]))
    with pytest.raises(generate.FrozenError, match=r"v1/calls\.json: frozen with format version 1"):
        generate.write_all(tmp_path)
    assert (tmp_path / "v1" / "calls.json").read_bytes() == b"one"
    monkeypatch.setattr(generate, "suite_files", lambda: iter([second]))
    with pytest.raises(generate.FrozenError, match=r"v1/calls\.json"):
        generate.write_all(tmp_path)


@pytest.mark.integration
def test_generating_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    program = "import generate, hashlib; from golden import golden_tapes; print(hashlib.sha256("
    program += "b''.join([bytes(t.data) for _, t in golden_tapes()]"
    program += "+ [c for *_, c in generate.suite_files()])).hexdigest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], cwd=FIXTURES, check=True, capture_output=True,
            env={"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(digests) == 1


@pytest.mark.parametrize("path", TAPES, ids=lambda path: path.stem)
def test_analysis_is_what_the_json_says(path: Path) -> None:
    expected = json.loads((FIXTURES / "analysis" / f"{path.stem}.json").read_text())
    assert json.loads(json.dumps(analyze(path))) == expected


def test_every_feature_has_a_pair() -> None:
    chosen = itertools.product((False, True), repeat=len(SWITCHES))
    power_set = {
        "-".join(["calls", *itertools.compress(SWITCHES, switches)]) for switches in chosen
    }
    features = {path.stem for path in V1.glob("*.json")}
    assert features == {path.stem for path in TAPES}
    assert len(power_set) == 32
    assert power_set < features
    assert {"dtypes", "zero_sizes", "aliasing", "dropped_calls", "damaged_header"} < features


def test_padding_changes_nothing_but_bytes() -> None:
    padded = [path for path in TAPES if path.stem.endswith("-pad")]
    assert len(padded) == 16
    for path in padded:
        plain = path.with_name(path.name.replace("-pad", ""))
        assert path.stat().st_size > plain.stat().st_size + 4096
        told = [json.loads(one.with_suffix(".json").read_text()) for one in (path, plain)]
        for one in told:  # rows are in the order of their signatures, which are of all bytes
            one["table"]["rows"].sort(key=lambda row: row["first"])
        assert told[0] == told[1]


def test_keywords_and_positions_give_the_same_dimensions() -> None:
    for path in TAPES:
        if "-keywords" in path.stem:
            plain = path.with_name(path.name.replace("-keywords", ""))
            found = [
                json.loads((FIXTURES / "analysis" / f"{one.stem}.json").read_text())["shapes"]
                for one in (path, plain)
            ]
            assert found[0] == found[1]
            assert found[0]["x"] == "float32[2|4,3|5|7]"


def test_all_fixtures_are_small() -> None:
    """A clone fetches what zlib makes of each file. A tape is blocks of 512 bytes, mostly zeros, so
    a count of bytes as they are would weigh the zeros: the two tapes with a checksum for each MiB,
    which must be larger than that, would be a fifth of it, and are 5 KB of a clone. Each
    sentence of FORMAT.md that independent readers took in two ways has a tape of a kilobyte, so the
    limit grew from 2.0 MB with these."""
    files = [path for path in FIXTURES.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(len(zlib.compress(path.read_bytes())) for path in files) < 2_200_000


def test_each_tape_is_listed() -> None:
    text = (FIXTURES / "tapes.csv").read_text(encoding="utf-8")
    assert generate.tapes_csv() == text, "run `make fixtures`"
    rows = list(csv.DictReader(text.splitlines()))
    assert all(row["shows"] for row in rows)
    there = [path for part in ("v1", "future", "hostile") for path in (FIXTURES / part).iterdir()]
    tapes = {(path.parent.name, path.stem) for path in there if path.suffix == ".tape"}
    assert {(row["folder"], row["tape"]) for row in rows} == tapes
    assert len(rows) == len(tapes)
    hostile = {row["tape"]: row for row in rows if row["folder"] == "hostile"}
    assert hostile["tree_hint_nil"]["calls"] == "0 2"
    assert hostile["tree_hint_nil"]["damage"] == "invalid"
    assert hostile["begins_with_half"]["refused"] == "not_a_tape"


@pytest.mark.integration
def test_what_the_page_shows_is_what_the_runner_prints(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES, tmp_path / "suite", ignore=shutil.ignore_patterns("hostile"))
    page = Page(FIXTURES / "README.md")
    assert len(page.commands) == 1
    page.follow(tmp_path / "suite")
