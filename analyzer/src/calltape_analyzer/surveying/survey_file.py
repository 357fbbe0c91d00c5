"""The file of a survey: JSON, or JSON in gzip if its name ends with ``.gz``.

The same survey gives the same bytes. A file may come from anybody: how much is read of it is
bounded before it is read.
"""

from __future__ import annotations

import os
import zlib
from contextlib import closing
from pathlib import Path

from pydantic import ValidationError

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.memory_limit import granted_bytes
from calltape_analyzer.reading.regular_files import read_regular
from calltape_analyzer.reading.urls import is_url, local_path, name_of
from calltape_analyzer.surveying.document_models import SurveyDocument
from calltape_analyzer.surveying.documents import document_of, survey_of_document
from calltape_analyzer.surveying.survey import Survey
from calltape_analyzer.writing.output_file import write_file
from calltape_schema.errors import TapeError
from calltape_schema.interning import problems_of

__all__ = [
    "MAX_SURVEY_BYTES",
    "MAX_VALUES",
    "is_survey_file",
    "read_survey",
    "survey_from_json",
    "survey_to_json",
    "write_survey",
]

MAX_SURVEY_BYTES = 512 * 1024 * 1024
"""Of the JSON."""
MAX_VALUES = 32 * 1024 * 1024
"""Numbers, texts, arrays and maps of the JSON, give or take the commas in texts. A tape takes about
60; a parser takes 40 bytes for each."""

_LEAST_BYTES, _TIMES_PACKED = 48 * 1024 * 1024, 32
"""Of the JSON of a packed file, if it is small; and how often as large as the file it may be."""
_VALUE_BYTES, _LEAST_MEMORY, _TIMES_FILE = 64, 96 * 1024 * 1024, 256
"""Of memory for a value; and what all values may take together: of a small file, and how often as
much as the file. Without such a limit 45 KB of gzip are 15 million empty texts."""

_SUFFIXES = (".json", ".json.gz")
_GZIP = 16 + zlib.MAX_WBITS
_TOO_MUCH = (
    "survey fewer tapes at once; if you trust the file, `calltape --max-memory 8192` allows more"
)
_ADVICE = "make it anew with calltape survey PATH... -o FILE"


def is_survey_file(path: str) -> bool:
    """Whether a file, or what is behind a URL, is a survey by its name."""
    return (name_of(path) if is_url(path) else path).endswith(_SUFFIXES)


def survey_to_json(survey: Survey) -> bytes:
    """A survey as JSON in ASCII or UTF-8: equal bytes for equal surveys."""
    return document_of(survey).model_dump_json(warnings=False).encode("utf-8", "surrogatepass")


def survey_from_json(data: bytes, stored: int | None = None) -> Survey:
    """The survey of a JSON text.

    Args:
        data: the text.
        stored: how many bytes of a file it was read from; by default its own.

    Raises:
        TapeError: ``not_a_tape`` if it is no survey; ``version``; ``invalid``, ``damaged`` or
            ``limit`` if it breaks the form, or contradicts itself.
    """
    _check_values(data, len(data) if stored is None else stored)
    try:
        document = SurveyDocument.model_validate_json(data)
    except ValidationError as error:
        problems = problems_of(error)
        places = {problem.loc[:1] for problem in problems}
        if ("format",) in places or () in places:
            reason = "the file is no survey of calltape"
            raise TapeError("not_a_tape", reason, advice=_ADVICE) from None
        if ("version",) in places:
            raise TapeError(
                "version", "a survey of a version that this reader does not know"
            ) from None
        raise _invalid(error) from None
    except RecursionError:
        raise TapeError("limit", "the survey is too deep", advice=_ADVICE) from None
    try:
        return survey_of_document(document)
    except ValidationError as error:  # of a part that has its own rules
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> TapeError:
    problems = problems_of(error)
    return TapeError("invalid", "the survey breaks its form", problems=problems, advice=_ADVICE)


def _check_values(data: bytes, stored: int) -> None:
    given = granted_bytes()
    memory = max(_LEAST_MEMORY, _TIMES_FILE * stored) if given is None else given
    most = min(MAX_VALUES, memory // _VALUE_BYTES)
    values = sum(map(data.count, (b",", b"[", b"{")))
    if values > most:
        reason = f"the survey has about {values:,} values; at most {most:,} are read"
        raise TapeError("limit", reason, advice=_TOO_MUCH)


def read_survey(path: str | os.PathLike[str]) -> Survey:
    """The survey in a file, or behind a URL.

    Raises:
        TapeError: ``not_found``, ``io``; ``not_a_tape`` if it is no survey; ``version``,
            ``invalid``, ``damaged`` or ``limit`` if its content is wrong.
    """
    name = os.fspath(path)
    try:
        return survey_from_json(*_content(name))
    except TapeError as error:
        raise error.at(path=name) from None


def _content(path: str) -> tuple[bytes, int]:
    """The JSON of a file, and how many bytes the file has."""
    if is_url(path):
        from calltape_analyzer.reading.remote_file import RemoteFile

        with closing(RemoteFile(path)) as file:
            if file.size > MAX_SURVEY_BYTES:
                raise _too_large(MAX_SURVEY_BYTES)
            data = file.read(0, file.size)
    else:
        data = read_regular(Path(local_path(path)), MAX_SURVEY_BYTES, follow=True)
    is_packed = (name_of(path) if is_url(path) else path).endswith(".gz")
    return _unpacked(data) if is_packed else data, len(data)


def _unpacked(data: bytes) -> bytes:
    inflater = zlib.decompressobj(_GZIP)
    most = min(MAX_SURVEY_BYTES, max(_LEAST_BYTES, _TIMES_PACKED * len(data)))
    given = granted_bytes()
    most = most if given is None else min(MAX_SURVEY_BYTES, given)
    try:
        found = inflater.decompress(data, most + 1)
    except zlib.error as error:
        raise TapeError("damaged", f"it is no gzip: {error}", advice=_ADVICE) from None
    if len(found) > most:
        raise _too_large(most)
    if not inflater.eof or inflater.unused_data:
        raise TapeError("damaged", "the gzip is cut short, or something follows it", advice=_ADVICE)
    return found


def _too_large(most: int) -> TapeError:
    reason = f"the survey has more than {most:,} bytes"
    return TapeError("limit", reason, advice=_TOO_MUCH)


def write_survey(survey: Survey, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Writes a survey to a file; packed if its name ends with ``.gz``.

    Raises:
        UsageError: the name ends neither with ``.json`` nor with ``.json.gz``.
        TapeError: ``exists`` if the file is there and ``overwrite`` is false; ``io``.
    """
    name = os.fspath(path)
    if not is_survey_file(name):
        raise UsageError(
            f"{name!r} is no name for a survey", advice="end it with .json or .json.gz"
        )
    data = survey_to_json(survey)
    if name.endswith(".gz"):
        packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        data = packer.compress(data) + packer.flush()
    write_file(name, data, overwrite=overwrite)
