"""Leaves out of answers what another run, machine or version of a library says otherwise.

A tape in the repository says the same each time. One that is recorded for the run has times, ids of
threads, versions, and sizes in bytes that depend on how such numbers compress.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FIXED", "RECORDED", "Normalising"]

_ROOT = str(Path(__file__).resolve().parents[2])
_VARYING_COLUMNS = "tape", "time", "duration", "thread"

_Rule = tuple[re.Pattern[str], str]

_OF_A_RECORDING: tuple[_Rule, ...] = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:[\d.]+Z?"), "<time>"),
    (re.compile(r"^(recording +)[0-9a-f]{8,32}"), r"\1<id>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"\b\d[\d,]*(?:\.\d+)? (?:B|[KMGT]iB)\b"), "<size>"),
    (
        re.compile(r"\b(calltape|torch|python|transformers) \d+(?:\.\w+)+(?:\+\w+)?"),
        r"\1 <version>",
    ),
    (re.compile(r"\bplatform [\w.-]+"), "platform <name>"),
    # The columns of ls: the number of a call, when it began, and how long it took.
    (re.compile(r"^( *\d+) +-?\d+\.\d{3} +[\d.,]+  (?=\S)"), r"\1  <began>  <took>  "),
)
_SYMBOLS = re.compile(r"\{u\d+(?:, u\d+)+\}")
"""A set of symbols of torch, in an order that depends on hashes."""
_OF_A_RUN: tuple[_Rule, ...] = (
    (re.compile(re.escape(tempfile.gettempdir()) + r"/[^\s:'\"]*"), "<temporary>"),
    (re.compile(r"(?:/[^\s:'\"]*)?/site-packages/"), "<packages>/"),
    (re.compile(r"\b0x[0-9a-f]{6,16}\b|\b1[34]\d{13}\b"), "<address>"),
    (re.compile(r"\.py:\d+"), ".py:<line>"),
    (re.compile(r" on node '[^']*'"), ""),  # torch numbers the nodes of a graph
    (re.compile(r"\bprocess \d+\b"), "process <id>"),
)


@dataclass(frozen=True)
class Normalising:
    """How texts become the same for each run.

    Attributes:
        is_recorded: whether the tape was recorded for this run.
    """

    is_recorded: bool = False

    def text(self, text: str) -> str:
        """A text without what varies."""
        for pattern, instead in (*(_OF_A_RECORDING if self.is_recorded else ()), *_OF_A_RUN):
            text = pattern.sub(instead, text)
        text = _SYMBOLS.sub(lambda found: _sorted(found[0]), text)
        return text.replace(sys.prefix, "<environment>").replace(_ROOT, "<repository>")

    def lines(self, lines: Sequence[str]) -> list[str]:
        """The same for each line."""
        return [self.text(line).rstrip() for line in lines]

    def value(self, value: Any) -> Any:
        """The same for all texts in plain data, keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(one) for key, one in value.items()}
        return [self.value(one) for one in value] if isinstance(value, list) else value

    def rows(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """The rows of a table as lines, without the cells that vary; the first one has the names of
        the columns."""
        if not self.is_recorded or not rows:
            return [",".join(row) for row in rows]
        varying = {place for place, name in enumerate(rows[0]) if name in _VARYING_COLUMNS}
        return [
            ",".join("*" if number and place in varying else cell for place, cell in enumerate(row))
            for number, row in enumerate(rows)
        ]


def _sorted(symbols: str) -> str:
    return f"{{{', '.join(sorted(symbols[1:-1].split(', '), key=lambda name: int(name[1:])))}}}"


FIXED, RECORDED = Normalising(), Normalising(is_recorded=True)
