"""The fewest arguments, and of these the fewest parts: layers of a cache, elements of lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from calltape_analyzer.minimising.changed_calls import ChangedCall
from calltape_analyzer.minimising.halving import without_most
from calltape_analyzer.minimising.search import Search
from calltape_analyzer.text import counted

__all__ = ["drop_arguments", "drop_parts"]

_NONE = {"kind": "none"}
_MAX_LISTS = 64

Path = tuple[int, ...]


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
            made: list[Any] = []
            for call in base.calls:
                changed = ChangedCall(call)
                _keep(changed.named, [k in kept for k in changed.named["keys"]])
                made.append(changed.built())
            return search.keeps(f"{len(kept)} of {counted(len(names), 'named argument')}", made)

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
    made: list[Any] = []
    any_changed = False
    for call in search.tape.calls:
        changed = ChangedCall(call)
        is_new = change(changed, *args)
        any_changed |= is_new
        made.append(changed.built() if is_new else call)
    return any_changed and search.keeps(what, made)


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
            made: list[Any] = []
            for call in base.calls:
                changed = ChangedCall(call)
                node = _at(changed, path)
                if node is None or len(node["children"]) != len(places):
                    made.append(call)
                    continue
                _keep(node, [place in set(kept) for place in places])
                made.append(changed.built())
            return search.keeps(f"{len(kept)} of {counted(len(places), 'part')} of a list", made)

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
