"""Tells torch's pytree how to flatten the classes that a tape's calls hold.

``torch.export`` takes an object of a class apart only where that class is registered. What is
registered here follows :mod:`calltape_analyzer.flattening`, and is taken back at the end. Whoever
registered a class first keeps it: transformers has two registrations of its own
(``transformers.integrations.executorch``, ``transformers.exporters``), which flatten caches in
different ways, and inferred shapes follow the one that is active.

A program that was exported with a sliding-window cache past its window takes that cache at the same
number of seen tokens (``cumulative_length``) only: the layer keeps the number as an int, the
positions of new tokens follow from it where a call does not pass ``position_ids``, and the program
has it as a constant. Until the window is full, it is the length of the keys and may vary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from calltape_analyzer.cache_state import Context, from_state, remember, to_state
from calltape_analyzer.errors import UsageError

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["register_flattening_functions"]

# Registered here, by how many users at present. The lock is held for the bookkeeping only.
_users: dict[type, int] = {}
_lock = threading.RLock()


@contextlib.contextmanager
def register_flattening_functions(
    classes: Iterable[type] = (),
    *,
    tape: Tape | None = None,
    patch_transformers: bool | None = None,
) -> Iterator[None]:
    """Registers classes with torch while the ``with`` block runs.

    Dataclasses flatten to their fields, as with ``torch.export.register_dataclass``; caches, and
    other objects, to the tensors in their public attributes (``k0, v0, k1, v1``), the rest of their
    state being context that can be compared and saved with the program. Blocks may be nested, and
    run in several threads.

    Args:
        classes: the classes to register, besides those below. Named tuples need no registration to
            be exported; they get one so that the program can be saved.
        tape: adds the classes that the tape was opened with.
        patch_transformers: whether transformers' caches are registered: None where transformers is
            imported already, True imports it. (The name is that of yobx's function.)

    Raises:
        UsageError: for something that is not a class.
    """
    wanted = [*classes, *(tape.classes if tape is not None else ())]
    for cls in wanted:
        if not isinstance(cls, type):
            raise UsageError(f"{cls!r} is not a class", advice="pass the classes themselves")
    wanted += _cache_classes(patch_transformers)
    held = [cls for cls in dict.fromkeys(wanted) if _hold(cls)]
    try:
        yield
    finally:
        for cls in reversed(held):
            _release(cls)


def _cache_classes(patch_transformers: bool | None) -> list[type]:
    if patch_transformers is False:
        return []
    if patch_transformers:
        import transformers.cache_utils  # noqa: F401
    module = sys.modules.get("transformers.cache_utils")
    if module is None:
        return []
    found: list[type] = []
    waiting = [module.Cache]
    while waiting:
        cls = waiting.pop()
        found.append(cls)
        waiting += cls.__subclasses__()
    return list(dict.fromkeys(found))


def _hold(cls: type) -> bool:
    """Registers a class, or counts one more user of our registration; False where somebody else
    has registered it."""
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
            return False  # somebody was faster
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
    # Exported programs flatten their inputs with the spec that they were traced with.
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
    """Takes our registration back, and leaves alone one that replaced it."""
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
    # Older torch only registers; without optree, these are all its tables.
    pytree.SUPPORTED_NODES.pop(cls, None)
    serialized = pytree.SUPPORTED_SERIALIZED_TYPES.pop(cls, None)
    if serialized is not None:
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(serialized.serialized_type_name, None)
