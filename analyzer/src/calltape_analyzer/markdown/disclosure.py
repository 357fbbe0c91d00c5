"""What may be told of a tape in public: names, structure, dtypes, sizes, counts and versions.

In come texts that commands print. Out goes what is left without texts and values of calls, messages
of exceptions, paths and names of machines. A word is told if we wrote it, or if it names an
argument; every other word is ``?``. ``private`` tells all.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cached_property

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.public_paths import LEFT_OUT, is_name, is_public, public_path
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError

__all__ = ["Disclosure"]

_MAX_NAME = 64
_CLASS = re.compile(r"[A-Za-z_][\w.<>]*(:[A-Za-z_][\w.<>]*)?", re.ASCII)
_VERSION = re.compile(r"[\w.+\-() ]{1,100}", re.ASCII)
_DTYPE = re.compile(r"(u?int|b?float|complex|bool|quint|qint)[\w]{0,16}", re.ASCII)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_TOKEN = re.compile(r"[^\s,;()]+")
_NUMBER = re.compile(r"[+-]?\d[\d.,_]*(e[+-]?\d+)?%?|nan|-?inf", re.ASCII)
_SHAPE = re.compile(r"\[[\d\[\]., *]*\]?|[\d.]*\]", re.ASCII)

_OUR_WORDS = """
    a about above accepts all also always an and another any are argument arguments as at attempts
    axis be because before below beside between but by cache call called calls cannot chance
    condition conditions constant constants could counts counter damaged default defaults different
    differs dimension dimensions distinct dtype dtypes dynamic each elements else elsewhere elements
    empty equal equals error evidence every exceed exceeds exception expects false few filled first
    fixed follows for from full group has have here holds if in input inputs instead int ints into
    is it its keep kept kind larger largest last later layout least left length list long longer
    lacks many may might missing model more most moved must needs never new no none not note nothing
    now number object objects of on one only open or other others out output outputs over pass
    passed passes place present program programs raised range rank recorded refused rests returned
    same saw seen serves several shape shapes since size sizes smaller smallest so some still
    structure sum symbol symbols take taken takes tape tensor tensors text than that the their them
    then there these they this to too torch traffic trace true value values variant variants varied
    varies verified was were when where which while window with without would wrong
    flags tensors merged main prefill decode strided sparse_coo sparse_csr jagged
    torch.export chance? True False None … + - * = < > <= >= == != / .. ...
"""
_WORDS = frozenset(_OUR_WORDS.split())
"""The words that explanations, checks and differences are written with."""

_USUAL_VARIANTS = frozenset(("prefill", "decode", "merged", "main"))
"""Names of variants that tell nothing, whatever tape they are of."""


class Disclosure:
    """What may be told of some tapes.

    Args:
        tapes: all tapes that texts are about.
        private: whether everything may be told.
    """

    def __init__(self, *tapes: Tape, private: bool = False) -> None:
        self.private = private
        self._tapes = tapes
        self.parameters = {
            parameter.name for tape in tapes for parameter in Signature.of(tape.target).parameters
        }

    def place(self, text: str) -> str:
        """The path of an argument or output, with its axes: ``x.layers.*.keys[2]``. If a key in it
        does not look like a name, the path ends at its argument."""
        if self.private:
            return text
        path, bracket, axes = text.partition("[")
        more = ""
        if (listed := re.search(r" (\(\d+ of them\)|and \d+ (more|like it))$", path)) is not None:
            path, more = path[: listed.start()], listed[0]
        if not re.fullmatch(r"[\d, *\]\[.]*", axes):
            bracket = axes = ""
        if not is_public(path):
            return public_path(path)
        return f"{path}{bracket}{axes}{more}"

    def text(self, text: str, *, numbers: bool = True) -> str:
        """A text of a finding without what was passed.

        Args:
            text: in our own words, around names and values.
            numbers: whether its numbers are sizes and counts; else they are left out too.
        """
        if self.private:
            return text
        unquoted = _QUOTED.sub(LEFT_OUT, text)
        # A text that was cut has no closing quote.
        unquoted = re.split("['\"]", unquoted, maxsplit=1)[0]
        return _TOKEN.sub(lambda found: self._token(found[0], numbers), unquoted)

    def _token(self, token: str, numbers: bool) -> str:
        core = token.strip(":?!…").removesuffix(".")
        if not core or core in _WORDS or token in _WORDS or core.lower() in _WORDS:
            return token
        if _NUMBER.fullmatch(core) or _SHAPE.fullmatch(core) or re.fullmatch(r"\d+\.\.\d+", core):
            return token if numbers else LEFT_OUT
        name, _, rest = core.partition("[")
        if _DTYPE.fullmatch(name) and re.fullmatch(r"[\d,\]]*", rest):
            return token
        if name.partition(".")[0] in self.parameters:
            return token.replace(core, self.place(core))
        return LEFT_OUT

    @cached_property
    def _variants(self) -> dict[str, str]:
        """Per name of a variant of the tapes the one that may be told."""
        found: dict[str, str] = {name: name for name in _USUAL_VARIANTS}
        for tape in self._tapes:
            with suppress(InferenceError, TapeError):
                found |= {one.name: one.public_name for one in tape.variants()}
        return found

    def variant(self, name: str | None, number: int | None = None) -> str:
        """The name of a variant, or its number if the name may have what was passed."""
        if name is None:
            return "-"
        if self.private:
            return name
        return self._variants.get(name, "a variant" if number is None else f"variant {number}")

    def symbol(self, name: str) -> str:
        """The name of a symbol, which may be made of keys."""
        return name if self.private or is_name(name) else LEFT_OUT

    def class_name(self, name: str) -> str:
        """``module:Class``."""
        known = _CLASS.fullmatch(name) is not None and len(name) <= 2 * _MAX_NAME
        return name if self.private or known else LEFT_OUT

    def version(self, text: str) -> str:
        """The version of a library, or the platform."""
        return text if self.private or _VERSION.fullmatch(text) else LEFT_OUT
