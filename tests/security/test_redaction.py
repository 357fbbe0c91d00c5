"""Nothing is on a redacted tape that is not on the list of what may stay.

Each of the ``attacks`` puts a secret at one place of a tape, and neither ``info`` nor ``show``
shows what stands there. The promise is that of docs/privacy.md:
whatever the format has room for, ``redact`` and ``bundle`` write no byte of it that is not listed.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import TapeError, bundle, open_tape, private_data, redact
from calltape_analyzer.errors import RedactionError
from calltape_analyzer.redacting.allowed_facts import check_file
from calltape_analyzer.redacting.allowed_trees import NotAllowedError
from calltape_analyzer.redacting.policy import Policy
from tests.analyzer.cli.commands import run
from tests.forging.documents import ForgedTape
from tests.security.attacks import ATTACKS, REJECTED, TEXT, TRACES
from tests.unpacked import readable


def traces_in(path: Path) -> list[bytes]:
    data = readable(path.read_bytes())
    return [trace for trace in TRACES if trace in data]


def forged(folder: Path, name: str, *, claims: bool = False) -> Path:
    tape = ForgedTape()
    ATTACKS[name](tape)
    if claims:
        tape.claims_to_be_redacted()
    path = folder / "a.tape"
    path.write_bytes(tape.to_bytes())
    return path


def redacted(source: Path, target: Path, **options: Any) -> None:
    with open_tape(source) as tape:
        redact(tape, target, **options)


def bundled(source: Path, target: Path) -> None:
    out = target.with_name("bug.zip")
    with open_tape(source) as tape:
        bundle(tape, out)
    with zipfile.ZipFile(out) as archive:
        target.write_bytes(archive.read("bug.tape"))


def expect(name: str, target: Path, make: Callable[[], None]) -> None:
    """Nothing of the secret is in what is made; or nothing is made."""
    if name in REJECTED:
        with contextlib.suppress(RedactionError):
            make()
        assert not target.exists() or traces_in(target) == []
        assert not list(target.parent.glob(".*"))
        return
    make()
    assert traces_in(target) == []


def test_an_honest_tape_is_read_and_redacted(tmp_path: Path) -> None:
    (tmp_path / "a.tape").write_bytes(ForgedTape().to_bytes())
    redacted(tmp_path / "a.tape", tmp_path / "b.tape")
    with open_tape(tmp_path / "b.tape", verify=True) as tape:
        assert not tape.damage
        assert tape.calls[0].inputs.kwargs["size"] == 3


def test_the_attacks_stand_in_the_tapes_that_they_forge(tmp_path: Path) -> None:
    missing = []
    for name in ATTACKS:
        path = forged(tmp_path, name)
        missing += [] if traces_in(path) else [name]
        with open_tape(path) as tape:
            tape.calls[0].check(entries=True)  # a broken call would not be on the new tape at all
    # The time of a member is in octal digits, and these say a number by their form alone.
    assert missing == ["tar: the time"]


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "redact": redacted,
    "redact of shapes only": partial(redacted, shapes_only="*"),
    "bundle": bundled,
}


@pytest.mark.parametrize(
    "way",
    ["redact", "bundle", pytest.param("redact of shapes only", marks=pytest.mark.integration)],
)
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_kept_that_is_not_listed(name: str, way: str, tmp_path: Path) -> None:
    source, target = forged(tmp_path, name), tmp_path / "b.tape"
    expect(name, target, lambda: WAYS[way](source, target))


REFERRED_TO = (
    "text of an argument", "number of an argument", "and as the argument", "value of an enum",
    ": a key", ": a field", "elements of a tensor",
)  # fmt: skip
"""What a tape that says that it was redacted may have: its calls refer to it, and show it."""


SMUGGLED = [one for one in ATTACKS if not any(part in one for part in REFERRED_TO)]


@pytest.mark.parametrize("name", SMUGGLED)
def test_a_claim_of_a_redaction_smuggles_nothing(name: str, tmp_path: Path) -> None:
    source, target = forged(tmp_path, name, claims=True), tmp_path / "b.tape"
    expect(name, target, lambda: bundled(source, target))


def test_what_a_claim_keeps_is_what_calls_refer_to(tmp_path: Path) -> None:
    source, target = forged(tmp_path, "inputs: the text of an argument", claims=True), tmp_path
    bundled(source, target / "b.tape")
    with open_tape(target / "b.tape") as tape:
        assert tape.calls[0].inputs.kwargs["note"] == TEXT
        assert tape.calls[0].inputs.args[0].tolist() == [1, 2, 3]


def test_names_that_are_none_are_rejected_by_redact(tmp_path: Path) -> None:
    """So the list of rejected attacks is no way to pass for a writer of nothing."""
    for name in sorted(REJECTED):
        source = forged(tmp_path, name)
        with pytest.raises(RedactionError):
            redacted(source, tmp_path / "b.tape")


UNUSED = [one for one in ATTACKS if "no node uses" in one and "table" not in one]


@pytest.mark.parametrize("name", UNUSED)
def test_what_nothing_refers_to_is_told(name: str, tmp_path: Path) -> None:
    source = forged(tmp_path, name)
    with open_tape(source) as tape:
        assert "unreferenced" in {finding.kind for finding in private_data(tape).findings}
    side = name.partition(":")[0]
    told = "1 scalar and 0 tensors" if "scalar" in name else "0 scalars and 1 tensor"
    result = run("show", source, "0")
    assert f"warning: nothing refers to {told} of the {side}" in result.out
    assert "values that nothing refers to" in run("info", source).out


def test_nothing_of_the_kind_is_told_of_other_tapes(tmp_path: Path) -> None:
    (tmp_path / "a.tape").write_bytes(ForgedTape().to_bytes())
    redacted(tmp_path / "a.tape", tmp_path / "b.tape", shapes_only="*")
    for name in ("a.tape", "b.tape"):
        assert "refers to" not in run("info", tmp_path / name).out
        assert "refers to" not in run("show", tmp_path / name, "0").out


# --- the check, apart from the construction --------------------------------------------------


def checked(path: Path) -> None:
    """The last step of each redaction: it reads the new tape, and knows nothing of the old one.
    Everything may stay of calls, but only what a node refers to."""
    with open_tape(path) as tape:
        signature = tape.signature
    check_file(str(path), Policy(signature, keep=["*"]))


def test_the_check_lets_a_redacted_tape_through(tmp_path: Path) -> None:
    tape = ForgedTape()
    tape.claims_to_be_redacted()
    (tmp_path / "a.tape").write_bytes(tape.to_bytes())
    checked(tmp_path / "a.tape")


UNKNOWABLE = "table: hashes from which on there was no room"
"""A hash of inputs that are not on the tape may be anything."""


@pytest.mark.parametrize("name", SMUGGLED)
def test_the_check_stops_what_the_construction_would_leave(name: str, tmp_path: Path) -> None:
    source = forged(tmp_path, name, claims=True)
    if name == UNKNOWABLE:
        checked(source)
        return
    with pytest.raises(TapeError) as error:
        checked(source)
    assert type(error.value) is NotAllowedError or name == "table: no structure"
    assert not any(trace.decode("latin-1") in str(error.value) for trace in TRACES)
