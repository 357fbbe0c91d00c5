"""What a shell offers when somebody presses TAB.

In come the words before the cursor, from the scripts of :mod:`~calltape_analyzer.cli.shells`. Out
goes a line per answer: ``plain``, ``path`` or ``files``, a value, and a word of help, with tabs
between them. Nothing is raised and nothing is printed to stderr: whoever presses TAB is in the
middle of a line.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from calltape_analyzer.cli.answer import Answer, is_safe
from calltape_analyzer.cli.asked_word import AskedWord, asked_word

__all__ = ["VARIABLE", "answers", "complete", "offered", "words_of_line"]

VARIABLE = "_CALLTAPE_COMPLETE"
"""Of the environment: the shell that asks. It is set by our scripts only."""

_SECONDS = 5.0
_MOST = 200
_MOST_HELP = 70
_ASSIGNMENT = re.compile(r"\w+=")
_END = "\1"


class _Late(BaseException):
    """The time is over. No ``Exception``, because those are handled where tapes are read."""


def complete(shell: str, given: Sequence[str]) -> int:
    """Prints the answers to a shell; the exit code is always 0.

    Args:
        shell: ``bash``, ``zsh`` or ``fish``.
        given: of bash the line up to the cursor, and the characters that break words there; of the
            others the words, of which the last is at the cursor, and may have quotes.
    """
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    line_breaks = ""
    if shell == "bash":
        line, line_breaks = (*given, "", "")[:2]
        words = words_of_line(line)
    else:
        words = [*given[:-1], *words_of_line(f"calltape {given[-1]}")[-1:]] if given else [""]
    prefix = _before_break(words[-1], line_breaks)
    for answer in offered(words, shell):
        value = answer.value[len(prefix) :] if answer.value.startswith(prefix) else answer.value
        fields = (answer.kind, value, _short(answer.help))
        sys.stdout.buffer.write(os.fsencode("\t".join(fields) + "\n"))
    sys.stdout.buffer.flush()
    return 0


def words_of_line(line: str) -> list[str]:
    """The words of a line of bash after the name of the program, without quotes and escapes. The
    last one is at the cursor, and may be empty."""
    lexer = shlex.shlex(line + _END, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # a quote is open
        words.append(lexer.token)
    words[-1] = words[-1].removesuffix(_END)
    while len(words) > 2 and _ASSIGNMENT.match(words[0]):
        del words[0]
    return words[1:] or [""]


def _before_break(word: str, line_breaks: str) -> str:
    """What bash leaves as it is of the word at the cursor, for which it takes what comes after the
    last colon or equals sign."""
    return word[: max((word.rfind(c) + 1 for c in ":=" if c in line_breaks), default=0)]


def _short(text: str) -> str:
    first = re.split(r"[.:;] |\n", text, maxsplit=1)[0].rstrip(".")
    plain = "".join(char if char.isprintable() else " " for char in first)
    return plain if len(plain) <= _MOST_HELP else f"{plain[: _MOST_HELP - 1]}…"


def offered(words: Sequence[str], shell: str) -> list[Answer]:
    """The answers for a line, as many as there are before the time is over. Nothing is raised."""
    found: dict[str, Answer] = {}
    try:
        with _in_time():
            for answer in answers(words, shell):
                # A name with a control character would be two lines, or more than a name.
                if answer.value.isprintable():
                    found.setdefault(answer.value, answer)
                if len(found) >= _MOST:
                    break
    except (_Late, Exception):
        pass  # there are fewer answers
    return list(found.values())


@contextmanager
def _in_time() -> Iterator[None]:
    """Raises :class:`_Late` within the block when the time is over."""

    def end(number: int, frame: object) -> None:
        raise _Late

    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answers(words: Sequence[str], shell: str = "bash") -> Iterator[Answer]:
    """What can stand at the cursor.

    Args:
        words: after the name of the program; the last one is at the cursor.
        shell: zsh looks for files itself.
    """
    asked = asked_word(words)
    if asked.verb is None and asked.option is None:
        yield from _verbs(asked)
    if asked.text.startswith("-") and asked.option is None:
        yield from _options(asked)
        return
    if asked.option is not None:
        for item in asked.option.shell_complete(None, asked.text):
            if item.type == "plain":
                yield Answer("plain", asked.prefix + item.value)
    if not asked.kinds:
        return
    from calltape_analyzer.cli.candidates import candidates

    for answer in candidates(asked, shell):
        if answer.kind != "plain" or is_safe(answer.value):
            yield answer._replace(value=asked.prefix + answer.value)


def _verbs(asked: AskedWord) -> Iterator[Answer]:
    from calltape_analyzer.cli.verbs import VERBS

    for verb in VERBS:
        if verb.name.startswith(asked.text):
            yield Answer("plain", verb.name, verb.summary)


def _options(asked: AskedWord) -> Iterator[Answer]:
    for option in asked.options:
        for name in (*option.opts, *option.secondary_opts):
            # The short form of a long one only if it is asked for.
            if name.startswith(asked.text) and (name.startswith("--") or asked.text == name):
                yield Answer("plain", name, option.help or "")
    if "--help".startswith(asked.text):
        yield Answer("plain", "--help", "Show this message and exit.")
