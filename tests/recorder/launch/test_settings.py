"""What the text of settings can say: policies, sizes, durations, and each option of the
environment."""

from __future__ import annotations

import json

import pytest

from calltape_recorder import FlightRecorder, TapeError
from calltape_recorder.launch.launcher import options_in
from calltape_recorder.launch.startup.calltape_startup import split
from calltape_recorder.options import parse_options
from tests.raising import raises


@pytest.mark.parametrize(
    "text",
    [
        "every()",
        "first(10)",
        "rate(0.01, seed=7)",
        "per_second(5)",
        "per_second(0.1)",
        "novelty()",
        "novelty(growth=3.5)",
        "per_structure(3)",
        "novelty() | rate(0.01, seed=7) & per_second(5)",
        "(every() | first(3)) & per_structure(2)",
    ],
)
def test_keep_reads_what_policies_print(text: str) -> None:
    assert str(parse_options({"keep": text})["keep"]) == text


def test_keep_takes_the_names_of_the_classes_too() -> None:
    text = "Novelty()|Rate(0.01)\n & PerSecond( calls=5 )"
    assert (
        str(parse_options({"keep": text})["keep"])
        == "novelty() | rate(0.01, seed=0) & per_second(5)"
    )


@pytest.mark.parametrize(
    "text",
    ["", "every", "every()()", "rate", "rate()", "rate(0.1", "rate(2)", "rate(0.1, 2, 3)",
     "rate(0.1, seed=1, seed=2)", "rate(x=1)", "rate(*3)", "rate(True)", "rate(rate(1))",
     "first(1.5)", "first('1')", "every() and every()", "-every()", "every() + every()",
     "every(), every()", "3",
     "when(f)", "open(1)", "__import__(1)", "a.b()", "rate(a.b)", "novelty() if 1 else 2",
     "rate(" + "-" * 1500 + "1)", "(" * 1000 + "every()" + ")" * 1000, "|".join(["every()"] * 100),
     "every()" + " " * 10_000, "per_second(1e999)", "évery()", "rate(1j)"],
)  # fmt: skip
def test_keep_refuses_the_rest_with_advice(text: str) -> None:
    with raises("usage") as caught:
        parse_options({"keep": text})["keep"]
    assert caught.value.advice
    assert len(str(caught.value)) < 500


def test_sizes_and_durations_are_parsed() -> None:
    sizes = ["4096", "64MiB", "1.5GiB", "10 kb", "1tib", 7]
    assert [parse_options({"segment_bytes": size})["segment_bytes"] for size in sizes] == [
        4096, 64 << 20, 3 << 29, 10_000, 1 << 40, 7,
    ]  # fmt: skip
    durations = ["90", "1.5h", "10m", "24h", "7d", "30s", 2.5]
    assert [parse_options({"max_seconds": duration})["max_seconds"] for duration in durations] == [
        90, 5400, 600, 86400, 604800, 30, 2.5,
    ]  # fmt: skip
    for bad in ("", "1e3", "-1", "MiB", "1 2", True, 1.5, []):
        with pytest.raises(TapeError, match=r"segment_bytes=.*Write a size, such as 256MiB"):
            parse_options({"segment_bytes": bad})
    for bad in ("", "x", "-1", "nan", "inf", "1ms", "m", True, float("inf"), []):
        with pytest.raises(TapeError, match=r"max_seconds=.*Write a time, such as 90"):
            parse_options({"max_seconds": bad})


def test_the_environment_says_every_option() -> None:
    text = """
        tape=/tapes/; target=serve:model; keep=novelty() | rate(0.01); values=*:all,past.*:none;
        segment_bytes=1GiB; segment_seconds=1h; max_disk_bytes=20GiB; when_full=delete_oldest;
        control=/tapes/control.json; flight_recorder=calls=7,bytes=1MiB; write_ahead=true;
        outputs=no; max_calls=5; max_seconds=10m; max_share=1%; max_queue_bytes=64MiB;
        min_free_bytes=2GB; max_age_seconds=7d;
        via=method; method=generate; wait=1h
    """
    options = options_in(split(text))
    assert str(options.pop("keep")) == "novelty() | rate(0.01, seed=0)"
    assert options == {
        "values": {"*": "all", "past.*": "none"}, "segment_bytes": 1 << 30,
        "segment_seconds": 3600, "max_disk_bytes": 20 << 30, "when_full": "delete_oldest",
        "control": "/tapes/control.json", "flight_recorder": FlightRecorder(7, 1 << 20),
        "write_ahead": True, "outputs": False, "max_calls": 5, "max_seconds": 600,
        "max_share": 0.01, "max_age_seconds": 604_800,
        "max_queue_bytes": 64 << 20, "min_free_bytes": 2 * 10**9, "via": "method",
        "method": "generate",
    }  # fmt: skip


def test_json_says_what_the_list_cannot() -> None:
    said = {"tape": "/a;b", "values": {"x;=y": "none"}, "flight_recorder": {"calls": 3}}
    settings = split(json.dumps(said))
    assert settings["tape"] == "/a;b"
    options = options_in(settings)
    assert options["values"] == {"x;=y": "none"}
    assert options["flight_recorder"] == FlightRecorder(calls=3)


@pytest.mark.parametrize("text", ["keep", "=1", "a=1;a=2", "{", "{]", "x" * 70_000])
def test_settings_that_cannot_be_split_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        split(text)


@pytest.mark.parametrize(
    "text",
    ["nope=1", "keep=", "values=some", "values=:none", "outputs=maybe", "max_calls=-1",
     "max_calls=1.5", "flight_recorder=x=3", "flight_recorder=calls=0", "when_full=burst",
     "control=", "segment_bytes=big"],
)  # fmt: skip
def test_options_that_do_not_hold_are_named(text: str) -> None:
    with raises("usage", text.partition("=")[0]):
        options_in(split(text))
