"""What may be private is found, and told without its value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import UsageError, open_tape, private_data, redact
from calltape_recorder import When, record
from calltape_schema.remedies import told_to
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.changes import flip, member_list
from tests.unpacked import readable


class Model(torch.nn.Module):
    def forward(self, ids: Any, **more: Any) -> Any:
        if more.get("fail"):
            raise ValueError("secret message")
        return ids


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = Model()
    with record(model, tmp_path / "a.tape", keep=When(lambda args, kwargs: True)) as recorder:
        for number in range(3):
            model(
                torch.randint(100, 900, (2, 5 + number)), prompt="a secret prompt",
                image=torch.rand(1, 3, 20, 20), sound=torch.rand(1, 5000),
                users={"bob@example.com": 1}, numbers=list(range(12)),
            )  # fmt: skip
            recorder.flush()  # each has a group
        with pytest.raises(ValueError, match="secret"):
            model(torch.ones(1), fail=True)
    return tmp_path / "a.tape"


def test_each_kind_is_found(source: Path) -> None:
    with open_tape(source) as tape:
        private = private_data(tape)
    places = {(finding.kind, finding.place): finding.calls for finding in private.findings}
    assert places["token_ids", "ids"] == 3
    assert places["text", "prompt"] == 3
    assert places["image", "image"] == 3
    assert places["audio", "sound"] == 3
    assert places["key", "users"] == 3
    assert places["long_list", "numbers"] == 3
    assert places["exception", None] == 1
    assert {kind for kind, place in places if place is None} == {
        "exception", "thread", "time", "module", "policy"
    }  # fmt: skip
    assert "secret prompt" not in str(private)
    assert "bob" not in str(private)


def test_the_most_harmful_comes_first(source: Path) -> None:
    """However short the summary, texts, keys and errors are in it."""
    with open_tape(source) as tape:
        private = private_data(tape)
    text = private.short(1)
    assert text is not None
    assert text.startswith("text at prompt (3 calls); a key that looks like data at users")
    assert text.index("the message of an exception") < text.index(" and ")
    kinds = [line.partition(" at ")[0].partition(":")[0] for line in str(private).splitlines()]
    assert kinds.index("text") < kinds.index("values of a tensor") < kinds.index("ids of threads")


def test_what_stays_is_named_once(source: Path) -> None:
    with open_tape(source) as tape:
        (line,) = [
            str(finding) for finding in private_data(tape).findings if finding.kind == "module"
        ]
    assert line.startswith("names of modules and classes: they stay, because they say")
    assert line.count("names of modules") == 1


def test_a_mask_holds_no_token_ids(tmp_path: Path) -> None:
    model = Model()
    with record(model, tmp_path / "a.tape"):
        model(torch.tensor([[7, 300, 41]]), mask=torch.tensor([[0, 1, 1]]))
    with open_tape(tmp_path / "a.tape") as tape:
        kinds = {finding.place: finding.kind for finding in private_data(tape).findings}
    assert (kinds["ids"], kinds["mask"]) == ("token_ids", "values")


def test_calls_are_listed_one_by_one(source: Path) -> None:
    with open_tape(source) as tape:
        addresses = [call.address for call in tape.calls]
        private = private_data(tape, by_call=True)
    prompts = [finding.call for finding in private.findings if finding.kind == "text"]
    assert prompts == addresses[:3]


def test_advice_is_a_sentence_whatever_the_argument_is_called(tmp_path: Path) -> None:
    calls = [Recorded((), {"n": 123_456_789, "t": "a text", "call": [7_000_000, 8_000_000]})]
    write_tape(tmp_path / "a.tape", calls)
    with open_tape(tmp_path / "a.tape") as tape:
        text = str(private_data(tape))
    assert (
        "at n (1 call): `calltape redact` takes it out; record with values={'n': 'none'} to never "
        "write it." in text
    )
    assert "replaces it; record with values={'t': 'none'} to never write it." in text
    assert "call.* (2 of them) (1 call): `calltape redact` takes it out" in text


def test_keys_that_look_like_data_are_not_told(tmp_path: Path) -> None:
    users = {"bob@example.com": {"age": 41_041, 123_456_789: "a text"}, "plain": torch.ones(2)}
    write_tape(tmp_path / "a.tape", [Recorded((), {"users": users, "my name": "a text"})])
    with open_tape(tmp_path / "a.tape") as tape:
        told = str(private_data(tape))
        texts = [told, str(private_data(tape, by_call=True)), private_data(tape).model_dump_json()]
    printed = json.loads(run("info", tmp_path / "a.tape", "--json").out)["private"]
    for text in (*texts, json.dumps(printed)):
        assert not [secret for secret in ("bob", "123", "my name") if secret in text]
    assert "text at users.*.* (1 call)" in told
    assert "at users.*.age (1 call)" in told
    assert "values={'users': 'none'}" in told, "a pattern would not withhold the number"
    assert "values of a tensor at users.plain" in told


def test_a_place_in_several_calls_has_its_name_in_each(source: Path) -> None:
    with open_tape(source) as tape:
        assert "again" not in str(private_data(tape, by_call=True))


def test_nothing_of_it_is_left_in_a_redacted_tape(source: Path, tmp_path: Path) -> None:
    with open_tape(source) as tape:
        redact(tape, tmp_path / "b.tape")
    with open_tape(tmp_path / "b.tape") as tape:
        private = private_data(tape)
    assert private.redacted
    assert {finding.kind for finding in private.findings} == {"module"}


def test_info_and_redact_say_what_is_private(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.tape"
    told = run("info", str(source))
    assert told.code == 0
    (line,) = (one for one in told.out.splitlines() if one.startswith("private "))
    assert "text at prompt (3 calls)" in line
    assert "secret" not in line
    assert line.endswith("`calltape redact` makes a tape that can be given away")
    found = json.loads(run("info", str(source), "--json").out)["private"]["findings"]
    with open_tape(source) as tape, told_to("command"):
        assert found == [one.model_dump() for one in private_data(tape).findings]
    result = run("redact", str(source), "-o", str(out), "--keep", "nothing")
    assert result.code == 0
    assert "note: no value has a path like nothing" in result.out
    assert b"secret" not in readable(out.read_bytes())
    assert "it is there already" in run("redact", str(source), "-o", str(out)).err
    (line,) = (one for one in run("info", out).out.splitlines() if one.startswith("private "))
    assert "The tape was redacted" in line


def test_what_the_range_of_few_numbers_tells_is_said(tmp_path: Path) -> None:
    """Of a prompt of two tokens, it is the prompt; of a thousand it tells little, and of positions
    nothing."""
    ids = {"few": torch.tensor([[4021, 31337]]), "many": torch.arange(2000, 5000)[None]}
    call = Recorded((), {**ids, "places": torch.arange(9)})
    out = tmp_path / "b.tape"
    with open_tape(write_tape(tmp_path / "a.tape", [call])) as tape:
        notes = redact(tape, out).notes
        (note,) = (one for one in notes if "smallest" in one)
        assert note.startswith("the smallest and the largest of few numbers stay, at few;")
        report = redact(tape, out, shapes_only="kwargs.few", overwrite=True)
    assert not any("smallest" in one for one in report.notes)
    with open_tape(out) as tape:
        assert {one.leaf for one in tape.calls[0].record.inputs.ranges} == {1, 2}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("a secret", "text"),
        (torch.arange(9).reshape(1, 9), "token_ids"),
        (torch.zeros(2, 3, 32, 32), "image"),
        (torch.zeros(32, 32, 3), "image"),
        (torch.zeros(1, 16000), "audio"),
    ],
)
def test_values_are_private_by_dtype_and_shape(tmp_path: Path, value: Any, kind: str) -> None:
    def kinds(name: str, **options: Any) -> set[str]:
        given = [Recorded(args=(value,), outputs=None)]
        with open_tape(write_tape(tmp_path / name, given, **options)) as tape:
            return {finding.kind for finding in private_data(tape).findings}

    assert kind in kinds("a.tape")
    assert "host" in kinds("h.tape", producer={"host": "secret"})
    if isinstance(value, torch.Tensor):
        assert kind not in kinds("b.tape", values="none")


def test_a_damaged_call_is_left_out(source: Path) -> None:
    group = next(
        member for member in member_list(source) if member.name == "records/00000001.msgpack"
    )
    flip(source, group.start + group.size // 2)
    with open_tape(source) as tape:
        assert private_data(tape).calls == 3
    assert run("info", source).code == 3


def test_only_tapes_have_private_data() -> None:
    with pytest.raises(UsageError):
        private_data("a.tape")  # type: ignore[arg-type]
