"""Turns tokens into the structure document of the format, once per distinct structure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from calltape_recorder.bounds import MAX_STRUCTURES, BoundedDict
from calltape_recorder.capture.contexts import context_document
from calltape_recorder.capture.data_parts import Boundary, Core, DataKeys, PlacedDict, data_lists
from calltape_recorder.capture.names import MODULE, type_name
from calltape_recorder.capture.omissions import Degree, Omissions
from calltape_recorder.threads import RLock, new_count
from calltape_schema.cache_classes import is_cache
from calltape_schema.objects import NESTED_TENSOR, class_attribute, namespace_of
from calltape_schema.packing import pack_int, pack_text
from calltape_schema.privacy import is_name
from calltape_schema.tree import encode_structure, leaf_key

_WEIGHT_BYTES = 64

Wanted = bool | tuple[bool, ...]
"""Whether the bytes of leaves are kept: one answer for all leaves, or one answer per leaf."""

ScalarForm = Literal["value", "uncounted", "length", "nothing"]
"""What the tape has of a scalar. It has the value of an ``uncounted`` one, but its counts do
not."""


@dataclass(eq=False, slots=True)
class Structure:
    """One distinct structure. It is compared by identity, so that dicts with structures as keys
    never compare paths.

    Attributes:
        encoded: the document, as the tape has it.
        keys: for each leaf, its readable path, which names its bytes in the blob.
        classes: the classes met in it, by ``module:qualname``.
        wanted: whether the bytes of its leaves are kept, see :data:`Wanted`.
        scalar_forms: what the tape has of each scalar; None if it has and counts all values.
        core: the structure without the entries of dicts whose keys are data; None if there are
            none.
        number: a unique one.
        check: guards that accept its leaves whatever their sizes; None before the first leaves. The
            folder ``snapshot`` sets this and the attributes below.
        latest_facts: of its leaves in the latest call whose tensors were read.
        is_paid: whether a call that waits, or waited, in the queue has reserved memory for it.
    """

    encoded: bytes
    keys: tuple[str, ...]
    classes: dict[str, type]
    wanted: Wanted = True
    scalar_forms: tuple[ScalarForm, ...] | None = None
    core: Core | None = None
    number: int = field(default_factory=new_count().__next__)
    check: Callable[..., bool] | None = None
    latest_facts: tuple[Any, ...] = ()
    is_paid: bool = False

    @property
    def weight(self) -> int:
        """What it counts for in a :class:`~calltape_recorder.bounds.BoundedDict`."""
        return len(self.encoded) // _WEIGHT_BYTES

    def kept(self, scalars: list[Any]) -> list[Any]:
        """What the tape has of the scalars of a call: values and lengths."""
        if self.scalar_forms is None:
            return scalars
        pairs = zip(scalars, self.scalar_forms, strict=True)
        return [len(v) if form == "length" else v for v, form in pairs if form != "nothing"]

    def numbers(self, kept: Sequence[Any]) -> Sequence[Any]:
        """The result of :meth:`kept` with None for each length: the call did not pass that
        number."""
        if self.scalar_forms is None:
            return kept
        scalar_forms = [form for form in self.scalar_forms if form != "nothing"]
        pairs = zip(kept, scalar_forms, strict=True)
        return [None if form == "length" else value for value, form in pairs]

    def counted(self, outline: tuple[Any, ...]) -> tuple[Any, ...]:
        """An outline that ends with :meth:`numbers`, with None for those that must not be
        counted."""
        if self.scalar_forms is None:
            return outline
        scalar_forms = [form for form in self.scalar_forms if form != "nothing"]
        first = len(outline) - len(scalar_forms)
        pairs = zip(outline[first:], scalar_forms, strict=True)
        return *outline[:first], *[value if form == "value" else None for value, form in pairs]


class Structures:
    """Builds structures from tokens, and remembers a bounded number of them. The oldest one is
    forgotten first.

    Args:
        on_new: is called with every new structure.
        omissions: is asked once per structure.
    """

    def __init__(
        self, on_new: Callable[[Structure], None], omissions: Omissions | None = None
    ) -> None:
        self._known: BoundedDict[tuple[Any, ...], Structure] = BoundedDict(
            MAX_STRUCTURES, lambda tokens, _: len(tokens)
        )
        self._on_new = on_new
        self._omissions = omissions if omissions and omissions.omits_values else None
        self._data_keys = DataKeys()
        self._lock = RLock()  # guards _known and _data_keys

    def of(self, tokens: tuple[Any, ...]) -> Structure:
        """The structure of these tokens. It is built only if it is not remembered."""
        structure = self._known.get(tokens)
        return self._built(tokens) if structure is None else structure

    def _built(self, tokens: tuple[Any, ...]) -> Structure:
        spelled = spell_out(tokens)
        structure = self._known.get(spelled)
        if structure is not None:
            with self._lock:
                self._known.keep(tokens, structure)
            return structure
        builder = _Builder(spelled, self._omissions)
        built = builder.structure()
        with self._lock:
            structure = self._known.get(spelled)
            if structure is not None:  # another thread built it meanwhile
                return structure
            if builder.dicts:
                built.core = self._data_keys.core_of(spelled, builder.dicts, builder.boundary())
            for key in {tokens, spelled}:
                self._known.keep(key, built)
        self._on_new(built)
        return built


def spell_out(tokens: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tokens with each repetition written out."""
    spelled: list[Any] = []
    for token in tokens:
        if type(token) is tuple and token[0] == "again":
            _, width, times = token
            spelled += spelled[-width:] * times
        else:
            spelled.append(token)
    return tuple(spelled)


class _Position(NamedTuple):
    """Where the builder is in the structure.

    Attributes:
        path: the path on the tape.
        given: the path with the keys of the call, which the patterns of ``values`` match.
        is_data: whether numbers here are data.
        is_state: whether numbers here are sizes and settings of a cache.
    """

    path: str
    given: str
    is_data: bool = False
    is_state: bool = False

    def below(self, part: Any, given: Any = None) -> _Position:
        shown = f"{self.path}.{part}"
        if given is None and self.given is self.path:
            return _Position(shown, shown, self.is_data, self.is_state)
        given = f"{self.given}.{part if given is None else given}"
        return _Position(shown, given, self.is_data, self.is_state)


class _Builder:
    def __init__(self, tokens: tuple[Any, ...], omissions: Omissions | None) -> None:
        self._root = tokens[0]
        self._tokens = tokens
        self._place = 0  # of the current token
        self._omissions = omissions
        self._lists = {} if omissions is None else data_lists(tokens, omissions.positional)
        self._keys: list[str] = []
        self._wanted: list[bool] = []
        self._taken: set[str] = set()
        self._forms: list[ScalarForm] = []
        self._scalars = 0
        self._classes: dict[str, type] = {}
        self.dicts: list[PlacedDict] = []

    def structure(self) -> Structure:
        context = None
        if self._root != "outputs":
            context = context_document(self._root)
            children = [self._node(_Position(side, side)) for side in ("args", "kwargs")]
            root = {"kind": "tuple", "children": children}
        else:
            # Ints that a model returns are data (a token of a text may be one), never settings of
            # an export.
            root = self._node(_Position("outputs", "outputs", is_data=True))
        document = {"root": root, "leaves": len(self._keys), "scalars": self._scalars}
        if context is not None:
            document["context"] = context
        wanted: Wanted = tuple(self._wanted)
        if len(set(self._wanted)) <= 1:
            wanted = all(self._wanted)
        scalar_forms = None if set(self._forms) <= {"value"} else tuple(self._forms)
        encoded, keys = encode_structure(document), tuple(self._keys)
        return Structure(encoded, keys, self._classes, wanted, scalar_forms)

    def _degree(self, at: _Position) -> Degree:
        return "nothing" if self._omissions is None else self._omissions.degree(at.given)

    def _node(self, at: _Position) -> dict[str, Any]:
        if self._omissions is not None:
            self._omissions.meet(at.given)
        self._place += 1
        token = self._tokens[self._place]
        match token:
            case "tensor":
                return {"kind": "tensor", "leaf": self._leaf(at)}
            case "true" | "false":
                return {"kind": "bool", "value": token == "true"}
            case "none" | "ellipsis":
                return {"kind": token}
            case str():
                return self._scalar(token, None, at)
            case ("scalar", kind, cls):
                return self._scalar(kind, cls, at)
            case ("tensor", leaf):
                return {"kind": "tensor", "leaf": self._leaf_again(leaf, at)}
            case ("ndarray", leaf):
                is_new = leaf >= len(self._keys)
                leaf = self._leaf(at) if is_new else self._leaf_again(leaf, at)
                return {"kind": "ndarray", "leaf": leaf}
            case ("dtype" | "device" | "layout" | "memory_format" as kind, value):
                return {"kind": kind, "name": str(value).removeprefix("torch.")}
            case ("enum", cls, name, _, value):
                return self._enum(cls, name, value, at)
            case ("class", cls):
                return {"kind": "class", "type": self._type(cls)}
            case ("opaque", cls, reason):
                return {"kind": "opaque", "type": self._type(cls), "reason": reason}
            case ("beside", names):
                shown = self._shown(names, at)
                return {**self._node(at), "beside": [pack_text(name) for name in shown]}
            case ("dict", _, _):
                return self._dict(token, at)
            case ("namedtuple" | "dataclass" | "object" as kind, names, cls):
                return self._fields(kind, names, cls, at)
            case ("nested", names):
                return self._fields("object", names, None, at)
            case ("custom", count, cls):
                inside, name = self._in_list(at), self._type(cls)
                context = self._node(at.below("context"))
                children = [self._node(inside.below(index)) for index in range(count)]
                return {"kind": "custom", "type": name, "context": context, "children": children}
        kind, count, cls = token
        return self._sequence(kind, count, cls, at)

    def _leaf(self, at: _Position) -> int:
        key = leaf_key(at.path, len(self._keys), self._taken)
        self._taken.add(key)
        self._keys.append(key)
        self._wanted.append(self._degree(at) == "nothing")
        return len(self._keys) - 1

    def _leaf_again(self, leaf: int, at: _Position) -> int:
        # An object at two paths is omitted if it is omitted at one of them.
        self._wanted[leaf] = self._wanted[leaf] and self._degree(at) == "nothing"
        return leaf

    def _scalar(self, kind: str, cls: type | None, at: _Position) -> dict[str, Any]:
        degree = self._degree(at)
        is_text = kind in ("str", "bytes")
        form: ScalarForm = "uncounted"
        if degree == "nothing":
            form = "value"
        elif is_text:
            form = "length"
        elif not at.is_state and (at.is_data or degree == "numbers"):
            form = "nothing"
        self._forms.append(form)
        place = self._scalars
        self._scalars += form != "nothing"
        name = None if cls is None else self._type(cls)
        if form in ("value", "uncounted"):
            node: dict[str, Any] = {"kind": kind, "scalar": place}
            return node if name is None else {**node, "type": name}
        node = {
            "kind": "opaque",
            "type": name or f"builtins:{kind}",
            "reason": "policy",
            "of": kind,
        }
        return {**node, "length": place} if is_text else node

    def _type(self, cls: type) -> str:
        name = type_name(cls)
        self._classes[name] = cls
        return name

    def _enum(self, cls: type, name: str, value: Any, at: _Position) -> dict[str, Any]:
        if self._degree(at) != "nothing":
            # The names of members come from code. But a class may create a member from a number or
            # a text of a call, and then the name is data. The value of a member is omitted if it is
            # a text, because it may be a password.
            members = namespace_of(cls).get("_member_map_", ())
            if not all(part in members or _is_small(part) for part in name.split("|")):
                return {"kind": "opaque", "type": self._type(cls), "reason": "policy"}
            value = value if type(value) in (bool, int) and is_name(value) else None
        node: dict[str, Any] = {"kind": "enum", "type": self._type(cls), "name": pack_text(name)}
        if value is not None:
            node["value"] = pack_text(value) if type(value) is str else value
        return node

    def _sequence(self, kind: str, count: int, cls: type | None, at: _Position) -> dict[str, Any]:
        inside = self._in_list(at)
        # Arguments that have names are not a list of data, even if there are many.
        named = self._omissions.positional if self._omissions and at.path == "args" else 0
        children = [
            self._node((at if index < named else inside).below(index)) for index in range(count)
        ]
        node = {"kind": kind, "children": children}
        return node if cls is None else {**node, "type": self._type(cls)}

    def _in_list(self, at: _Position) -> _Position:
        """The position for the elements of the current token, which is a list."""
        has_own_numbers = self._lists.get(self._place)
        if has_own_numbers is None:
            return at
        return at._replace(is_data=True, is_state=at.is_state and not has_own_numbers)

    def _dict(self, token: Any, at: _Position) -> dict[str, Any]:
        _, tokens, cls = token
        keys = [_key_of(key) for key in tokens]
        modules = [i for i, key in enumerate(tokens) if type(key) is tuple and key[0] == MODULE]
        # The names of modules come from code.
        shown = self._shown(keys, at, [keys[i] for i in modules])
        inside = self._in_list(at)
        boundaries = [self.boundary()]
        children: list[dict[str, Any]] = []
        for child in self._below(shown, keys, inside):
            children.append(self._node(child))
            boundaries.append(self.boundary())
        if at.path != "kwargs" and self._root != "outputs":
            self.dicts.append(PlacedDict(at.path, token, tuple(boundaries)))
        node = {"kind": "dict", "keys": [_packed(key) for key in shown], "children": children}
        if modules:
            node["modules"] = modules
        return node if cls is None else {**node, "type": self._type(cls)}

    def boundary(self) -> Boundary:
        """Where the builder is: how many tokens, leaves and scalars it has passed."""
        return Boundary(self._place + 1, len(self._keys), self._scalars)

    def _fields(
        self, kind: str, names: Sequence[Any], cls: type | None, at: _Position
    ) -> dict[str, Any]:
        inside, shown = at, names
        if cls is None or is_cache(cls):
            # The ragged dimension of a nested tensor is a setting, as a cache has some.
            inside = at._replace(is_state=True)
        elif kind != "namedtuple":
            shown = self._shown(names, at, class_attribute(cls, "__dataclass_fields__", ()))
        return {
            "kind": kind,
            "type": NESTED_TENSOR if cls is None else self._type(cls),
            "fields": [pack_text(name) for name in shown],
            "children": [self._node(child) for child in self._below(shown, names, inside)],
        }

    def _shown(
        self, keys: Sequence[Any], at: _Position, declared: Container[str] = ()
    ) -> Sequence[Any]:
        """The keys on the tape. If the value at a key is omitted and the key does not look like a
        name, its position replaces it."""
        if self._omissions is None:
            return keys
        shown: list[Any] = []
        for index, key in enumerate(keys):
            stays = key in declared or is_name(key)
            if not stays and self._degree(at.below("", _readable(key))) != "nothing":
                key = f"?{index}"
                while key in keys:
                    key += "?"
            shown.append(key)
        return shown

    def _below(
        self, shown: Sequence[Any], keys: Sequence[Any], at: _Position
    ) -> Iterator[_Position]:
        for shown_key, key in zip(shown, keys, strict=True):
            yield at.below(_readable(shown_key), None if shown_key is key else _readable(key))


def _is_small(part: str) -> bool:
    """Whether a part of a flag's name is a small number, which represents bits without a member."""
    digits = part.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < 10 and is_name(int(part))


def _key_of(token: Any) -> Any:
    if type(token) is str:
        return token
    if token[0] == "tuple":
        return tuple(_key_of(part) for part in token[1:])
    return token[2]


def _packed(key: Any) -> Any:
    if type(key) is str:
        return pack_text(key)
    if type(key) is tuple:
        return [_packed(part) for part in key]
    return pack_int(key) if type(key) is int else key


def _readable(key: Any) -> str:
    """A key as a part of a path. A lone surrogate is escaped, because it would make the header of
    the blob invalid JSON."""
    text = repr(key) if type(key) is bytes else str(key)  # str() of bytes warns under -bb
    return text[:200].encode("utf-8", "backslashreplace").decode()
