"""The fewest calls, without what they returned, and the fewest arguments with the fewest parts:
layers of a cache, elements of lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.minimising.halving import fewest, without_most
from calltape_analyzer.minimising.search import Search
from calltape_analyzer.text import counted

__all__ = ["drop_arguments", "drop_calls", "drop_outcomes", "drop_parts"]

_NONE = {"kind": "none"}
_MAX_LISTS = 64

Path = tuple[int, ...]


def drop_calls(search: Search) -> None:
    """Leaves calls out until none of the rest can be left out."""
    with search.opened() as base:
        places = range(len(base.calls))

        def enough(some: list[int]) -> bool:
            what = f"{counted(len(some), 'call')} of {len(places)}"
            return search.keeps(what, (base.calls[place] for place in some))

        fewest(places, enough)


def drop_outcomes(search: Search) -> bool:
    """Leaves out what the calls returned or raised. Tells whether the failure does without it: if
    not, arguments may not be changed, because the outcome is that of the recorded ones."""
    calls = list(search.tape.calls)
    if all(call.record.outputs is None and call.record.error is None for call in calls):
        return True
    return search.keeps("no outcomes", (ChangedCall(call).built() for call in calls))


def drop_arguments(search: Search) -> None:
    """Leaves arguments out: those by name, those at the end; others become None."""
    _drop_named(search)
    while _changed(search, "one positional argument less", _without_last):
        pass
    most = max((len(ChangedCall(c).positional["children"]) for c in search.tape.calls), default=0)
    for position in reversed(range(most)):
        _changed(search, f"None for positional argument {position}", _with_none, position)


def _drop_named(search: Search) -> None:
    with search.opened() as base:
        every = [key for call in base.calls for key in ChangedCall(call).named["keys"]]
        names = list(dict.fromkeys(every))

        def enough(kept: list[Any]) -> bool:
            changed = {at: ChangedCall(call) for at, call in enumerate(base.calls)}
            for one in changed.values():
                _keep(one.named, [key in kept for key in one.named["keys"]])
            what = f"{len(kept)} of {counted(len(names), 'named argument')}"
            return search.keeps_changed(what, base.calls, changed)

        without_most(names, enough)


def _without_last(changed: ChangedCall) -> bool:
    children = changed.positional["children"]
    return bool(children) and children.pop() is not None


def _with_none(changed: ChangedCall, position: int) -> bool:
    children = changed.positional["children"]
    if position >= len(children) or children[position]["kind"] == "none":
        return False
    children[position] = dict(_NONE)
    return True


def _changed(search: Search, what: str, change: Callable[..., bool], *args: Any) -> bool:
    """Tries the same change of all calls."""
    every = ((at, ChangedCall(call)) for at, call in enumerate(search.tape.calls))
    changed = {at: one for at, one in every if change(one, *args)}
    return search.keeps_changed(what, search.tape.calls, changed)


def drop_parts(search: Search) -> None:
    """Leaves out elements of lists, tuples and dicts among the arguments: a cache has its layers in
    one. Those that lie further outside come first."""
    tried: set[Path] = set()
    while len(tried) < _MAX_LISTS:
        path = next((one for one in _lists(search) if one not in tried), None)
        if path is None:
            return
        tried.add(path)
        _drop_from(search, path)


def _lists(search: Search) -> Iterator[Path]:
    """Where the first call has lists of values, outermost first."""
    waiting: list[tuple[Path, dict[str, Any]]] = []
    root = ChangedCall(search.tape.calls[0]).root
    for i, side in enumerate(root["children"]):
        waiting += [((i, j), child) for j, child in enumerate(side["children"])]
    while waiting:
        path, node = waiting.pop(0)
        children = node.get("children", ())
        if children and node["kind"] in ("list", "tuple", "dict"):
            yield path
        waiting += [((*path, i), child) for i, child in enumerate(children)]


def _drop_from(search: Search, path: Path) -> None:
    with search.opened() as base:
        first = _at(ChangedCall(base.calls[0]), path)
        places = list(range(len(first["children"])))

        def enough(kept: list[int]) -> bool:
            changed: dict[int, ChangedCall] = {}
            for at, call in enumerate(base.calls):
                one = ChangedCall(call)
                node = _at(one, path)
                if node is not None and len(node["children"]) == len(places):
                    _keep(node, [place in set(kept) for place in places])
                    changed[at] = one
            what = f"{len(kept)} of {counted(len(places), 'part')} of a list"
            return search.keeps_changed(what, base.calls, changed)

        # The first layers of a cache are what a model takes; a loop over them is halved.
        for length in dict.fromkeys((1, len(places) // 2)):
            if 0 < length < len(places) and enough(places[:length]):
                places_left = places[:length]
                break
        else:
            places_left = places
        if len(places_left) == len(places):
            without_most(places, enough)


def _at(changed: ChangedCall, path: Path) -> Any:
    node: Any = changed.root
    for place in path:
        children = node.get("children", ())
        if place >= len(children):
            return None
        node = children[place]
    return node if node["kind"] in ("list", "tuple", "dict") else None


def _keep(node: dict[str, Any], wanted: list[bool]) -> None:
    """Leaves out the other children of a node."""
    for name in ("children", "keys"):
        if name in node:
            pairs = zip(node[name], wanted, strict=True)
            node[name] = [one for one, is_wanted in pairs if is_wanted]
