"""One file for a bug report: a redacted tape, a script that shows what is wrong, what the tape is
of, and versions.

Takes a tape and the model's code. A tape that is redacted goes in with its calls as they are, so
that it still shows what it was made for. Returns a zip file that a tracker takes: of at most 10
MiB, or there is none, and the error says what to leave out.
"""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from calltape_analyzer.editing.rewriting import EditReport
from calltape_analyzer.errors import UsageError
from calltape_analyzer.limits import REDACTION_EFFORT, bounded
from calltape_analyzer.markdown import tape_summary, versions_here, versions_of
from calltape_analyzer.opening import open_tape
from calltape_analyzer.plain_data import PlainData, Texts
from calltape_analyzer.redacting.redaction import copy_redacted, redact
from calltape_analyzer.scripting import script
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, printable, some_of
from calltape_analyzer.writing.output_file import OutputFile, TemporaryFolder
from calltape_schema.errors import TapeError

__all__ = ["MAX_BYTES", "Bundle", "bundle", "pack"]

MAX_BYTES = 10 * 2**20
"""Of a bundle: trackers take attachments of so many bytes."""

TAPE, SCRIPT, SUMMARY, VERSIONS = "bug.tape", "reproduce.py", "report.md", "versions.json"

_FACTORY = "build_model"
_STEP = 1024 * 1024
_BEGIN = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip file can have: equal parts, equal file
_ADVICE = "leave calls out (--calls, --variant), or keep fewer values when you redact it"


class BundledFile(PlainData):
    """A file in a bundle, with its size in bytes, and in the bundle."""

    name: str
    size: int
    compressed: int


class Bundle(PlainData):
    """What was bundled.

    Attributes:
        path: of the zip file.
        size: its bytes.
        files: what is in it.
        notes: what a reader should know.
    """

    path: str
    size: int
    files: tuple[BundledFile, ...]
    notes: Texts = ()

    def __str__(self) -> str:
        lines = [f"wrote {self.path}: {self.size:,} bytes"]
        lines += [f"  {file.name}: {file.size:,} bytes" for file in self.files]
        return "\n".join(map(printable, [*lines, *self.notes]))


@bounded(effort=REDACTION_EFFORT)
def bundle(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    model_code: Sequence[str | os.PathLike[str]] = (),
    model: str | None = None,
    call: str | int | None = None,
    to: Literal["torch", "onnx"] | None = None,
    redaction: Mapping[str, Sequence[str]] | None = None,
    overwrite: bool = False,
    limit: int = MAX_BYTES,
) -> Bundle:
    """Writes a zip file with a redacted tape, a script, Markdown and versions. Only its owner can
    read it.

    Args:
        tape: the tape, or a part of one: its calls go in, redacted. If it is redacted already, they
            go in as they are, unless ``redaction`` has options.
        path: of the new file.
        model_code: files with the model's code, which go in as they are.
        model: ``module:factory``, in one of these files. By default the function ``build_model`` of
            the first file that has one; if none has, the script has a function to fill in.
        call: the call that the script is about, as in :func:`calltape_analyzer.script`.
        to: whether the script exports, as in :func:`calltape_analyzer.script`.
        redaction: options of :func:`calltape_analyzer.redact`, such as ``{"keep": ["mode"]}``.
        overwrite: whether a file that is there already is replaced.
        limit: of the bytes of the file.

    Raises:
        UsageError: for a file of model code that is none, or has the name of another one.
        TapeError: ``limit`` if it would be larger, with what is largest; ``exists``, ``io``,
            ``not_found``. No file is left then.
    """
    check_tape(tape, "bundle")
    sources = _sources(model_code)
    inputs = [os.fspath(path) for path in model_code]
    options: dict[str, Any] = dict(redaction or {})
    place = None if call is None else tape.find(call).index
    with OutputFile(path, overwrite=overwrite, inputs=[*tape.paths, *inputs]) as out:
        with TemporaryFolder() as folder:
            notes = _write_tape(tape, folder / TAPE, options)
            with open_tape(folder / TAPE) as redacted:
                about = None if place is None else _same_call(redacted, tape, place)
                factory = model or _factory(sources)
                versions = {"here": versions_here(), "recorded_with": versions_of(redacted)}
                texts = {
                    SCRIPT: script(redacted, model=factory, to=to, call=about, beside=True),
                    SUMMARY: tape_summary(redacted),
                    VERSIONS: json.dumps(versions, indent=2) + "\n",
                }
            packed = folder / "bundle.zip"
            files = pack(packed, folder / TAPE, texts, sources)
            _check_size(packed.stat().st_size, limit, files)
            out.append_file(packed)
        size = out.end
    notes += [f"{name} goes in as it is" for name in sources]
    notes += _notes_of_model(factory, sources)
    return Bundle(path=os.fspath(path), size=size, files=tuple(files), notes=tuple(notes))


def _write_tape(tape: Tape, path: Path, options: dict[str, Any]) -> list[str]:
    """Writes the tape of the bundle.

    Returns:
        What is to be known of it, in words.
    """
    was_redacted = tape.redacted == "all"
    if was_redacted and not options:
        copied = copy_redacted(tape, os.fspath(path))
        return [
            "the tape is redacted already: its calls go in as they are",
            *_patterns_kept_then(tape),
            *_note_on_kept_values(copied),
        ]
    report = redact(tape, path, **options)
    return [*_note_on_kept_values(report), *_doubts(tape, was_redacted=was_redacted)]


def _patterns_kept_then(tape: Tape) -> Iterator[str]:
    """What the redactions of a tape left as it was, because somebody asked for it."""
    steps = (step for manifest in tape.manifests for step in manifest.history or ())
    patterns = [value for step in steps for name, value in step.options if name == "keep"]
    if patterns:
        yield (
            f"that redaction kept {some_of(list(dict.fromkeys(patterns)), 1)}: "
            "these values go in too, "
            "unless an option redacts the tape once more"
        )


def _note_on_kept_values(report: EditReport) -> Iterator[str]:
    yield from (f"lost: {text}" for text in report.lost)
    yield from report.notes


def _doubts(tape: Tape, *, was_redacted: bool) -> Iterator[str]:
    """What a redaction may have taken from a tape that was made to show something."""
    if was_redacted:
        yield "the tape was redacted already, and is redacted once more because options ask for it"
    steps = (step for manifest in tape.manifests for step in manifest.history or ())
    if any(step.verb == "minimise" for step in steps):
        yield (
            "the tape was made small to show a failure, and values that this needs may be gone "
            "now: see whether it still fails, or redact the first tape with --keep, minimise that, "
            "and bundle the result"
        )


def _notes_of_model(factory: str | None, sources: Mapping[str, bytes]) -> Iterator[str]:
    """What the script will need."""
    if factory is None and sources:
        yield (
            f"no file of --model-code has a function {_FACTORY}(): {SCRIPT} has one to fill in; "
            f"write {_FACTORY}(), which returns the model, or name another one with --model "
            "module:function"
        )
    module = (factory or "").partition(":")[0]
    if module and f"{module}.py" not in sources:
        yield f"{SCRIPT} imports {module}, which is not in the bundle; --model-code puts a file in"


def _same_call(redacted: Tape, tape: Tape, place: int) -> str:
    """The address of a call on the redacted tape. Calls of one recording keep their numbers."""
    original = tape.calls[place]
    matching = [call for call in redacted.calls if call.number == original.number]
    if len(matching) != 1 and len(redacted.calls) == len(tape.calls):
        matching = [redacted.calls[place]]
    if len(matching) != 1:
        raise UsageError(
            f"call {original.address} cannot be found on the redacted tape",
            advice="bundle this call only, with --calls",
        )
    return matching[0].address


def _sources(paths: Sequence[str | os.PathLike[str]]) -> dict[str, bytes]:
    """The files of model code by name."""
    sources: dict[str, bytes] = {}
    for path in paths:
        name = os.path.basename(os.fspath(path))
        if name in sources or name in (TAPE, SCRIPT, SUMMARY, VERSIONS):
            raise UsageError(f"two files of a bundle would have the name {name!r:.100}")
        try:
            if not os.path.isfile(path):
                raise TapeError("not_found", "no such file", path=os.fspath(path))
            if os.path.getsize(path) > MAX_BYTES:
                reason = f"it has more than {MAX_BYTES:,} bytes"
                advice = "bundle a smaller file of model code"
                raise TapeError("limit", reason, path=os.fspath(path), advice=advice)
            sources[name] = Path(path).read_bytes()
        except OSError as error:
            reason = f"cannot read it: {error.strerror}"
            raise TapeError("io", reason, path=os.fspath(path)) from None
    return sources


def _factory(sources: Mapping[str, bytes]) -> str | None:
    """``module:build_model`` of the first file that has it. Nothing is run."""
    for name, content in sources.items():
        try:
            body = ast.parse(content).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        module = name.removesuffix(".py")
        defined = any(isinstance(s, ast.FunctionDef) and s.name == _FACTORY for s in body)
        if defined and module.isidentifier():
            return f"{module}:{_FACTORY}"
    return None


def pack(
    packed: Path, tape: Path, texts: Mapping[str, str], sources: Mapping[str, bytes]
) -> list[BundledFile]:
    small = {name: text.encode() for name, text in texts.items()} | dict(sources)
    streams: dict[str, BinaryIO] = {name: io.BytesIO(content) for name, content in small.items()}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, tape.open("rb") as file:
        streams[TAPE] = file
        for name, stream in streams.items():
            info = zipfile.ZipInfo(name, _BEGIN)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, which the permissions are of
            info.external_attr = 0o600 << 16
            with archive.open(info, "w", force_zip64=True) as member:
                shutil.copyfileobj(stream, member, _STEP)
        return [
            BundledFile(name=entry.filename, size=entry.file_size, compressed=entry.compress_size)
            for entry in archive.infolist()
        ]


def _check_size(size: int, limit: int, files: Sequence[BundledFile]) -> None:
    if size <= limit:
        return
    largest = sorted(files, key=lambda entry: -entry.compressed)[:3]
    shown = ", ".join(f"{entry.name} {entry.compressed:,}" for entry in largest)
    raise TapeError(
        "limit",
        f"the bundle would have {counted(size, 'byte')}, and at most {limit:,} are taken "
        f"(largest: {shown})",
        advice=_ADVICE,
    )
