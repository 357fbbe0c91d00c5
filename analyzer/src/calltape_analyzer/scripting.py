"""Python source that is made of a tape: a script that runs the call that failed, or exports a
recorded model and verifies the result; and dynamic shapes and arguments to paste.

You attach a script to a bug report, next to the tape. For a tape that was reduced to show a
failure, it runs all calls. Strangers will read it, so it contains the names of parameters, dtypes
and sizes, and nothing that was passed.

Nothing on a tape becomes code: paths and names become string literals in ASCII, a class is named
only if the user gave it, and what was recorded is described in one-line comments.
"""

from __future__ import annotations

import json
import keyword
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.pytree.caches import is_cache_name, is_of_cache_library
from calltape_analyzer.pytree.classes import NO_STAND_IN
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, joined
from calltape_schema.errors import TapeError
from calltape_schema.tree import CustomNode, FieldsNode, walk

if TYPE_CHECKING:
    from calltape_analyzer.observing.size_table import Column
    from calltape_analyzer.variant import Variant
    from calltape_analyzer.variants.variant_findings import DimensionFinding, VariantFindings

__all__ = ["is_factory", "literal", "part_expression", "python_of_variants", "script"]

_MAX_VARIANTS = 20
_MAX_ARGUMENTS = 40
_MAX_HELD = 3
_MAX_TEXT = 160
_MAX_NAME = 60
_MAX_STRUCTURES = 4096
_KEEP_IT = ("filter", "recover", "redact")
"""What may be done to a tape that is still about the same failure; ``merge`` adds other calls."""

_PRODUCERS = ("calltape", "torch", "python", "platform", "transformers")
_HEAD = '''\
"""{what}

Wants torch, calltape-analyzer{extras} and {needs}.
"""

{imports}

# What was recorded, according to the tape:
{facts}
TAPES = {tapes}


{build}


'''

_TAIL = """

def show_error(kind, error, trace) -> None:
    \"\"\"What an exception says may be from the tape, and is not for a terminal to obey.\"\"\"
    text = "".join(traceback.format_exception(kind, error, trace))
    print("\\n".join(map(printable, text.split("\\n"))), file=sys.stderr)


if __name__ == "__main__":
    sys.excepthook = show_error
    sys.exit(main())
"""

_EXPORTING = """\
def main() -> int:
    model = build_model()
    with open_tape(TAPES{given}) as tape:
        programs = export({part}, model, to={to})
        for attempt in programs.attempts:
            done = f"{{attempt.reproduced}} of {{attempt.tried}} sizes reproduced"
            what = f"{{attempt.variant}}: {{attempt.what}}: {{done}} {{attempt.error or ''}}"
            print(printable(what))
        for name, reason in programs.missing.items():
            print(printable(f"no program for {{name}}: {{reason}}"))
        report = programs.verify()
        print(report.table())
    return 0 if report.ok else 1
"""

_REPLAYING = """\
def main() -> int:
    model = build_model()
    with open_tape(TAPES{given}) as tape:
        part = {part}
        for call in part.calls:
            print(f"call {{call.number}}: {{render(call.inputs)}}")
            if call.record.error is not None:
                print(printable(f"it raised {{call.record.error.type}} when it was recorded"))
        report = replay(part, model{expect})
        print(report.table(every=True))
    return 0 if report.ok else 1
"""

_TO_FILL_IN = """\
# >>> To be filled in: the model that was recorded, with its weights.
def build_model() -> torch.nn.Module:
    raise SystemExit("let build_model() return the recorded model")


# <<<"""

_IMPORTED = """\
def build_model() -> torch.nn.Module:
    sys.path[:0] = [{places}]
    from {module} import {name}

    model = {made}
    return model"""


@bounded()
def script(
    tape: Tape,
    *,
    model: str | None = None,
    to: Literal["torch", "onnx"] | None = None,
    call: str | int | None = None,
    beside: bool = False,
) -> str:
    """Python source that loads the tape, builds the model, and prints what came of it.

    If a call raised, the script runs that call once more, and ends with 0 if it raises the same. Of
    a tape without such calls it exports the model, and verifies the programs. Of one that was made
    small (:func:`minimise`) it runs all calls, and ends with 1 as long as one fails. A call whose
    outcome is not on the tape only has to return. It needs torch and calltape-analyzer. Arguments
    of the model's own dataclasses and named tuples are made of these; for other classes there are
    stand-ins with the same fields (:func:`open_tape`), and the source says which libraries a model
    may need beside them.

    Args:
        tape: a tape, or a part of one; its files are named in the source as they were opened.
        model: ``package.module:factory``, a function without arguments that makes the model, or a
            module object. Without it the source has a marked function to fill in.
        to: as in :func:`calltape_analyzer.export`: the script exports the model, also if a call
            raised. By default ``"torch"`` if none did.
        call: the number or address of the call that the script is about; by default the first one
            that raised, or all calls of a tape that was made small.
        beside: whether the tape, and the model's module, lie in the folder of the script.

    Raises:
        UsageError: ``model`` or ``to`` has another form; there is no such call.
    """
    check_tape(tape, "script")
    if model is not None and not is_factory(model):
        raise UsageError(f"{model!r} is not of the form package.module:factory")
    if to not in ("torch", "onnx", None):
        raise UsageError(f"to={to!r}", advice='pass "torch" or "onnx"')
    if to is not None and call is not None:
        raise UsageError("a script exports all calls, or is about one", advice="leave out to=")
    does = _Subject.of(tape, to, call)
    address = does.address
    calls = [tape.find(address)] if address else tape.calls
    needs = _needs_of(calls)
    facts = [*_facts(tape), *does.facts]
    template = _HEAD + (_EXPORTING if does.exports else _REPLAYING) + _TAIL
    have_outcomes = all(c.record.outputs is not None or has_raised(c) for c in calls)
    expect = "recorded" if does.exports or have_outcomes else "success"
    return template.format(
        what=does.words(expect),
        extras="[onnx]" if to == "onnx" else "",
        needs=_needs(needs),
        imports=_imports(does.exports, with_os=beside or model is not None),
        facts="\n".join(f"#   {_comment(fact)}" for fact in facts),
        tapes=_texts(tape.paths, beside) + (f"\nCALL = {literal(address)}" if address else ""),
        given=", stand_ins=True" if needs.stand_ins else "",
        build=_TO_FILL_IN if model is None else _import(model, beside),
        part=part_expression(tape) if address is None else "tape.only(calls=CALL)",
        to=literal(to or "torch"),
        expect="" if expect == "recorded" else f", expect={literal(expect)}",
    )


@dataclass(frozen=True)
class _Subject:
    """What a script is about.

    Attributes:
        address: of the one call that it runs; None for all calls.
        exports: whether it exports the model, in place of running calls.
        is_small: whether it runs all calls of a tape that was made small.
        facts: what is to be said of it, in words.
    """

    address: str | None
    exports: bool = False
    is_small: bool = False
    facts: tuple[str, ...] = ()

    @classmethod
    def of(cls, tape: Tape, to: str | None, call: str | int | None) -> _Subject:
        """What was asked for, all calls of a tape that was made small, or the first call that
        raised; the export of a tape without either."""
        is_small = _is_made_small(tape)
        facts = ("made small to show a failure",) if is_small else ()
        if call is not None:
            return cls(tape.find(call).address, facts=facts)
        if is_small and to is None:
            return cls(None, is_small=True, facts=facts)
        raised = [call.address for call in tape.calls if has_raised(call)]
        if raised and to is None:
            more = (f"the first of {len(raised)} calls that raised",) if len(raised) > 1 else ()
            return cls(raised[0], facts=more)
        return cls(None, exports=True, facts=facts)

    def words(self, expect: str) -> str:
        """What the script does, and how it ends."""
        if self.exports:
            return _EXPORTS
        if self.is_small:
            return _SHOWS.format(fine=_FINE[expect])
        return _REPLAYS if expect == "recorded" else _RUNS


def _is_made_small(tape: Tape) -> bool:
    """Whether all of a tape was made small to show a failure, and is still about it."""
    if len(tape.manifests) != 1:
        return False
    verbs = [step.verb for step in tape.manifest.history or () if step.verb not in _KEEP_IT]
    return verbs[-1:] == ["minimise"]


_EXPORTS = """\
Exports a recorded model, and runs every recorded call through the result.

Ends with 0 if all of them give what was recorded."""

_REPLAYS = """\
Runs one recorded call once more.

Ends with 0 if it does what it did when it was recorded, such as to raise the same exception."""

_RUNS = """\
Runs one recorded call once more.

Ends with 0 if it returns; what it returned is not on the tape."""

_SHOWS = """\
Runs the calls of a tape that was made small to show a failure.

Ends with 1 as long as a call fails, and with 0 if {fine}."""

_FINE = {"recorded": "all do what was recorded", "success": "all return"}


def _imports(exports: bool, *, with_os: bool) -> str:
    standard = ["os", "sys", "traceback"] if with_os else ["sys", "traceback"]
    names = "export, open_tape, printable" if exports else "open_tape, printable, render, replay"
    lines = [f"import {name}" for name in standard]
    lines += ["", "import torch", "", f"from calltape_analyzer import {names}"]
    return "\n".join(lines)


def _needs(needs: _Needs) -> str:
    """What else the script wants, in words."""
    existing = sorted(
        name for name in needs.libraries if _comment(name) == name and name.isidentifier()
    )
    more = f", maybe with {', '.join(existing[:5])}" if existing else ""
    return f"the model's own code{more}"


def is_factory(name: str) -> bool:
    """Whether a text is of the form ``package.module:factory``."""
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(
        part.isidentifier() and part.isascii() and not keyword.iskeyword(part) for part in parts
    )


def _import(model: str, beside_script: bool) -> str:
    module, _, attribute = model.partition(":")
    name = attribute.partition(".")[0]
    instance = f"{attribute} if isinstance({attribute}, torch.nn.Module) else {attribute}()"
    places = "os.path.dirname(os.path.abspath(__file__))" if beside_script else "os.getcwd()"
    return _IMPORTED.format(module=module, name=name, made=instance, places=places)


def _facts(tape: Tape) -> Iterator[str]:
    target = tape.target
    if target is not None:
        yield target.name
    producer = tape.manifest.producer.model_dump(include=set(_PRODUCERS), exclude_none=True)
    yield ", ".join(f"{name} {version}" for name, version in producer.items())
    variants = tape.variants()
    for variant in variants[:_MAX_VARIANTS]:
        findings = variant.findings
        calls = f"{counted(findings.calls, 'call')}, first call {findings.first_call}"
        yield f"{variant.public_name}: {calls}"
        yield from islice(_arguments(findings), _MAX_ARGUMENTS)
    if len(variants) > _MAX_VARIANTS:
        yield f"and {counted(len(variants) - _MAX_VARIANTS, 'variant')} more"


def _arguments(findings: VariantFindings) -> Iterator[str]:
    """A line per argument, with all that it holds: paths may be of keys that were passed."""
    kinds_of_argument: dict[str, Counter[str]] = {}
    for tensor in findings.tensors:
        shape = ", ".join(map(_sizes, tensor.dimensions))
        kinds_of_argument.setdefault(_argument(tensor.argument), Counter())[
            f"{tensor.dtype}[{shape}]"
        ] += 1
    for int_finding in findings.ints:
        kinds_of_argument.setdefault(_argument(int_finding.argument), Counter())["int"] += 1
    for name, kinds in kinds_of_argument.items():
        shown = [f"{kind} ({n} of them)" if n > 1 else kind for kind, n in kinds.items()]
        yield f"  {name}: {joined(shown, _MAX_HELD)}"


def _argument(name: str) -> str:
    # A keyword of **kwargs may be any text; one of *args has its position after a dot.
    parameter, _, position = name.partition(".")
    is_name = parameter.isidentifier() and (position.isdecimal() or parameter == name)
    return name if is_name and len(name) <= _MAX_NAME else "an argument"


def _sizes(dimension: DimensionFinding) -> str:
    # Not the symbol, whose name may be made of dict keys.
    if dimension.min == dimension.max:
        return str(dimension.min)
    return f"{dimension.min}..{dimension.max}"


def _comment(text: str) -> str:
    """A text for the rest of a line: ASCII, without control characters."""
    shown = json.dumps(text)[1:-1].replace('\\"', '"')
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}..."


def literal(text: str) -> str:
    """A text as Python source: a string literal in printable ASCII."""
    # JSON's escapes are Python's as well, and keep everything but ASCII out of the source. A
    # character beyond the 16 bits of one escape is a pair in JSON, which Python reads as two.
    return ascii(text) if any(ord(char) > 0xFFFF for char in text) else json.dumps(text)


def part_expression(tape: Tape) -> str:
    """The expression for the part of the tape that this one is. Names of variants may have what was
    passed in them; positions have not."""
    options = [f"{name}={_list(chosen)}" for name, chosen in tape.selected.items()]
    if tape.removed:
        options.append(f"ignore={_list(tape.removed)}")
    return f"tape.only({', '.join(options)})" if options else "tape"


def _list(items: Sequence[str | int]) -> str:
    shown = [literal(item) if isinstance(item, str) else str(item) for item in items]
    return f"[{', '.join(shown)}]"


def _texts(paths: Sequence[str], beside_script: bool) -> str:
    if beside_script:
        names = _list([os.path.basename(path) for path in paths])
        folder = "os.path.dirname(os.path.abspath(__file__))"
        return f"[os.path.join({folder}, name) for name in {names}]"
    if len(paths) == 1:
        return f"[{literal(paths[0])}]"
    return "[\n" + "".join(f"    {literal(path)},\n" for path in paths) + "]"


@dataclass
class _Needs:
    """What the classes of some calls want.

    Attributes:
        libraries: those whose classes have methods that a model calls, or a state of their own.
        stand_ins: whether some of the classes may be of the model's own code, which may lack them
            where the script is run.
    """

    libraries: set[str] = field(default_factory=set)
    stand_ins: bool = False


def _needs_of(calls: Iterable[Call]) -> _Needs:
    """What the inputs and outputs of calls want. Calls that are damaged are left out."""
    needs = _Needs()
    structures: set[bytes] = set()
    for call in calls:
        try:
            trees = (call.record.inputs, call.record.outputs)
            for tree in trees:
                if (
                    tree is None
                    or tree.structure in structures
                    or len(structures) >= _MAX_STRUCTURES
                ):
                    continue
                structures.add(tree.structure)
                for node in walk(tree.spec().root):
                    if isinstance(node, CustomNode | FieldsNode):
                        _add_class(needs, node)
        except TapeError:
            continue
    return needs


def _add_class(needs: _Needs, node: CustomNode | FieldsNode) -> None:
    module = node.type.partition(":")[0]
    library = module.partition(".")[0]
    if isinstance(node, CustomNode) or is_cache_name(node.type) or is_of_cache_library(module):
        needs.libraries.add(library)
    if isinstance(node, FieldsNode):
        needs.stand_ins = needs.stand_ins or library not in NO_STAND_IN


class _Source:
    """A value that stands for its Python source."""

    def __init__(self, text: str) -> None:
        self.text = text


def python_of_variants(
    variants: Sequence[Variant],
    paths: Sequence[str],
    *,
    target: str | None = None,
    classes: Sequence[str] = (),
    part: str | None = "tape",
) -> str:
    """The statements that assign ``dynamic_shapes`` in the form of ``torch.export.export``, and
    ``args`` and ``kwargs`` to export with; of several variants dicts by the name of the variant.

    Args:
        variants: at least one.
        paths: of the tapes.
        target: which of the targets on them is meant; None for the only one.
        classes: ``module:class`` of the classes that arguments are rebuilt from.
        part: the expression for the part of ``tape`` that is meant; None for tapes without calls,
            which have no arguments.
    """
    from calltape_analyzer.variant import nested_dimensions

    imports: set[tuple[str, str]] = set()

    def shown(_: Column) -> _Source:
        imports.add(("torch.export", "Dim"))
        return _Source("Dim.AUTO")

    parts = {variant.name: nested_dimensions(variant, variant.facts, shown) for variant in variants}
    shapes: Any = next(iter(parts.values())) if len(parts) == 1 else parts
    lines = [f"dynamic_shapes = {_spread(shapes, imports)}"]
    if part is not None:
        imports.add(("calltape_analyzer", "open_tape"))
        lines.append(f"with {_opening(paths, target, classes, imports)} as tape:")
        lines.append(f"    variants = {{variant.name: variant for variant in {part}.variants()}}")
        if len(parts) == 1:
            name = literal(variants[0].name)
            lines.append(f"    args, kwargs = variants[{name}].infer_arguments()")
        else:
            arguments = "{name: variants[name].infer_arguments() for name in dynamic_shapes}"
            lines.append(f"    arguments = {arguments}")
    head = [f"from {module} import {name}" for module, name in sorted(imports)]
    return "\n".join([*head, *([""] if head else []), *lines])


def _opening(
    paths: Sequence[str],
    target: str | None,
    classes: Sequence[str],
    imports: set[tuple[str, str]],
) -> str:
    """The expression that opens the tapes."""
    options = [_source(list(paths), imports)]
    if target is not None:
        options.append(f"target={literal(target)}")
    if classes:
        parts = [name.partition(":") for name in classes]
        imports |= {(module, name.partition(".")[0]) for module, _, name in parts}
        options.append(f"classes=[{', '.join(name for *_, name in parts)}]")
    return f"open_tape({', '.join(options)})"


def _is_importable(module: str, name: str) -> bool:
    parts = [*module.split("."), *name.split(".")]
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)


def _spread(value: Any, imports: set[tuple[str, str]]) -> str:
    """A container with one line per item."""
    if isinstance(value, dict) and value:
        items = [
            f"    {_source(key, imports)}: {_source(item, imports)},\n"
            for key, item in value.items()
        ]
        return f"{{\n{''.join(items)}}}"
    if type(value) is tuple and value:
        return f"(\n{''.join(f'    {_source(item, imports)},' + chr(10) for item in value)})"
    return _source(value, imports)


def _source(value: Any, imports: set[tuple[str, str]]) -> str:
    """A value on one line; named tuples that can be imported are, and others are tuples."""
    if isinstance(value, _Source):
        return value.text
    if isinstance(value, dict):
        pairs = [f"{_source(k, imports)}: {_source(v, imports)}" for k, v in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (list, tuple)):
        inner, cls = ", ".join(_source(item, imports) for item in value), type(value)
        if isinstance(value, list):
            return f"[{inner}]"
        if cls is tuple or not _is_importable(cls.__module__, cls.__qualname__):
            return f"({inner}{',' * (len(value) == 1)})"
        imports.add((cls.__module__, cls.__qualname__.partition(".")[0]))
        return f"{cls.__qualname__}({inner})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return literal(value) if isinstance(value, str) else ascii(value)
