"""The ``calltape`` command on a mutant, in this process."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import typer
from click.testing import CliRunner, Result

from calltape_analyzer.cli.verbs import app
from tests.fuzz.program import onnx_model
from tests.fuzz.steps import Steps, WrongAnswerError

__all__ = ["COMMANDS", "command"]

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("info",), ("info", "--json"), ("info", "--quick"), ("ls",), ("ls", "--json"),
    ("ls", "--calls", "0..1"), ("show", "0"), ("show", "0", "--json"),
    ("variants", "--ignore", "x"), ("variants",), ("variants", "--json"), ("variants", "--python"),
    ("explain", "x"), ("explain", "x", "0", "--json"), ("explain", "past_key_values.*"),
    ("bundle", "-o", "OUT.py"), ("diff", "OTHER"), ("diff", "OTHER", "--json"),
    ("info", "--markdown"), ("replay", "PROGRAM", "--dry-run"),
    ("replay", "PROGRAM", "--dry-run", "--json"),
    ("redact", "-o", "OUT"),
    ("redact", "-o", "OUT", "--json", "--keep", "*.0"),
    ("redact", "-o", "OUT", "--shapes-only", "*", "--keep", "x"),
    ("bundle", "-o", "OUT"), ("filter", "-o", "OUT", "--first", "2"), ("recover", "-o", "OUT"),
    ("table", "-o", "OUT.parquet"), ("table", "-o", "OUT.csv"),
    ("table", "-o", "OUT.arrow", "--leaves"), ("table", "-o", "OUT.csv", "--leaves"),
    ("view", "-o", "OUT.html"),
    ("survey", "--json", "--jobs", "1"), ("survey", "--scan", "--jobs", "1", "-o", "OUT.json"),
)  # fmt: skip
"""A verb and its options; the tape comes after the verb. ``OTHER`` is a good tape, ``PROGRAM`` an
ONNX model, ``OUT`` (also with a suffix) a new file, which is thrown away.

``minimise`` is not among them: each of its tries is a process. What it does to a tape is done by
``filter`` and by resizing, which ``questions`` reach.
"""


_SUFFIXES = (".parquet", ".arrow", ".csv", ".html", ".json", ".py")


@cache
def _command() -> Any:
    """Built once: typer makes all verbs anew each time that it is asked."""
    return typer.main.get_command(app)


def command(steps: Steps, path: Path, other: Path, words: tuple[str, ...]) -> None:
    """Runs one command; exit codes, texts and JSON are looked at."""
    shown = "$ " + " ".join(words)
    out = path.with_suffix(".out")
    program = path.with_suffix(".out.onnx")
    if "PROGRAM" in words:
        program.write_bytes(onnx_model().SerializeToString())
    files = {"OTHER": str(other), "OUT": str(out), "PROGRAM": str(program)}
    # Not beside the tape by its own name: what is there may be a golden file.
    results = {f"OUT{suffix}": path.with_suffix(f".out{suffix}") for suffix in _SUFFIXES}
    files |= {word: str(file) for word, file in results.items()}
    verb, *rest = (files.get(word, word) for word in words)
    result = steps.step(shown, lambda: CliRunner().invoke(_command(), [verb, str(path), *rest]))
    page = results["OUT.html"]
    if page.exists():
        steps.text(f"page of {shown}", page.read_text(encoding="utf-8").replace("\t", ""))
    for made in (out, program, *results.values()):
        made.unlink(missing_ok=True)
    if result is None:
        return
    for text in (result.stdout, result.stderr):
        steps.text(shown, text.replace(str(path), ""))
    if isinstance(result.exception, Exception) and not isinstance(result.exception, typer.Exit):
        steps.untyped(shown, result.exception)
    elif result.exit_code not in (0, 1, 3, 4) and not _names_nothing(result):
        steps.found(shown, f"exit {result.exit_code} of {shown}", result.output[-500:])
    elif failed := re.search(r"unexpected \w+:", result.stderr):
        steps.found(shown, f"{failed[0][:-1]} of {shown}", result.stderr[-500:])
    elif "--json" in words and result.exit_code in (0, 3):
        steps.step(f"JSON of {shown}", lambda: _parsed(result.stdout))


def _names_nothing(result: Result) -> bool:
    """Whether a call or an argument that the command line names is not on the tape. What is no
    option of the command is told with its usage."""
    return result.exit_code == 2 and result.stderr.startswith("calltape: ")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except ValueError as error:
        raise WrongAnswerError(f"no JSON: {error}: {text[:200]!r}") from None


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
