"""Code decides on facts, and reads no sentence that code wrote.

The wings below are searched for comparisons of what people read with literals, constants and
patterns; everything else for comparisons of anything with literals of two words or more. Texts of
others (torch, ONNX Runtime) are read in ``foreign_errors`` alone.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import pickle
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import calltape_analyzer
import calltape_recorder
import calltape_schema
from calltape_analyzer import wording
from calltape_analyzer.facts import (
    MAX_TEXT,
    Fact,
    Note,
    Other,
    OtherNote,
    Rejection,
    fact_document,
)
from calltape_analyzer.programs.notes import ByValues, OneSize
from calltape_analyzer.programs.reasons import Because, ByTrace, OtherSize, Why

SOURCE = Path(calltape_analyzer.__file__).parent
EVERYTHING = (
    SOURCE,
    Path(calltape_recorder.__file__).parent,
    Path(calltape_schema.__file__).parent,
)
SEARCHED = (
    "programs", "exporting", "replaying", "comparison", "observer", "testing",
    "cli/exports.py", "cli/replays.py",
)  # fmt: skip
READ = frozenset({
    "advice", "all_notes", "cause", "doubt", "error", "fact", "found_error", "lack", "message",
    "missing", "note", "notes", "reason", "reasons", "refusal", "rejection", "remark", "remarks",
    "said", "summary", "untried", "unverified", "what", "why", "words",
})  # fmt: skip
"""What holds facts, or sentences."""
METHODS = frozenset({
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix",
    "rpartition", "split", "startswith",
})  # fmt: skip
PATTERNS = frozenset({"findall", "finditer", "fullmatch", "match", "search", "split", "sub"})


def name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


class Reading(ast.NodeVisitor):
    """Finds where sentences are read."""

    def __init__(self) -> None:
        self.found: list[int] = []
        self._texts: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = self._texts
        self._texts = set(before)
        for one in ast.walk(node):
            if isinstance(one, ast.Assign | ast.AnnAssign | ast.NamedExpr) and one.value:
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                if self.is_read(one.value):
                    self._texts |= {name_of(target) for target in targets}
            if isinstance(one, ast.For | ast.comprehension) and self.is_read(one.iter):
                self._texts.add(name_of(one.target))
        self.generic_visit(node)
        self._texts = before

    def is_read(self, node: ast.AST) -> bool:
        """Whether an expression is a fact, or a sentence."""
        if isinstance(node, ast.Name | ast.Attribute):
            name = name_of(node)
            return name in READ or (isinstance(node, ast.Name) and name in self._texts)
        if isinstance(node, ast.Call) and name_of(node.func) in ("str", "repr", "format"):
            return any(map(self.is_read, node.args))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return node.func.attr in ("lower", "strip", "values") and self.is_read(node.func.value)
        if isinstance(node, ast.JoinedStr):
            values = (value.value for value in node.values if isinstance(value, ast.FormattedValue))
            return any(map(self.is_read, values))
        if isinstance(node, ast.BoolOp):
            return any(map(self.is_read, node.values))
        return isinstance(node, ast.Subscript) and self.is_read(node.value)

    def is_text(self, node: ast.AST) -> bool:
        """Whether an expression is a literal text, or a constant."""
        if isinstance(node, ast.Tuple | ast.Set | ast.List):
            return any(map(self.is_text, node.elts))
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and bool(node.value)
        return isinstance(node, ast.JoinedStr) or self.is_constant(node)

    @staticmethod
    def is_constant(node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id.isupper()

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        is_compared = all(
            isinstance(op, ast.In | ast.NotIn | ast.Eq | ast.NotEq) for op in node.ops
        )
        if is_compared and any(map(self.is_read, sides)) and any(map(self.is_text, sides)):
            self.found.append(node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            owner, method = node.func.value, node.func.attr
            is_pattern = name_of(owner) == "re" or self.is_constant(owner)
            # Without arguments, split() only joins lines.
            if (method in METHODS and node.args and self.is_read(owner)) or (
                method in PATTERNS and is_pattern and any(map(self.is_read, node.args))
            ):
                self.found.append(node.lineno)
        self.generic_visit(node)


def readings(source: str) -> list[int]:
    reading = Reading()
    reading.visit(ast.parse(source))
    return reading.found


def files() -> Iterator[Path]:
    for name in SEARCHED:
        path = SOURCE / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def test_no_code_reads_what_code_wrote() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in files()
        for line in readings(path.read_text())
    ]
    assert not found


TWO_WORDS = re.compile(r"[a-z,:] [a-z]")
MAY_READ = {"foreign_errors.py", "verbs.py", "privacy.py"}
"""Texts of other libraries (``verbs``: of typer, before anything is imported), and the form that
the format has for a text of which only the length is left."""


def compared_sentences(source: str) -> list[int]:
    """The lines where anything is compared with a literal of two words or more, or searched for
    one."""

    def is_sentence(node: ast.AST) -> bool:
        if isinstance(node, ast.Tuple | ast.Set | ast.List | ast.JoinedStr):
            return any(map(is_sentence, getattr(node, "elts", getattr(node, "values", ()))))
        text = getattr(node, "value", None)
        return isinstance(node, ast.Constant) and bool(TWO_WORDS.search(str(text)))

    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            sides = node.args if node.func.attr in METHODS | PATTERNS | {"compile"} else []
        else:
            continue
        found += [node.lineno] if any(map(is_sentence, sides)) else []
    return found


def test_no_sentence_is_compared_anywhere() -> None:
    found = [
        f"{path.relative_to(root)}:{line}"
        for root in EVERYTHING
        for path in sorted(root.rglob("*.py"))
        if path.name not in MAY_READ
        for line in compared_sentences(path.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        'any("always equal" in text for text in known)',
        'error.reason == f"call {number}: no such file"',
        'one.removeprefix("Value error, but")',
        'PATTERN = re.compile(r"(?P<place>.+) was left out")',
    ],
)
def test_a_compared_sentence_is_found(line: str) -> None:
    assert compared_sentences(line)


@pytest.mark.parametrize(
    "line",
    [
        "return FOR_ONE_SIZE in self.notes",
        "return any(SHARES in reason for reason in reasons.values())",
        'return (attempts[-1].error or "").startswith("IndexError")',
        "return reads(a) or PATTERN.search(a.summary)",
        'return attempt.what != "not traced"',
        "return attempt.what == NOT_TRACED",
        'return next(note for note in self.notes if " only: " in note)',
        'text = str(error)\n    return any(word in text for word in ("a", "b")) or "c" in text',
        "text = str(error)\n    return re.match(MARK, text)",
        "reason = program.rejects(row)\n    return str(reason).removeprefix(BEGIN)",
        'return f"{error}".endswith("so")',
        'return error.reason == "no such file"',
    ],
)
def test_reading_is_found(line: str) -> None:
    assert readings(f"def decide(self, attempt, error):\n    {line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "return note in self.all_notes",
        "return isinstance(reason, SharesMemory)",
        "return ErrorKind.INDEX in cause.kinds",
        "return reason is None or attempt.strategy is Strategy.PLAIN",
        'return {"reason": str(reason)}',
        'return error.kind == "invalid"',
    ],
)
def test_deciding_on_facts_is_no_reading(line: str) -> None:
    assert not readings(f"def decide(self, attempt, error):\n    {line}\n")


def test_words_are_asked_for_by_name_only() -> None:
    """The layers of pyproject.toml keep the wings below from importing them; nobody else needs
    to."""
    found = [
        path.relative_to(SOURCE)
        for path in SOURCE.rglob("*.py")
        if not {"wording", "cli"}.intersection(path.parts)
        and "calltape_analyzer.wording" in path.read_text()
    ]
    assert found == [Path("facts.py")]


# --- each kind of fact ---------------------------------------------------------------------------


def kinds() -> list[type[Fact]]:
    found, waiting = [], [Fact]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found += [kind] if kind.code else []
    return sorted(found, key=lambda kind: kind.code)


def example_of(hint: Any) -> Any:
    """A value of a field."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return example_of(args[0])
    if origin is tuple:
        return (example_of(args[0]), example_of(args[0]))
    if origin is typing.Literal:
        return args[0]
    if args:  # a union with None
        return example_of(args[0])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if isinstance(hint, type) and issubclass(hint, Fact):
        if hint.code:
            return made(hint)
        abstract = {Rejection: OtherSize("x[1]", 2, 3), Note: OneSize()}
        return abstract.get(hint, Because(Why.LATE))
    return {str: "x[1]", int: 2, float: 2.5, bool: True}[hint]


def made(kind: type[Fact]) -> Fact:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields: Any = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{field.name: example_of(hints[field.name]) for field in fields})


class Holding(BaseModel):
    fact: Fact


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.code)
def test_a_fact_has_words_and_comes_back_from_json(kind: type[Fact]) -> None:
    fact = made(kind)
    assert str(fact) == wording.in_words(fact) != ""
    assert repr(fact).startswith(f"{kind.__name__}(")
    assert pickle.loads(pickle.dumps(fact)) == fact
    assert Holding.model_validate_json(Holding(fact=fact).model_dump_json()).fact == fact
    document = fact_document(fact)
    assert (document["code"], document["text"]) == (kind.code, str(fact))


def test_each_member_of_an_enum_has_words() -> None:
    for kind in kinds():
        fact = made(kind)
        for field in vars(fact):
            value = getattr(fact, field)
            for member in type(value) if isinstance(value, enum.Enum) else ():
                assert str(dataclasses.replace(fact, **{field: member}))  # type: ignore[type-var]


class Noting(BaseModel):
    note: Note


def test_what_a_later_version_knows_is_kept_as_text() -> None:
    document = {"code": "later", "text": "it is later", "hour": 3}
    assert Holding.model_validate({"fact": document}).fact == Other("it is later")
    assert Noting.model_validate({"note": document}).note == OtherNote("it is later")
    # A reason is no note.
    late = fact_document(Because(Why.LATE))
    assert Noting.model_validate({"note": late}).note == OtherNote(str(Because(Why.LATE)))


@pytest.mark.parametrize(
    "document",
    [
        "x is 3",
        {"code": "other_size", "place": "x", "got": "many", "wanted": 3},
        {"code": "other_size", "place": "x" * (MAX_TEXT + 1), "got": 2, "wanted": 3},
        {"code": "because", "why": "weather"},
        {"code": "later"},
        {"code": "by_trace", "condition": {"code": "one_size"}},
    ],
)
def test_a_fact_of_a_stranger_is_checked(document: Any) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Holding.model_validate({"fact": document})


def test_a_note_is_a_note_or_a_remark() -> None:
    assert not OneSize().is_remark
    assert OneSize() == OneSize() != ByValues()


def test_a_rejection_names_its_dimension() -> None:
    assert ByTrace(OtherSize("x[1]", 2, 3)).dimension == "x[1]"
    assert OtherSize("n", 2, 3).dimension is None
