"""The public names of a module as Markdown: signatures, docstrings, and links between them.

A docstring is written for Sphinx: roles (``:class:`Tape```), literals in two backticks, and
sections (``Args:``, ``Attributes:``, ``Returns:``, ``Raises:``). Out comes Markdown that GitHub
shows as well as the site. A role that names nothing is an error.

Tried instead: autodoc with sphinx-markdown-builder 0.6. It puts a whole signature in a heading, of
1,312 columns for ``Options``, and has no tables of contents.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

__all__ = ["PAGES", "api_page"]

PAGES = {
    "calltape_recorder": "recorder.md",
    "calltape_analyzer": "analyzer.md",
    "calltape_analyzer.targets": "targets.md",
    "calltape_analyzer.converting": "converting.md",
    "calltape_analyzer.testing": "testing.md",
    "calltape_schema": "schema.md",
}
"""By module, its page."""

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):$", re.MULTILINE)
_TITLES = {"Args": "Arguments", "Attributes": "Attributes", "Returns": "Returns"}
_ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")
_ROLE = re.compile(r":(?:py:)?(?:class|func|meth|attr|mod|data|exc|obj):`([^`]+)`")
_INLINE = re.compile(rf"{_ROLE.pattern}|``(.+?)``|`([^`]+)`", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[^.])\.(?= |$)")
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*]*[^\s*])\*(?![\w*])")
_WIDTH = 88
_MORE = {
    "calltape_analyzer": "Modules for single subjects: [targets](targets.md), "
    "[converting](converting.md), [testing](testing.md).",
    "calltape_analyzer.testing": "[How to test with tapes](../testing.md).",
}
"""By module, links below its description."""


class _Member(NamedTuple):
    """A member of a class.

    Attributes:
        name: of it.
        kind: ``method``, ``property``, ``class method`` or ``static method``.
        function: what has its signature and docstring.
    """

    name: str
    kind: str
    function: Any


class _Context(NamedTuple):
    """Where a docstring stands: roles in it are read from there."""

    page: str
    module: str
    owner: type | None = None


def api_page(module_name: str) -> str:
    """The page of a module."""
    module = importlib.import_module(module_name)
    page = PAGES[module_name]
    here = _Context(page, module_name)
    functions = {n: v for n, v in _listed(module).items() if inspect.isroutine(v)}
    classes = {n: v for n, v in _listed(module).items() if inspect.isclass(v)}
    errors = {n: v for n, v in classes.items() if issubclass(v, BaseException)}
    classes = {n: v for n, v in classes.items() if n not in errors}
    parts = [f"# {module_name}", _markdown(inspect.getdoc(module) or "", here)]
    parts.append(_MORE.get(module_name, ""))
    for title, values in (("function", functions), ("class", classes), ("error", errors)):
        if values:
            parts.append(_table(title, values, here))
    for values in (functions, classes, errors):
        for name, value in values.items():
            if _homes()[_identity(value)].page == page:
                describe = _class if inspect.isclass(value) else _function
                parts += describe(name, value, here)
    return "\n\n".join(part for part in parts if part) + "\n"


def _listed(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in sorted(module.__all__, key=str.lower)}


def _table(title: str, values: Mapping[str, Any], here: _Context) -> str:
    rows = []
    for name, value in values.items():
        text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
        sentence = _SENTENCE_END.split(text)[0].rstrip(":")
        cell = _inline(sentence, _Context(here.page, value.__module__)).replace("|", r"\|")
        rows.append(f"| [`{name}`]({_homes()[_identity(value)].link(here.page)}) | {cell} |")
    return "\n".join([f"| {title} | |", "| --- | --- |", *rows])


# --- where names stand --------------------------------------------------------------------------


class _Home(NamedTuple):
    """Where something is described."""

    page: str
    anchor: str

    def link(self, page: str) -> str:
        return f"#{self.anchor}" if page == self.page else f"{self.page}#{self.anchor}"


def _identity(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


@functools.cache
def _homes() -> dict[str, _Home]:
    """By the identity of a function or class, and by ``Class.member``, where it is described. What
    several modules list is described on the page of the last one in PAGES that is not nested: a
    package, if it lists it."""
    owners: dict[str, str] = {}
    for module_name in sorted(PAGES, key=lambda name: name.count("."), reverse=True):
        for value in _described_values(module_name):
            owners[_identity(value)] = module_name
    found: dict[str, _Home] = {}
    for module_name, page in PAGES.items():
        taken: dict[str, int] = {}
        _anchor(module_name, taken)
        for value in _described_values(module_name):
            if owners[_identity(value)] != module_name:
                continue
            found[_identity(value)] = _Home(page, _anchor(value.__name__, taken))
            for member in _members(value) if inspect.isclass(value) else ():
                key = f"{_identity(value)}.{member.name}"
                found[key] = _Home(page, _anchor(f"{value.__name__}.{member.name}", taken))
    return found


def _described_values(module_name: str) -> list[Any]:
    """The functions, the classes and the errors of a module, in the order of its page."""
    values = _listed(importlib.import_module(module_name)).values()
    found = [value for value in values if inspect.isclass(value) or inspect.isroutine(value)]
    return sorted(found, key=lambda value: (inspect.isclass(value), _is_error(value)))


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _anchor(heading: str, taken: dict[str, int]) -> str:
    """The anchor that GitHub and MyST give a heading."""
    plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    count = taken.get(plain, 0)
    taken[plain] = count + 1
    return f"{plain}-{count}" if count else plain


# --- functions and classes ----------------------------------------------------------------------


def _function(name: str, function: Any, here: _Context) -> list[str]:
    inside = _Context(here.page, function.__module__)
    return [f"## {name}", _code(_call_form(name, function)), _described(function, function, inside)]


def _class(name: str, cls: type, here: _Context) -> list[str]:
    inside = _Context(here.page, cls.__module__, cls)
    doc = inspect.getdoc(cls) if cls.__doc__ else ""
    has_fields = re.search(r"^Attributes:$", doc or "", re.MULTILINE)
    is_built = re.search(r"^Args:$", doc or "", re.MULTILINE) or (
        (dataclasses.is_dataclass(cls) or _is_error(cls)) and not has_fields
    )
    form = f"class {name}"
    if is_built and (signature := _signature(cls)) is not None:
        form = _call_form(form, cls, signature)
    bases = [
        f"[`{base.__name__}`]({_homes()[_identity(base)].link(here.page)})"
        for base in cls.__mro__[1:]
        if _identity(base) in _homes()
    ]
    parts = [f"## {name}", _code(form)]
    if bases:
        parts.append(f"Base class: {bases[0]}.")
    parts.append(_markdown(doc or "", inside, _types_of(cls)))
    parts.append(_fields(cls, doc or "", inside, is_built=bool(is_built)))
    for member in _members(cls):
        parts += _member(name, member, inside)
    return parts


def _member(owner: str, member: _Member, here: _Context) -> list[str]:
    heading = f"### {owner}.{member.name}"
    if member.kind == "property":
        returns = _annotation(inspect.signature(member.function).return_annotation)
        form = f"{member.name}: {returns}" if returns else member.name
        return [heading, _code(form), _described(member.function, None, here)]
    form = _call_form(member.name, member.function)
    if member.kind != "method":
        form = f"@{member.kind.replace(' ', '')}\n{form}"
    return [heading, _code(form), _described(member.function, member.function, here)]


def _members(cls: type) -> list[_Member]:
    """Public members, in the order of the source: those of the class, and of its bases that are
    ours and not described themselves."""
    found: dict[str, _Member] = {}
    for base in cls.__mro__:
        is_described = base is not cls and _is_listed(base)
        if is_described or not base.__module__.startswith("calltape_"):
            continue
        for name, value in vars(base).items():
            member = _as_member(name, value)
            if member is not None and name not in found and member.function.__doc__:
                found[name] = member
    return list(found.values())


@functools.cache
def _listed_classes() -> frozenset[type]:
    modules = map(importlib.import_module, PAGES)
    return frozenset(v for m in modules for v in _listed(m).values() if inspect.isclass(v))


def _is_listed(cls: type) -> bool:
    return cls in _listed_classes()


def _as_member(name: str, value: Any) -> _Member | None:
    if name.startswith("_"):
        return None
    if isinstance(value, property):
        return _Member(name, "property", value.fget)
    if isinstance(value, functools.cached_property):
        return _Member(name, "property", value.func)
    if isinstance(value, classmethod):
        return _Member(name, "class method", value.__func__)
    if isinstance(value, staticmethod):
        return _Member(name, "static method", value.__func__)
    return _Member(name, "method", value) if inspect.isfunction(value) else None


def _described(function: Any, returning: Any, here: _Context) -> str:
    """The docstring of a function. If it has no section about it, what is returned is linked."""
    doc = inspect.getdoc(function) or ""
    text = _markdown(doc, here)
    if returning is None or re.search(r"^Returns:$", doc, re.MULTILINE):
        return text
    annotation = _annotation(inspect.signature(function).return_annotation)
    linked = _linked_type(annotation, here)
    if "](" not in linked:
        return text
    before, raises, after = text.partition("\n\n**Raises**")
    return f"{before}\n\n**Returns** {linked}{raises}{after}"


# --- fields -------------------------------------------------------------------------------------


def _types_of(cls: type) -> dict[str, str]:
    """The annotations of a class and its bases that are ours, as they are written."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("calltape_"):
            own = vars(base).get("__annotations__", {})
            found |= {name: _annotation(kind) for name, kind in own.items()}
    return {
        name: kind
        for name, kind in found.items()
        if not name.startswith("_") and not kind.startswith("ClassVar")
    }


def _fields(cls: type, doc: str, here: _Context, *, is_built: bool) -> str:
    """A list of the fields that the docstring does not describe: with the text that stands below
    each in the source, if there is one."""
    told = _field_docs(cls)
    described = {
        name for _, body in _sections(doc) for entry in _entries(body) for name in entry[0]
    }
    types = _types_of(cls)
    names = [n for n in types if n not in described and not (is_built and n not in told)]
    if not names:
        return ""
    rows = []
    for name in names:
        text = _inline(" ".join(told.get(name, "").split()), here)
        kind = _linked_type(types[name], here)
        rows.append(f"- `{name}` ({kind}){': ' if text else ''}{text}")
    return "**Fields**\n\n" + "\n".join(rows)


def _field_docs(cls: type) -> dict[str, str]:
    """By field, the text that stands below it in the source."""
    try:
        [body] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, doc in zip(body.body, body.body[1:], strict=False):
        is_text = isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = str(doc.value.value)
    return found


# --- signatures ---------------------------------------------------------------------------------


def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _call_form(name: str, function: Any, signature: inspect.Signature | None = None) -> str:
    """A signature as the source has it; a long one with a line for each parameter."""
    found = signature or inspect.signature(function)
    shown: list[str] = []
    before: Any = None
    for one in found.parameters.values():
        if one.name in ("self", "cls") and not shown:
            continue
        if before is one.POSITIONAL_ONLY and one.kind is not before:
            shown.append("/")
        is_first_keyword = one.kind is one.KEYWORD_ONLY and before is not one.KEYWORD_ONLY
        if is_first_keyword and before is not one.VAR_POSITIONAL:
            shown.append("*")
        shown.append(_parameter(one))
        before = one.kind
    if before is inspect.Parameter.POSITIONAL_ONLY:
        shown.append("/")
    returns = "" if inspect.isclass(function) else _annotation(found.return_annotation)
    after = f" -> {returns}" if returns else ""
    short = f"{name}({', '.join(shown)}){after}"
    if len(short) <= _WIDTH:
        return short
    return "\n".join([f"{name}(", *(f"    {one}," for one in shown), f"){after}"])


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = _annotation(one.annotation)
    text = f"{stars}{one.name}{f': {kind}' if kind else ''}"
    if one.default is one.empty:
        return text
    return f"{text} = {_default(one.default)}" if kind else f"{text}={_default(one.default)}"


def _default(value: Any) -> str:
    """A default as people write it: no address of an object, and a class by its name."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(value.__name__)
    text = repr(value)
    return "..." if text.startswith("<") else text


def _annotation(annotation: Any) -> str:
    if annotation in (inspect.Parameter.empty, None):
        return ""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        return _without_rules(re.sub(r"^Maybe\[(.*)\]$", r"\1 | None", annotation))
    return inspect.formatannotation(annotation).replace("typing.", "")


def _without_rules(annotation: str) -> str:
    """``str`` of ``Annotated[str, Field(max_length=64)]``."""
    begin, before, rest = annotation.partition("Annotated[")
    if not before:
        return annotation
    depth = 0
    ends = []  # of the type, and of all
    for at, character in enumerate(rest):
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(character, 0)
        if (character == "," and depth == 0 and not ends) or depth < 0:
            ends.append(at)
        if depth < 0:
            break
    return _without_rules(f"{begin}{rest[: ends[0]]}{rest[ends[-1] + 1 :]}")


# --- docstrings ---------------------------------------------------------------------------------


def _markdown(doc: str, here: _Context, types: Mapping[str, str] = {}) -> str:
    """A docstring as Markdown.

    Args:
        doc: the cleaned docstring.
        here: where it stands.
        types: by name, the types of what a section ``Attributes:`` describes.
    """
    parts = []
    for title, body in _sections(doc):
        if not title:
            parts.append(_paragraphs(body, here))
        elif title == "Returns":
            parts.append(f"**Returns** {_paragraphs(body, here)}")
        else:
            rows = []
            for names, text in _entries(body):
                shown = ", ".join(_error_link(one, here) if title == "Raises" else f"`{one}`"
                                  for one in names)  # fmt: skip
                kinds = dict.fromkeys(types[one] for one in names if one in types)
                kind = f" ({', '.join(_linked_type(one, here) for one in kinds)})" if kinds else ""
                rows.append(f"- {shown}{kind}: {_inline(text, here, indent=2)}")
            parts.append(f"**{_TITLES.get(title, title)}**\n\n" + "\n".join(rows))
    return "\n\n".join(part for part in parts if part)


def _sections(doc: str) -> Iterator[tuple[str, str]]:
    """The text, with an empty title, and the sections with theirs."""
    text, *rest = _SECTION.split(doc)
    yield "", text.strip()
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        own, _, after = re.sub(r"\n(?=\S)", "\n\0", body.strip("\n")).partition("\n\0")
        yield title, textwrap.dedent(own).strip()
        if after.replace("\0", "").strip():
            yield "", after.replace("\0", "").strip()


def _entries(body: str) -> Iterator[tuple[list[str], str]]:
    """The names of a section, and what is said of them."""
    for entry in re.split(r"\n(?=\S)", body):
        found = _ENTRY.match(entry)
        if found is not None:
            yield found[1].split(", "), textwrap.dedent(" " * 4 + entry[found.end() :])


def _paragraphs(text: str, here: _Context) -> str:
    parts = []
    for block in re.split(r"\n\n+(?! )", text):
        before, colons, code = block.partition("::\n\n")
        if not colons:
            parts.append(_inline(block, here))
            continue
        if before.strip():
            parts.append(_inline(f"{before}:", here))
        code_lines, rest = _indented(code)
        is_shell = code_lines.startswith(("calltape", "$", "python "))
        parts.append(_code(code_lines, "sh" if is_shell else "python"))
        if rest:
            parts.append(_inline(rest, here))
    return "\n\n".join(part for part in parts if part)


def _indented(text: str) -> tuple[str, str]:
    """The indented lines at the begin of a text, and the rest of it."""
    lines = text.split("\n")
    end = next((at for at, one in enumerate(lines) if one and not one.startswith(" ")), len(lines))
    return textwrap.dedent("\n".join(lines[:end])).strip("\n"), "\n".join(lines[end:]).strip()


def _inline(text: str, here: _Context, *, indent: int = 0) -> str:
    """Text with roles and literals, as Markdown."""
    parts, end = [], 0
    for found in _INLINE.finditer(text):
        parts.append(_escaped(text[end : found.start()]))
        role, literal, other = found.groups()
        if role is not None:
            parts.append(_linked(" ".join(role.split()), here))
        else:
            parts.append(_literal(" ".join((literal or other).split())))
        end = found.end()
    parts.append(_escaped(text[end:]))
    lines = [line.strip() if indent else line.rstrip() for line in "".join(parts).split("\n")]
    return f"\n{' ' * indent}".join(line for line in lines if line or not indent)


def _escaped(text: str) -> str:
    plain = re.sub(r"([<\[\]]|_(?=_)|(?<=_)_)", r"\\\1", text)
    parts = _EMPHASIS.split(plain)  # every other part is emphasized
    return "".join(f"*{p}*" if at % 2 else p.replace("*", r"\*") for at, p in enumerate(parts))


def _literal(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


# --- links --------------------------------------------------------------------------------------


def _linked(role: str, here: _Context) -> str:
    """What a role names, as a link if it is described on one of the pages.

    Raises:
        ValueError: there is nothing of this name.
    """
    shown, _, target = role.rpartition(" <")
    target = target.removesuffix(">")
    short = target.rpartition(".")[2] if target.startswith("~") else target
    target = target.lstrip("~.")
    label = f"`{shown or short.lstrip('.')}`"
    value, owner = _value_of(target, here)
    if value is None and owner is None:
        raise ValueError(f"a docstring in {here.module} names {target!r}, which is not there")
    home = None
    if owner is not None:
        member = target.rpartition(".")[2]
        home = _homes().get(f"{_identity(owner)}.{member}") or _homes().get(_identity(owner))
    elif inspect.isclass(value) or inspect.isroutine(value):
        home = _homes().get(_identity(value))
    return label if home is None else f"[{label}]({home.link(here.page)})"


def _value_of(name: str, here: _Context) -> tuple[Any, type | None]:
    """What a name means where it stands, and the class that it is a member of."""
    if here.owner is not None and "." not in name and _has_member(here.owner, name):
        return None, here.owner
    modules = [here.module, *PAGES, "builtins"]
    for module_name in modules:
        value, owner = _attribute(importlib.import_module(module_name), name.split("."))
        if value is not None or owner is not None:
            return value, owner
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:split]))
        except ImportError:
            continue
        return (module, None) if split == len(parts) else _attribute(module, parts[split:])
    return None, None


def _attribute(value: Any, parts: list[str]) -> tuple[Any, type | None]:
    for at, part in enumerate(parts):
        is_last = at + 1 == len(parts)
        if is_last and inspect.isclass(value) and _has_member(value, part):
            return None, value
        value = getattr(value, part, None)
        if value is None:
            return None, None
    return value, None


def _has_member(cls: type, name: str) -> bool:
    if hasattr(cls, name) or any(name in vars(b).get("__annotations__", {}) for b in cls.__mro__):
        return True
    doc = inspect.getdoc(cls) or ""
    return (
        re.search(rf"^    (?:\w+, )*{re.escape(name)}(?:, \w+)*: ", doc, re.MULTILINE) is not None
    )


def _error_link(name: str, here: _Context) -> str:
    for module_name in (here.module, *PAGES):
        value = getattr(importlib.import_module(module_name), name, None)
        if value is not None and _identity(value) in _homes():
            return f"[`{name}`]({_homes()[_identity(value)].link(here.page)})"
    return f"`{name}`"


@functools.cache
def _public() -> dict[str, Any]:
    """The listed classes by name. Two of one name would be a riddle for readers too."""
    return {cls.__name__: cls for cls in _listed_classes()}


def _linked_type(annotation: str, here: _Context) -> str:
    """A type as text in which the listed classes are links."""
    if not annotation:
        return ""
    words = re.split(r"([A-Za-z_][\w.]*)", annotation)
    if not any(word in _public() for word in words):
        return _literal(annotation)
    shown = []
    for word in words:
        if word in _public():
            home = _homes()[_identity(_public()[word])]
            shown.append(f"[{word}]({home.link(here.page)})")
        else:
            shown.append(_escaped(word))
    return "".join(shown)
