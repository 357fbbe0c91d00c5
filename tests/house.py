"""What the code is made of, counted: ``python -m tests.house`` prints one table per question.

Lines of code have no blanks, comments and docstrings. A private function is one whose name begins
with an underscore; it has a single use if the module that defines it names it once. A test touches
what is private if it asks an object other than itself for a name with an underscore that one of the
three distributions defines, or replaces such a name with ``setattr``.
"""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.docs.words import SUBJECTS, pages, words_of

__all__ = ["code_lines", "private_functions", "private_names", "private_touches"]

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("schema", "recorder", "analyzer")

NOT_OURS = {
    "_replace", "_fields", "_asdict", "_repr_html_",
    "_pytree", "_C", "_version", "_check", "_parameters", "_buffers", "_examples",
}  # fmt: skip
"""Public names of the standard library and IPython, and names of torch, that we use as well."""

_LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def sources(distribution: str) -> list[Path]:
    return sorted((ROOT / distribution / "src").rglob("*.py"))


def code_lines(text: str) -> int:
    """How many lines of a module have code."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type not in _LAYOUT:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - set(_docstring_lines(ast.parse(text))))


def _docstring_lines(tree: ast.AST) -> Iterator[int]:
    """The lines of docstrings, and of strings that stand below an attribute to describe it."""
    for node in ast.walk(tree):
        for one in getattr(node, "body", []) if isinstance(node, _DOCUMENTED) else []:
            is_text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
            if is_text and isinstance(one.value.value, str):
                yield from range(one.lineno, (one.end_lineno or one.lineno) + 1)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_functions(path: Path) -> Counter[str]:
    """The private functions and methods of a module, and how often it uses each name."""
    tree = ast.parse(path.read_text())
    defined = {n.name for n in ast.walk(tree) if isinstance(n, _FUNCTIONS) and _is_private(n.name)}
    uses = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return Counter({name: uses[name] for name in defined})


def private_names() -> set[str]:
    """The private names that classes and modules of the three distributions have."""
    found: set[str] = set()
    for distribution in DISTRIBUTIONS:
        for path in sources(distribution):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        found.add(name)
                    case ast.ClassDef(name=name) | ast.alias(name=name):
                        found.add(name)
                    case ast.Name(id=name, ctx=ast.Store()):
                        found.add(name)
                    case ast.Attribute(attr=name, ctx=ast.Store()):
                        found.add(name)
    return {name for name in found if _is_private(name)} - NOT_OURS


def private_touches(text: str, private: set[str]) -> list[tuple[int, str]]:
    """Where a test asks an object other than itself for a private name of ours, imports it, or
    names it to ``setattr``: the line and the name."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, (*_FUNCTIONS, ast.ClassDef))}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                own.add(name)
    found: list[tuple[int, str]] = []
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if name in private and name not in own:
                found.append((node.lineno, name))
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[*_, ast.Constant(str(path)), _]
            ):
                name = path.rpartition(".")[2]
                found += [(node.lineno, name)] if name in private and name not in own else []
            case ast.ImportFrom(module=module, names=names) if (module or "").startswith(
                "calltape"
            ):
                found += [(node.lineno, one.name) for one in names if one.name in private]
    return found


def _tests() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


def main() -> None:
    print(f"{'distribution':<12}  {'lines':>7}  {'code':>7}  {'files':>5}  private, once used")
    for distribution in DISTRIBUTIONS:
        texts = [path.read_text() for path in sources(distribution)]
        lines, code = sum(t.count("\n") for t in texts), sum(map(code_lines, texts))
        uses = [n for path in sources(distribution) for n in private_functions(path).values()]
        once = f"{sum(n == 1 for n in uses)} of {len(uses)}"
        print(f"{distribution:<12}  {lines:>7,}  {code:>7,}  {len(texts):>5}  {once:>18}")
    tests = [path.read_text() for path in _tests()]
    private = private_names()
    touches = sum(len(private_touches(text, private)) for text in tests)
    print(f"\ntests: {sum(t.count(chr(10)) for t in tests):,} lines in {len(tests)} files")
    print(f"private names of ours that tests touch: {touches}")
    words = sum(words_of(page) for _, (_, own) in SUBJECTS.items() for page in pages(own))
    print(f"words in the documentation: {words:,}")


if __name__ == "__main__":
    main()
