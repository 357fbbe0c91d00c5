"""No message of the command names an option of Python's.

A message that names one is a :class:`~calltape_schema.remedies.Remedy`, which has words for both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import calltape_analyzer
import calltape_schema
from calltape_analyzer.limits import advice_to_allow
from calltape_schema.remedies import told_to
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape

PYTHON = re.compile(
    r"(?<![-\w.])[a-z_]{2,}=(?:True|False|None|\.\.\.|['\"\[{(\d]|\)|$|,)"
    r"|\b(?:open_tape|load_programs|export|recordings|minimise|survey)\("
    r"|remove_inputs|tape\.only|tape\.variants"
)
"""``overwrite=True``, ``classes=[``, ``max_memory=)``, or a function."""

REMEDIES = ("Remedy", "advice_to_allow")
"""What takes the words of Python first."""

OF_PYTHON = {
    "scripting.py": "writes Python",
    "pytest_plugin.py": "is used in Python",
    "testing/": "is used in Python",
    "observer/": "is used in Python",
    "targets/": "is used in Python",
    "program_source.py": "shapes and arguments are asked for in Python",
    "variant.py": "one variant is asked for in Python",
    "programs/programs.py": "programs are installed in Python",
    "progress.py": "HTML of notebooks",
    "pytree/rendering.py": "a repr",
    "cli/viewing.py": "HTTP",
    "exporting/onnx/translations.py": "options of torch",
    "exporting/onnx/conversion.py": "options of torch",
}
"""Files whose texts the command does not print as messages."""
OF_ARGUMENTS = {
    "tape.py": 4, "opening.py": 1, "exporting/export.py": 4, "exporting/parts.py": 2,
    "replaying/replaying.py": 1, "programs/untrusted_files.py": 2,
    "explaining.py": 1,
}  # fmt: skip
"""Files that check arguments of functions, which the command never passes so; how many texts."""


def texts_of(path: Path) -> Iterator[tuple[ast.AST, str, bool]]:
    """The texts of a file but docstrings, and whether each is within a remedy."""
    tree = ast.parse(path.read_text())
    skipped, remedies, parts = set[int](), set[int](), set[int]()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr):
                skipped.add(id(one.value))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in REMEDIES:
            remedies |= {id(below) for below in ast.walk(node.args[0])}
        if isinstance(node, ast.JoinedStr):
            parts |= {id(one) for one in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped or id(node) in parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, node.value, id(node) in remedies
        if isinstance(node, ast.JoinedStr):
            own = [str(one.value) if isinstance(one, ast.Constant) else "1" for one in node.values]
            yield node, "".join(own), id(node) in remedies


def test_an_option_of_python_stands_in_a_remedy() -> None:
    found: dict[str, list[str]] = {}
    remedies = 0
    for package in (calltape_analyzer, calltape_schema):
        root = Path(package.__file__).parent
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if any(name.startswith(one) for one in OF_PYTHON):
                continue
            for node, text, is_remedy in texts_of(path):
                remedies += is_remedy
                if PYTHON.search(text) and not is_remedy:
                    found.setdefault(name, []).append(f"{node.lineno}: {text[:80]}")  # type: ignore[attr-defined]
    assert remedies > 20
    assert {name: len(texts) for name, texts in found.items()} == OF_ARGUMENTS, found


class Model(torch.nn.Module):
    def forward(self, x, n=0):
        return x


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    calls = [Recorded((torch.ones(1, n),), outputs=torch.ones(1, n)) for n in (3, 4)]
    return write_tape(tmp_path / "a.tape", calls, target=Model())


def test_the_command_advises_force_for_a_file_that_is_there(tape: Path, tmp_path: Path) -> None:
    for words in (("merge", tape), ("filter", tape), ("redact", tape), ("table", tape)):
        out = tmp_path / "b.csv" if words[0] == "table" else tmp_path / "b.tape"
        out.touch()
        code, _, err = run(*words, "-o", out)
        assert code == 1
        assert "pass --force to replace what is there" in err
        assert not PYTHON.search(err)


def test_the_command_advises_trust_for_a_program(tape: Path, tmp_path: Path) -> None:
    (tmp_path / "a.pt2").write_bytes(b"PK")
    err = run("replay", tape, tmp_path / "a.pt2").err
    assert "pass --trust" in err
    assert not PYTHON.search(err)


def test_the_command_advises_its_own_option_for_tapes_of_several_models(
    tape: Path, tmp_path: Path
) -> None:
    write_tape(tmp_path / "c.tape", [Recorded((torch.ones(2),))], target=torch.nn.Linear(2, 2))
    err = run("ls", tape, tmp_path / "c.tape").err
    assert "Choose one of them with --target" in err
    assert not PYTHON.search(err)


def test_info_advises_no_python(tape: Path) -> None:
    for words in (("info",), ("info", "--json")):
        out = run(words[0], tape, *words[1:]).out
        assert "record a batch of 2 or more" in out.lower()
        assert not PYTHON.search(out)


def test_the_advice_to_raise_a_limit_depends_on_the_caller(tape: Path) -> None:
    with told_to("command"):
        text = str(advice_to_allow("seconds=600", "--max-seconds 600"))
    assert text.endswith("allow more: `calltape --max-seconds 600 ...`")
    assert "Limits(seconds=600)" in str(advice_to_allow("seconds=600", "--max-seconds 600"))


def test_python_keeps_its_words(tape: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.tape"
    out.touch()
    with calltape_analyzer.open_tape(tape) as opened:
        text = str(calltape_analyzer.diagnose(opened))
        with pytest.raises(calltape_analyzer.TapeError, match="overwrite=True"):
            calltape_analyzer.merge_tapes(opened, out)
    assert "set_batch_dimension_for=True" in text
