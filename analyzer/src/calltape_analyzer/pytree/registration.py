"""Registers the classes of a tape's calls with torch's pytree, for a while.

``torch.export`` takes an object apart only if its class is registered. In come classes; while a
``with`` block runs, torch flattens them as :mod:`calltape_analyzer.pytree.flattening` says. A class
that is registered already keeps its registration: transformers has two for its caches
(``transformers.integrations.executorch``, ``transformers.exporters``), which flatten them in
different ways, and inferred shapes follow the active one.

A sliding-window cache counts the tokens that it has seen (``cumulative_length``). Until the
window is full, the counter is the length of the keys, and may vary. After that it is another
number, and a program that is exported then has it as a constant: it takes the cache only at the
same count. (The positions of new tokens follow from the counter if a call does not pass
``position_ids``.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.caches import loaded_cache_classes
from calltape_analyzer.pytree.classes import loaded_batch_classes
from calltape_analyzer.pytree.object_state import Context, from_state, remember, to_state
from calltape_schema.objects import WRAPPERS

__all__ = ["register_flattening_functions"]

# The classes that are registered here, and how many blocks use each. The lock is held only while
# this changes.
_users: dict[type, int] = {}
_lock = threading.RLock()


class HasClasses(Protocol):
    """What a registration needs of a tape."""

    @property
    def classes(self) -> tuple[type, ...]: ...


@contextlib.contextmanager
def register_flattening_functions(
    classes: Iterable[type] = (),
    *,
    tape: HasClasses | None = None,
    patch_transformers: bool | None = None,
) -> Iterator[None]:
    """Registers classes with torch while the ``with`` block runs.

    A dataclass flattens to its fields, as with ``torch.export.register_dataclass``. A cache, or
    another object, flattens to the tensors in its public attributes (``k0, v0, k1, v1``); the rest
    of its state is context, which is compared and is saved with the program. A container of a class
    of its own (a subclass of dict or list, ``UserDict``, ``UserList``, a view of a dict) flattens
    to the tensors in it. Blocks may be nested, and several threads may run one.

    Args:
        classes: classes to register, besides the ones below. A named tuple can be exported without
            a registration; it gets one so that the program can be saved.
        tape: adds the classes that the tape was opened with.
        patch_transformers: whether caches (those of transformers, and taught ones) are registered.
            None: if their module is imported already; True: transformers is imported for it;
            False: never. (yobx has a function with a parameter of this name.)

    Raises:
        UsageError: one of ``classes`` is not a class.
    """
    wanted = [*classes, *(tape.classes if tape is not None else ())]
    for cls in wanted:
        if not isinstance(cls, type):
            raise UsageError(f"{cls!r} is not a class", advice="pass the classes themselves")
    if patch_transformers:
        import transformers.cache_utils  # noqa: F401
    if patch_transformers is not False:
        wanted += loaded_cache_classes()
    wanted += [*WRAPPERS, *loaded_batch_classes()]
    held = [cls for cls in dict.fromkeys(wanted) if _hold(cls)]
    try:
        yield
    finally:
        for cls in reversed(held):
            _release(cls)


def _hold(cls: type) -> bool:
    """Registers a class, or counts one more user of our registration. False if the class has
    another registration."""
    from torch.utils import _pytree as pytree

    with _lock:
        if cls in _users:
            _users[cls] += 1
            return True
        if cls in pytree.SUPPORTED_NODES:
            return False
        try:
            _register(cls)
        except ValueError:
            return False  # another thread registered it in between
        _users[cls] = 1
        return True


def _release(cls: type) -> None:
    with _lock:
        _users[cls] -= 1
        if _users[cls] == 0:
            del _users[cls]
            _unregister(cls)


def _register(cls: type) -> None:
    from torch.utils import _pytree as pytree

    serialized = f"{cls.__module__}.{cls.__qualname__}"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        pytree._register_namedtuple(cls, serialized_type_name=serialized)
    elif dataclasses.is_dataclass(cls):
        _register_dataclass(cls, serialized)
    else:
        _register_object(cls, serialized)


def _register_dataclass(cls: type, serialized: str) -> None:
    import torch

    torch.export.register_dataclass(cls, serialized_type_name=serialized)


def _register_object(cls: type, serialized: str) -> None:
    from torch.fx import _pytree as fx_pytree
    from torch.utils import _pytree as pytree

    remember(cls)
    pytree.register_pytree_node(
        cls,
        to_state,
        from_state,
        serialized_type_name=serialized,
        to_dumpable_context=dict,
        from_dumpable_context=Context,
        flatten_with_keys_fn=_with_keys(pytree),
    )
    # An exported program flattens its inputs with the spec of its trace, through torch.fx.
    fx_pytree.register_pytree_flatten_spec(cls, _flatten_by_spec)


def _with_keys(pytree: Any) -> Callable[[Any], tuple[list[Any], Any]]:
    def flatten_with_keys(value: Any) -> tuple[list[Any], Any]:
        children, context = to_state(value)
        return [(pytree.SequenceKey(i), child) for i, child in enumerate(children)], context

    return flatten_with_keys


def _flatten_by_spec(value: Any, spec: Any) -> list[Any]:
    children, context = to_state(value)
    if context != spec.context:
        raise ValueError(
            f"this {type(value).__name__} is in another state than the one that was exported"
        )
    return children


def _unregister(cls: type) -> None:
    """Removes our registration. If another one has replaced it, that one stays."""
    from torch.fx import _pytree as fx_pytree
    from torch.utils import _pytree as pytree

    node = pytree.SUPPORTED_NODES.get(cls)
    is_object = not dataclasses.is_dataclass(cls) and not issubclass(cls, tuple)
    if node is None or (is_object and node.flatten_fn is not to_state):
        return
    _deregister(cls, pytree)
    if fx_pytree.SUPPORTED_NODES.get(cls) is _flatten_by_spec:
        fx_pytree.SUPPORTED_NODES.pop(cls, None)
        fx_pytree.SUPPORTED_NODES_EXACT_MATCH.pop(cls, None)


def _deregister(cls: type, pytree: Any) -> None:
    own: Callable[[type], None] | None = getattr(pytree, "_deregister_pytree_node", None)
    if own is not None:
        own(cls)
        return
    # Older versions of torch have no such function. Without optree, these are all their tables.
    pytree.SUPPORTED_NODES.pop(cls, None)
    serialized = pytree.SUPPORTED_SERIALIZED_TYPES.pop(cls, None)
    if serialized is not None:
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(serialized.serialized_type_name, None)
