"""What the analysis says of a tape, in a form that does not depend on pseudonyms.

In come two tapes, and what was replaced in the second. Out goes where their shapes, variants or
explanations differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.explanation.reasons import reasons_of
from calltape_analyzer.explanation.subjects import explain
from calltape_analyzer.observing.switches import looks_like_name
from calltape_analyzer.observing.usual_names import own_dimension_name
from calltape_analyzer.plain_data import plain
from calltape_analyzer.redacting.numbered_names import NumberedNames
from calltape_analyzer.redacting.pseudonyms import Pseudonyms
from calltape_analyzer.redacting.tree_plan import Replaced
from calltape_analyzer.tape import Tape
from calltape_analyzer.variant import Variant
from calltape_schema.errors import TapeError

__all__ = ["Answers", "Comparison", "apart", "difference"]

_QUOTED = re.compile(r"(?<![^= {])'[^']*'(?:: [-+\w.]+)?")
_QUOTED_NUMBER = re.compile(r"(?<![^ (])((?:<key \d+>|[^ =])+)=[-+(]?[\w.+-]+\)?")
_SOME = re.compile(r"(?:(?:<key \d+>|[^ ,])+, )*(?:<key \d+>|[^ ,])+ and ([\d,]+) more")
"""The first of many places. Which ones come first follows from keys, which are others now."""
_NUMBERED = re.compile(r"<key (\d+)>")
_CALL = re.compile(r"\bcall (?:[0-9a-f]{8}:)?[0-9]+\b")
_WORD = re.compile(r"(?<!\w)[A-Za-z]\w*", re.ASCII)
_PLACE_OF_CALL = ("path", "address")
_OF_TRAFFIC = re.compile(r"\bkept\b")
"""What a warning says of numbers of calls that are not on the tape: a new tape does not count those
that were replaced."""
_NUMBERS = ("min", "max", "sizes", "distinct", "dimensions", "value")


class Answers:
    """What the analysis says of a tape, as it says it.

    Attributes:
        variants: or the words of the error.
        by_question: the other answers.
        explanations: by the names of arguments.
    """

    def __init__(self, tape: Tape) -> None:
        self.variants = _asked(tape.variants)
        self.by_question: dict[str, Any] = {"variants": _each(self.variants, lambda v: v.findings)}
        shapes = _asked(tape.shape_findings)
        self.by_question["shapes"] = shapes if isinstance(shapes, str) else shapes.model_dump()
        self.by_question["shapes by variant"] = _errors(self.variants, Variant.shape_findings)
        self.explanations = dict(_explanations(tape, self.variants))


class Comparison:
    """How two tapes are compared.

    Args:
        pseudonyms: of the second tape.
        replaced: what they stand for there.
        kept: whether the text at a place of an argument was kept.
        ranges: whether ranges of elements are to be the same.
        numbered: whether the calls have the same numbers.

    Attributes:
        variants: of the tape that was asked last.
        old_variants: of the first tape, once it was asked; they take long to find again.
    """

    def __init__(
        self, pseudonyms: Pseudonyms, replaced: Replaced, kept: Callable[[str], bool],
        *, ranges: bool, numbered: bool,
    ) -> None:  # fmt: skip
        self._pseudonyms = pseudonyms
        self._replaced = replaced
        self._kept = kept
        self._ranges = ranges
        self._numbered = numbered
        self._known: frozenset[str] = frozenset()
        self._keys: dict[str, None] = {}
        self._shown_keys: tuple[frozenset[str], ...] = frozenset(), frozenset()
        self._names = NumberedNames(()), NumberedNames(())
        self._symbols: dict[str, str] = {}
        self._vague: set[str] = set()
        self._known_texts: dict[tuple[str, bool], str] = {}
        self.variants: tuple[Variant, ...] = ()
        self.old_variants: tuple[Variant, ...] = ()

    def answers(self, said: Answers, *, is_new: bool) -> dict[str, Any]:
        """What the analysis says of a tape, so that it can be compared.

        Args:
            said: of one of the two.
            is_new: whether it is the redacted one.
        """
        variants = said.variants
        self.variants = () if isinstance(variants, str) else tuple(variants)
        if not is_new:
            self.old_variants = self.variants
        texts = {} if is_new else self._texts(variants)
        found = dict(said.by_question)
        for name, explanation in said.explanations.items():
            found[f"explain {self._with_keys(name, is_new)}"] = explanation
        of_variants = found.pop("variants")
        self._use_symbols(self._symbols_of_all(is_new))
        alike: dict[str, Any] = self._alike(found, texts, is_new)
        alike["variants"] = self._of_variants(of_variants, texts, is_new)
        return alike

    def _of_variants(self, found: Any, texts: Mapping[str, str], is_new: bool) -> Any:
        """The findings of the variants, each with its own symbols."""
        if not self.variants:  # or the words of an error
            return self._alike(found, texts, is_new)
        made: list[Any] = []
        for one, variant in zip(found, self.variants, strict=True):
            self._use_symbols(self._symbols_of(variant, is_new))
            made.append(self._alike(one, texts, is_new))
        return self._in_order(made)

    def _use_symbols(self, symbols: dict[str, str]) -> None:
        self._symbols = symbols
        self._known_texts.clear()

    def _symbols_of(self, variant: Variant, is_new: bool) -> dict[str, str]:
        """The names of symbols that are made of paths, with what stands for them. Also of paths
        without replaced keys: one that looked like another symbol's has a number behind it."""
        if not self._replaced.keys:
            return {}
        names: dict[str, str] = {}
        layout = variant.facts.group.layout
        for symbol in variant.facts.symbols:
            axis, path = symbol.columns[0].axis, layout.path(symbol.columns[0])
            place = f"{path.argument}{path.path}"
            if symbol.name.startswith(own_dimension_name(path.argument, path.path, axis)):
                names[symbol.name] = f"<symbol of {self._with_keys(place, is_new)}[{axis}]>"
        return names

    def _symbols_of_all(self, is_new: bool) -> dict[str, str]:
        """The same of all variants. Names of several paths, which keys that are spelt alike have,
        are no names of any; nor are those of these paths on the other tape."""
        found: dict[str, set[str]] = {}
        for variant in self.variants:
            for name, path in self._symbols_of(variant, is_new).items():
                found.setdefault(name, set()).add(path)
        if not is_new:
            self._vague = set().union(*(paths for paths in found.values() if len(paths) > 1))
        return {
            name: "<symbol>" if len(paths) > 1 or paths & self._vague else paths.pop()
            for name, paths in found.items()
        }

    def in_words(self, question: str) -> str:
        """A question of ``answers`` with the names of the old tape."""
        keys = list(self._keys)
        return _NUMBERED.sub(lambda found: keys[int(found[1])], question)

    def _parts(self, parts: Sequence[Any], is_new: bool) -> list[Any]:
        """The parts of an explanation, each of numbers that were replaced or of others. Places that
        are alike are one part: which ones are, beside a replaced number, is chance."""
        numbers = self._numbers()
        made: list[Any] = []
        for part in parts:
            is_replaced = [self._with_keys(one, is_new) in numbers for one in part["places"]]
            for wanted in dict.fromkeys(is_replaced):
                pairs = zip(part["places"], is_replaced, strict=True)
                made.append({**part, "places": [one for one, is_one in pairs if is_one is wanted]})
        variants = list(dict.fromkeys(part["variant"] for part in made))
        return sorted(made, key=lambda part: (variants.index(part["variant"]), part["places"]))

    def _texts(self, variants: Any) -> dict[str, str]:
        """The texts that are shown as they are, with those that stand for them."""
        found: dict[str, str] = {}
        for variant in variants if isinstance(variants, list) else ():
            for place, value in variant.findings.constants.items():
                if isinstance(value, str) and not self._kept(place):
                    found[value] = self._pseudonyms.text(value)
        return found

    def _alike(self, value: Any, texts: Mapping[str, str], is_new: bool, key: str = "") -> Any:
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self._text(value, texts, is_new)
        if isinstance(value, dict):
            return self._dict(value, texts, is_new, key)
        if key == "parts" and self._replaced.numbers:
            value = self._parts(value, is_new)
        if key == "keys":  # a size or a count that is the same number is no key
            return self._in_order([self._key(one, texts, is_new) for one in value])
        if isinstance(value, list | tuple):
            return self._in_order([self._alike(one, texts, is_new) for one in value])
        return value if isinstance(value, int) else plain(value)  # NaN is not equal to itself

    def _in_order(self, made: list[Any]) -> list[Any]:
        """Other keys, and calls with other numbers, have another order: then this is that of what
        was said."""
        if (self._replaced.keys or not self._numbered) and len(made) > 1:
            made.sort(key=lambda one: json.dumps(one, sort_keys=True, default=repr))
        return made

    def _key(self, value: Any, texts: Mapping[str, str], is_new: bool) -> Any:
        """A key of a dict: its number, if it is none that stayed."""
        self._look_at_keys()
        if not isinstance(value, str) and str(value) in self._shown_keys[is_new]:
            return self._text(str(value), {}, is_new)
        return self._alike(value, texts, is_new)

    def _dict(self, value: Any, texts: Mapping[str, str], is_new: bool, key: str) -> Any:
        if key == "constants":
            return self._constants(value, is_new)
        hidden: set[str] = set()
        if "first_call" in value:
            hidden.update(_PLACE_OF_CALL if "tensors" not in value else ("address",))
        if "why" in value:
            # The dimensions of a symbol: the findings have them once, and each of them has all.
            hidden.add("equals")
        if not self._numbered:
            hidden.update(("first_call", "first"))
        if not self._ranges:
            hidden.add("range")
        if self._replaced.keys:
            hidden.add("name")
        if self._is_replaced(value, is_new):
            hidden.update(_NUMBERS)
            value = {**value, "warnings": _without_traffic(value.get("warnings", ()))}
        if "notes" in value:
            value = {**value, "notes": [*self._notes(value["notes"], is_new)]}
        return {
            self._text(str(name), texts, is_new): self._alike(one, texts, is_new, name)
            for name, one in value.items()
            if name not in hidden
        }

    def _notes(self, notes: Sequence[str], is_new: bool) -> Iterator[str]:
        """The notes of a variant that are not about all values of a number that was replaced."""
        for note in notes:
            place = note.partition(" is constant, but ")[0]
            if self._with_keys(place, is_new) not in self._numbers():
                yield note

    def _is_replaced(self, value: Mapping[str, Any], is_new: bool) -> bool:
        """Whether these are findings of numbers that were replaced."""
        numbers = self._numbers()
        places = value.get("places") or (value.get("dimensions") if "expression" in value else ())
        if places and all(isinstance(place, str) for place in places):
            return numbers.issuperset(self._with_keys(one, is_new) for one in places)
        place = f"{value.get('argument')}{value.get('path')}"
        return self._with_keys(place, is_new) in numbers

    def _numbers(self) -> frozenset[str]:
        """The places of numbers that were replaced, as :meth:`_with_keys` gives them."""
        if len(self._known) != len(self._replaced.numbers):
            self._known = frozenset(self._with_keys(one, False) for one in self._replaced.numbers)
        return self._known

    def _constants(self, value: Mapping[str, Any], is_new: bool) -> Any:
        made: dict[str, Any] = {}
        for place, one in value.items():
            shown = self._with_keys(place, is_new)
            if shown in self._numbers():
                one = "replaced"
            elif not is_new and isinstance(one, str) and not self._kept(place):
                one = self._pseudonyms.text(one)
            elif not is_new and isinstance(one, bytes) and not self._kept(place):
                one = self._pseudonyms.data(one)
            made[shown] = plain(one)
        return made

    def _text(self, value: str, texts: Mapping[str, str], is_new: bool) -> str:
        """A text without what differs by the key. Most texts come often: the names of findings."""
        asked = value, bool(texts)
        if asked not in self._known_texts:
            self._known_texts[asked] = self._new_text(value, texts, is_new)
        return self._known_texts[asked]

    def _new_text(self, value: str, texts: Mapping[str, str], is_new: bool) -> str:
        shown = {repr(old): repr(new) for old, new in texts.items() if looks_like_name(old)}
        if shown:
            # In one go: what stands for a text may be another text of the tape.
            either = "|".join(map(re.escape, sorted(shown, key=len, reverse=True)))
            value = re.sub(f"(?<![^= ])(?:{either})", lambda found: shown[found[0]], value)
        value = self._with_keys(value, is_new)
        if not self._numbered:
            value = _CALL.sub("call", value)
        if "<key " in value and " more" in value:
            value = _SOME.sub(r"some and \1 more", value)
        if "=" in value:
            value = self._without_numbers(value)
        if not self._symbols:
            return value
        # Last, because a symbol may have the name of any word.
        return _WORD.sub(lambda found: self._symbols.get(found[0], found[0]), value)

    def _with_keys(self, value: str, is_new: bool) -> str:
        self._look_at_keys()
        return self._names[is_new].numbered(value) if self._keys else value

    def _look_at_keys(self) -> None:
        """Keys are replaced as long as a tape is written."""
        names, words = self._replaced.keys, self._replaced.arguments
        if len(self._keys) == len(names):
            return
        self._keys = dict.fromkeys(names)
        others = names.values()
        self._shown_keys = frozenset(names), frozenset(others)
        self._names = (
            NumberedNames(names, words, others),
            NumberedNames(others, {names[word] for word in words}, names),
        )

    def _without_numbers(self, value: str) -> str:
        """A text that does not quote numbers that were replaced (``more.0=4041``)."""
        return _QUOTED_NUMBER.sub(
            lambda found: f"{found[1]}=replaced" if found[1] in self._numbers() else found[0], value
        )


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first question that two tapes answer differently; None if there is none."""
    names = dict.fromkeys((*before, *after))
    return next((name for name in names if before.get(name) != after.get(name)), None)


def apart(before: Any, after: Any) -> Any:
    """The parts in which two answers differ, which are as deep as they go."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = {name: (before.get(name), after.get(name)) for name in (*before, *after)}
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = dict(enumerate(zip(before, after, strict=True)))
    else:
        return before, after
    return {name: apart(one, other) for name, (one, other) in pairs.items() if one != other}


def _without_traffic(warnings: Sequence[str]) -> list[str]:
    return [text for text in warnings if not _OF_TRAFFIC.search(text)]


def _asked(question: Callable[[], Any]) -> Any:
    """The answer; or the words of the error, which are an answer too."""
    try:
        return question()
    except (InferenceError, UsageError) as error:
        # Which text or number a message quotes is no answer, and it may quote any.
        return f"{type(error).__name__}: {_QUOTED.sub('text', error.reason)}"
    except TapeError as error:
        return f"TapeError: {error.kind}"


def _each(variants: Any, question: Callable[[Variant], Any]) -> Any:
    if isinstance(variants, str):
        return variants
    found = (_asked(partial(question, one)) for one in variants)
    return [one if isinstance(one, str) else one.model_dump() for one in found]


def _errors(variants: Any, question: Callable[[Variant], Any]) -> Any:
    """The words of each variant's error; None where the answer is made of its findings, which are
    compared anyway."""
    if isinstance(variants, str):
        return variants
    found = (_asked(partial(question, one)) for one in variants)
    return [one if isinstance(one, str) else None for one in found]


def _explanations(tape: Tape, variants: Any) -> Iterator[tuple[str, Any]]:
    """What is said of each argument that any variant has."""
    if isinstance(variants, str):
        return
    names = dict.fromkeys(name for one in variants for name in one.facts.group.layout.arguments)
    reasons = reasons_of(tape, variants)
    for name in names:
        said = _asked(partial(explain, tape, variants, name, reasons=reasons))
        yield name, said if isinstance(said, str) else said.model_dump()
