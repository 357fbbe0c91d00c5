"""A small Python file that exports a recorded model and verifies the result: what one attaches to
a bug report, beside the tape.

Nothing that a tape says becomes code: paths are embedded as string literals in ASCII, what was
recorded is described in comments of one line. The file goes to strangers, so no text of a call
stands in it: of arguments the names of parameters, dtypes and sizes, and nothing that was passed.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from calltape_analyzer.errors import UsageError
from calltape_analyzer.markdown.disclosure import public_variant
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted

if TYPE_CHECKING:
    from calltape_analyzer.variants.variant_findings import DimensionFinding, VariantFindings

__all__ = ["is_factory", "literal", "script"]

_MAX_VARIANTS = 20
_MAX_ARGUMENTS = 40
_MAX_TEXT = 90
_MAX_NAME = 60

_PRODUCERS = ("calltape", "torch", "python", "platform", "transformers")
_TEMPLATE = '''\
"""Exports a recorded model, and runs every recorded call through the result.

Ends with 0 if all of them give what was recorded. Wants the model's own code, torch and
calltape-analyzer{extras}.
"""

{imports}

# What was recorded, according to the tape:
{facts}
TAPES = {tapes}


{build}


def main() -> int:
    # Arguments of classes of your own: open_tape(TAPES, classes=[...])
    with open_tape(TAPES) as tape:
        programs = export({part}, build_model(), to={to})
        for attempt in programs.attempts:
            done = f"{{attempt.reproduced}} of {{attempt.tried}} sizes reproduced"
            print(f"{{attempt.variant}}: {{attempt.what}}: {{done}} {{attempt.error or ''}}")
        for name, reason in programs.missing.items():
            print(f"no program for {{name}}: {{reason}}")
        report = programs.verify()
        print(report.table())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
'''

_TO_FILL_IN = """\
# >>> To be filled in: the model that was recorded, with its weights.
def build_model() -> torch.nn.Module:
    raise SystemExit("let build_model() return the recorded model")


# <<<"""

_IMPORTED = """\
def build_model() -> torch.nn.Module:
    sys.path.insert(0, os.getcwd())  # as python -m does
    from {module} import {name}

    model = {made}
    return model.eval()"""


def script(tape: Tape, *, model: str | None = None, to: Literal["torch", "onnx"] = "torch") -> str:
    """Python source that loads the tape, builds the model, exports it, and prints what came of it.

    Args:
        tape: a tape, or a part of one; its files are named in the source as they were opened.
        model: ``package.module:factory``, a function without arguments that makes the model, or a
            module object. Without it the source has a marked function to fill in.
        to: as in :func:`calltape_analyzer.export`.

    Raises:
        UsageError: ``model`` or ``to`` has another form.
    """
    check_tape(tape, "script")
    if model is not None and not is_factory(model):
        raise UsageError(f"{model!r} is not of the form package.module:factory")
    if to not in ("torch", "onnx"):
        raise UsageError(f"to={to!r}", advice='pass "torch" or "onnx"')
    standard = "import os\nimport sys" if model else "import sys"
    return _TEMPLATE.format(
        extras="[onnx]" if to == "onnx" else "",
        imports=f"{standard}\n\nimport torch\n\nfrom calltape_analyzer import export, open_tape",
        facts="\n".join(f"#   {_comment(fact)}" for fact in _facts(tape)),
        tapes=_texts(tape.paths),
        build=_TO_FILL_IN if model is None else _import(model),
        part=_part(tape),
        to=literal(to),
    )


def is_factory(name: str) -> bool:
    """Whether a text is of the form ``package.module:factory``."""
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and all(
        part.isidentifier() and part.isascii() and not keyword.iskeyword(part) for part in parts
    )


def _import(model: str) -> str:
    module, _, attribute = model.partition(":")
    name = attribute.partition(".")[0]
    made = f"{attribute} if isinstance({attribute}, torch.nn.Module) else {attribute}()"
    return _IMPORTED.format(module=module, name=name, made=made)


def _facts(tape: Tape) -> Iterator[str]:
    target = tape.target
    if target is not None:
        yield f"{target.type}.{target.method}"
    producer = tape.manifest.producer.model_dump(include=set(_PRODUCERS), exclude_none=True)
    yield ", ".join(f"{name} {version}" for name, version in producer.items())
    parameters = {p.name for p in Signature.of(target).parameters}
    variants = tape.variants()
    for number, variant in enumerate(variants[:_MAX_VARIANTS]):
        found = variant.findings
        name = _name(found, number, parameters)
        yield f"{name}: {counted(found.calls, 'call')}, first call {found.first_call}"
        shapes: dict[str, None] = {}
        for tensor in found.tensors:
            shape = ", ".join(map(_sizes, tensor.dimensions))
            shapes[f"  {_argument(tensor.argument)}: {tensor.dtype}[{shape}]"] = None
        for given in found.ints:
            shapes[f"  {_argument(given.argument)}: int"] = None
        yield from list(shapes)[:_MAX_ARGUMENTS]
    if len(variants) > _MAX_VARIANTS:
        yield f"and {counted(len(variants) - _MAX_VARIANTS, 'variant')} more"


def _name(found: VariantFindings, number: int, parameters: set[str]) -> str:
    """The name of a variant, if it says nothing of what was passed."""
    return public_variant(found.name, parameters) or f"variant {number}"


def _argument(name: str) -> str:
    # A keyword of **kwargs may be any text.
    return name if name.isidentifier() and len(name) <= _MAX_NAME else "an argument"


def _sizes(dimension: DimensionFinding) -> str:
    # Not the symbol, whose name may be made of dict keys.
    if not dimension.dynamic:
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


def _part(tape: Tape) -> str:
    """The expression for the part of the tape that this one is. Names of variants may have what was
    passed in them; positions have not."""
    given = [f"{name}={_list(chosen)}" for name, chosen in tape.selected.items()]
    if tape.removed:
        given.append(f"ignore={_list(tape.removed)}")
    return f"tape.only({', '.join(given)})" if given else "tape"


def _list(items: Sequence[str | int]) -> str:
    shown = [literal(item) if isinstance(item, str) else str(item) for item in items]
    return f"[{', '.join(shown)}]"


def _texts(paths: Sequence[str]) -> str:
    if len(paths) == 1:
        return f"[{literal(paths[0])}]"
    return "[\n" + "".join(f"    {literal(path)},\n" for path in paths) + "]"
