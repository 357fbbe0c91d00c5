"""Decides which values of a call are withheld from the tape, by leaf path, as ``values`` says.

This is decided once per structure, from paths and kinds alone, so a call of a known structure pays
nothing for it. docs/privacy.md has a table of the consequences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from calltape_schema.patterns import deciding, is_exact, matches_whole
from calltape_schema.privacy import FEWEST_RANGED, SMALL, is_name
from calltape_schema.records import Parameter

__all__ = ["FEWEST_RANGED", "SMALL", "Degree", "Withholding", "is_name", "is_public_default"]

_WHOLE = frozenset(("", "args", "kwargs", "outputs"))

Degree = Literal["nothing", "values", "numbers"]
"""What is withheld at a path: nothing; ``values`` (tensors, text and bytes); or ``numbers``, which
means these and numbers as well."""


class Withholding:
    """Answers for the paths of one recorded method.

    Args:
        values: pairs of a pattern and ``"all"`` or ``"none"``. The last pattern that matches a
            path decides; a path that no pattern matches is kept.
        signature: the parameters of the method, which name the positional arguments.

    Attributes:
        withholds: whether anything is withheld anywhere.
        positional: how many arguments have a name if they are passed by position.
        unmatched: the patterns that match no path that was met. Those that name a whole side of
            all calls (``*``, ``outputs.*``) are never in it: they cannot be mistyped.
    """

    def __init__(
        self, values: Sequence[tuple[str, str]], signature: Sequence[Parameter] = ()
    ) -> None:
        self._latest_first = tuple(reversed(values))
        kinds = [(p.name, p.kind) for p in signature]
        self._names = [name for name, kind in kinds if kind.startswith("POSITIONAL")]
        self._known = {name for name, kind in kinds if not kind.startswith("VAR_")}
        self._rest = next((name for name, kind in kinds if kind == "VAR_POSITIONAL"), None)
        self._others = next((name for name, kind in kinds if kind == "VAR_KEYWORD"), None)
        self.positional = len(self._names)
        self.withholds = any(kept != "all" for _, kept in values)
        self.unmatched = {
            pattern for pattern, _ in values if pattern.removesuffix("*").strip(".") not in _WHOLE
        }

    def degree(self, path: str) -> Degree:
        """What is withheld at a path such as ``args.0.x``, ``kwargs.prompt`` or ``outputs``.

        A pattern without wildcards names one value, and withholds all of it. A pattern with
        wildcards does not withhold numbers: they are sizes and settings, which an export needs.
        """
        found: Degree = "nothing"
        for pattern, kept in self._deciding(path):
            if kept == "all":
                return found
            if is_exact(pattern):
                return "numbers"
            found = "values"
        return found

    def meet(self, path: str) -> None:
        """Notes that a call has something at a path: a value, a container, or None."""
        if not self.unmatched or path in ("args", "kwargs"):
            return
        names = self._names_of(path)
        # Several threads may be here. The set is changed in place, so none brings a pattern back.
        for pattern in tuple(self.unmatched):
            if matches_whole(pattern, names):
                self.unmatched.discard(pattern)

    def _deciding(self, path: str) -> Iterator[tuple[str, str]]:
        """The pairs whose pattern matches a path, the one that was given last first."""
        return deciding(self._latest_first, self._names_of(path))

    def _names_of(self, path: str) -> list[str]:
        """A path, and the same path by the name of its parameter: ``args.0.x`` is also
        ``input_ids.x``."""
        side, _, rest = path.partition(".")
        first, dot, below = rest.partition(".")
        if side == "kwargs" and rest:
            found = [path, rest]
            if self._others is not None and first not in self._known:
                found.append(f"{self._others}.{rest}")
            return found
        if side == "args" and first.isdecimal():
            place = int(first)
            if place < len(self._names):
                return [path, f"{self._names[place]}{dot}{below}"]
            if self._rest is not None:
                return [path, f"{self._rest}.{place - len(self._names)}{dot}{below}"]
        return [path]


_MOST_IN_WORD = 32
_SECRET = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)


def is_public_default(default: Any, name: str, *, withholds: bool) -> bool:
    """Whether the default of a parameter may stand on every tape. Nobody passed it in a call, and
    it may be a password of the host.

    Args:
        default: a scalar.
        name: the name of the parameter.
        withholds: whether values are withheld. If so, no text is public, and only small numbers
            are.
    """
    kind = type(default)
    if default is None or kind is bool:
        return True
    if kind is int:
        return bool(-SMALL <= default <= SMALL if withholds else -(2**63) <= default < 2**63)
    if kind is float:
        return not withholds or not SMALL < abs(default) < float("inf")
    if kind is not str or withholds or _SECRET.search(name):
        return False
    return not default or (len(default) <= _MOST_IN_WORD and is_name(default))
