"""What commands print of directories with many tapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape

DAY = 86_400


def calls(numbers: list[int]) -> list[Recorded]:
    return [Recorded(args=(torch.zeros(n % 7 + 1, 3),), number=n) for n in numbers]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    for number, (folder, some, sealed) in enumerate(
        [("a", [0, 2, DAY], True), ("b", [1, 3], False)]
    ):
        (root / folder).mkdir(parents=True)
        write_tape(
            root / folder / "x.tape", calls(some), target=torch.nn.Linear(1, 1),
            tape_id=bytes([number + 1] * 16), sealed=sealed, table=sealed,
        )  # fmt: skip
    return root


@pytest.fixture
def mixed(runs: Path) -> Path:
    write_tape(runs / "relu.tape", calls([0]), target=torch.nn.ReLU(), tape_id=b"r" * 16)
    return runs


def test_ls_has_a_file_column_and_one_order_in_time(runs: Path) -> None:
    shown = run("ls", runs)
    assert shown.code == 0
    head, *lines = shown.out.splitlines()
    assert head.split()[:5] == ["call", "at", "s", "ms", "file"]
    assert [line.split()[:4] for line in lines] == [
        ["01010101:0", "0.000", "1.500", "a/x.tape"],
        ["02020202:1", "1.000", "1.500", "b/x.tape"],
        ["01010101:2", "2.000", "1.500", "a/x.tape"],
        ["02020202:3", "3.000", "1.500", "b/x.tape"],
        ["01010101:86400", "86400.000", "1.500", "a/x.tape"],
    ]
    paths = [row["path"] for row in json.loads(run("ls", runs, "--json").out)]
    assert [Path(path).parent.name for path in paths] == ["a", "b", "a", "b", "a"]


def test_ls_of_one_file_has_no_file_column(runs: Path) -> None:
    assert "file" not in run("ls", runs / "a" / "x.tape").out


def test_show_says_the_file(runs: Path) -> None:
    assert f"of {runs}/b/x.tape" in run("show", runs, "02020202:3").out.splitlines()[0]


def test_info_names_the_unsealed_file(runs: Path) -> None:
    shown = run("info", runs)
    assert (
        "sealed     no: b/x.tape begun 2023-11-14T22:13:20.000Z, still recording, killed"
        in shown.out
    )
    quick = json.loads(run("info", runs, "--quick", "--json").out)
    assert quick["unsealed"] == [f"{runs}/b/x.tape"]


def test_info_of_several_targets_lists_them(mixed: Path) -> None:
    shown = run("info", mixed)
    assert shown.code == 0
    head, linear, relu = shown.out.splitlines()[0], *shown.out.splitlines()[2:0:-1]
    assert head.startswith("target ")
    name = "torch.nn.modules.linear:Linear.forward"
    assert linear.split()[:6] == [name, "2", "2", "folders", "2", "5"]
    assert relu.split() == [
        "torch.nn.modules.activation:ReLU.forward", "1", "1", "folder", "1", "1", "2023-11-14",
        "2023-11-14", "yes", "0",
    ]  # fmt: skip
    assert "--target NAME" in shown.out
    document = json.loads(run("info", mixed, "--json").out)
    assert [row["calls"] for row in document["recordings"]] == [3, 2, 1]
    assert [row["sealed"] for row in document["recordings"]] == [True, False, True]


def test_info_of_several_targets_tells_damage(mixed: Path) -> None:
    (mixed / "broken.tape").write_bytes(b"x" * 2000)
    shown = run("info", mixed)
    assert shown.code == 3
    assert "broken.tape" in shown.err


@pytest.mark.parametrize(
    "words",
    [
        ("info",), ("ls",), ("show", "02020202:3"), ("variants",), ("variants", "--python"),
        ("explain", "input"),
    ],
)  # fmt: skip
def test_every_command_takes_a_target(mixed: Path, words: tuple[str, ...]) -> None:
    command, *more = words
    shown = run(command, mixed, *more, "--target", "Linear")
    assert shown.code == 0, shown
    refused = run(command, mixed, *more, "--target", "Llama")
    assert refused.code == 2
    assert "ReLU.forward" in refused.err
    if command != "info":
        refused = run(command, mixed, *more)
        assert refused.code == 1
        assert "--target" in refused.err


def test_commands_that_write_take_a_target(mixed: Path, tmp_path: Path) -> None:
    for command in ("merge", "filter", "recover", "redact"):
        out = tmp_path / f"{command}.tape"
        shown = run(command, mixed, "--target", "ReLU", "-o", out)
        assert shown.code == 0, shown
        assert run("ls", out).code == 0
    shown = run("diff", mixed, mixed, "--target", "ReLU")
    assert shown.code == 0, shown


def test_folders_are_no_hosts(mixed: Path) -> None:
    """Only what a tape says is a host; the folder of a file that says none counts as a folder."""
    write_tape(
        mixed / "a" / "named.tape", calls([7]), target=torch.nn.ReLU(), tape_id=b"n" * 16,
        producer={"host": "gpu-7"},
    )  # fmt: skip
    _, relu, linear, *_ = run("info", mixed).out.splitlines()
    assert "  2 folders  " in linear
    assert "  1, 1 folder  " in relu
