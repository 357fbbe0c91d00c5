"""How the recorder gets to see calls: a pair of forward hooks, or a replaced method.

Both leave the host as it was: signatures, copies, pickles and compiled graphs are those of a model
without a recorder. What is put on the model turns into plain standard-library objects that do
nothing when the model is copied or saved, so a saved model loads where calltape is not installed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.compiler import is_compiling

from calltape_recorder.compilers import (
    assumed_constant,
    breaks_graph,
    is_full_graph,
    off,
    one_graph,
    skip_frame,
)
from calltape_recorder.encoding import Call
from calltape_recorder.tap import Tap

__all__ = ["Attachment", "HookPair", "ReplacedMethod"]


class Attachment:
    """What was done to a module, and how to undo it."""

    def detach(self) -> None:
        """Undoes it, leaving alone what others put on top. It may be called twice."""
        raise NotImplementedError

    def settle(self, error: BaseException | None) -> None:
        """Hands over calls that ended without the recorder being told."""


def vanishing(tap: Tap, *, counts: bool) -> Callable[[], bool]:
    """Asked by what is being traced, at trace time: shall it leave no trace in the graph?

    A graph break keeps the host's results and lets every call be recorded. Where the host forbids
    graph breaks, or exports, the calls are not seen; the trace itself is counted.
    """

    def vanishes() -> bool:
        try:
            if not one_graph():
                return False
            if counts:
                tap.skip(said=is_full_graph())
        except Exception as error:  # raised in here it would be the host's compilation that fails
            tap.fault(error)
        return True

    return assumed_constant(vanishes)


# --- forward hooks -----------------------------------------------------------------------------


class _Under:
    """A call that is under way in this thread: its record (None if it is not recorded), and what
    tells which call a later hook belongs to."""

    __slots__ = ("call", "frame", "kwargs")

    def __init__(self, call: Call | None, kwargs: dict[str, Any], frame: FrameType) -> None:
        self.call = call
        self.kwargs = kwargs
        self.frame = frame


class HookPair(Attachment):
    """A forward pre-hook and an always-called forward hook on exactly one module.

    Hooks do not see exceptions; an always-called one runs inside the handler of the model's
    ``Exception``, where ``sys.exc_info()`` has it. Other ``BaseException``s pass hooks by: such a
    call stays on its thread's stack until the next call, or the end, finds that its frame is gone.
    """

    def __init__(self, module: torch.nn.Module, tap: Tap) -> None:
        self.tap = tap
        self._local = threading.local()
        self._stacks: list[list[_Under]] = []
        before = _Before(self, vanishing(tap, counts=True))
        after = _After(self, vanishing(tap, counts=False))
        self._handles = [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True, always_call=True),
        ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def settle(self, error: BaseException | None) -> None:
        running = _frames_of_all_threads()
        for stack in self._stacks:
            for under in [under for under in stack if under.frame not in running]:
                with contextlib.suppress(ValueError):  # its own thread was faster
                    stack.remove(under)
                    self._abandon(under, error)

    def stack(self) -> list[_Under]:
        try:
            stack: list[_Under] = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
            self._stacks.append(stack)
        return stack

    def after(self, kwargs: dict[str, Any], result: Any, frame: FrameType) -> None:
        stack = self.stack()
        under = self._matching(stack, kwargs, frame)
        if under is None or under.call is None:
            return
        error = sys.exc_info()[1]
        if error is not None and _passes_through(error, frame):
            self.tap.fail(under.call, error)
        else:
            self.tap.finish(under.call, result)

    def _matching(
        self, stack: list[_Under], kwargs: dict[str, Any], frame: FrameType
    ) -> _Under | None:
        """The call that a post hook ends; calls above it ended without one."""
        if stack and stack[-1].kwargs is kwargs:  # nearly always
            return stack.pop()
        frames = (frame, frame.f_back)
        for index in range(len(stack) - 1, -1, -1):
            under = stack[index]
            # The pre-hook ran in _call_impl's inner function, the post hook in either of the two.
            if under.kwargs is kwargs or under.frame in frames or under.frame.f_back is frame:
                ended = stack[index + 1 :]
                del stack[index:]
                for other in ended:
                    self._abandon(other, None)
                return under
        return None

    def drop_ended(self, stack: list[_Under], frame: FrameType) -> None:
        running = set()
        caller: FrameType | None = frame
        while caller is not None:
            running.add(caller)
            caller = caller.f_back
        ended = [under for under in stack if under.frame not in running]
        if ended:
            stack[:] = [under for under in stack if under.frame in running]
            for under in ended:
                self._abandon(under, sys.exc_info()[1])

    def _abandon(self, under: _Under, error: BaseException | None) -> None:
        if under.call is not None:
            mine = error is not None and _passes_through(error, under.frame)
            self.tap.fail(under.call, error if mine else None)


def _passes_through(error: BaseException, frame: FrameType) -> bool:
    """Whether an exception left a call by way of this frame: an exception that the host is already
    handling while it calls the model did not."""
    around = (frame, frame.f_back)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame in around and trace.tb_frame.f_code.co_name in _CALL_FRAMES:
            return True
        trace = trace.tb_next
    return False


# torch.nn.Module's own: hooks run in the second within the first.
_CALL_FRAMES = frozenset({"_call_impl", "inner"})


def _frames_of_all_threads() -> set[FrameType]:
    running: set[FrameType] = set()
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            running.add(frame)
            frame = frame.f_back
    return running


@breaks_graph
def _run_before(pair: HookPair, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    previous = off(None)
    try:
        frame = sys._getframe(2)
        stack = pair.stack()
        if stack:
            pair.drop_ended(stack, frame)
        stack.append(_Under(pair.tap.begin(args, kwargs), kwargs, frame))
    except Exception as error:
        pair.tap.fault(error)
    finally:
        off(previous)


@breaks_graph
def _run_after(pair: HookPair, kwargs: dict[str, Any], result: Any) -> None:
    previous = off(None)
    try:
        pair.after(kwargs, result, sys._getframe(2))
    except Exception as error:
        pair.tap.fault(error)
    finally:
        off(previous)


class _Inert:
    """Copies and pickles to a standard-library function that takes anything and returns None."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Before(_Inert):
    __slots__ = ("_pair", "_vanishes")

    def __init__(self, pair: HookPair, vanishes: Callable[[], bool]) -> None:
        self._pair = pair
        self._vanishes = vanishes

    @skip_frame
    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_compiling() and self._vanishes():
            return
        _run_before(self._pair, args, kwargs)


class _After(_Inert):
    __slots__ = ("_pair", "_vanishes")

    def __init__(self, pair: HookPair, vanishes: Callable[[], bool]) -> None:
        self._pair = pair
        self._vanishes = vanishes

    @skip_frame
    def __call__(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if is_compiling() and self._vanishes():
            return
        _run_after(self._pair, kwargs, result)


# --- around a callable -------------------------------------------------------------------------


@breaks_graph
def _around(tap: Tap, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls ``function`` and records the call. Frame evaluation is off only in our own parts, so
    that what the host compiles stays compiled."""
    previous = off(None)
    call = None
    try:
        call = tap.begin(args, kwargs)
    except Exception as error:
        tap.fault(error)
    finally:
        off(previous)
    if call is None:
        return function(*args, **kwargs)
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        _tell(tap.fail, tap, call, error)
        raise
    _tell(tap.finish, tap, call, result)
    return result


@skip_frame
def _tell(what: Callable[[Call, Any], None], tap: Tap, call: Call, value: Any) -> None:
    previous = off(None)
    try:
        what(call, value)
    except Exception as error:
        tap.fault(error)
    finally:
        off(previous)


class _Wrapper:
    """Stands for a callable: same signature, name and attributes; records while ``tap`` is there.

    Copies and pickles to what was there before.
    """

    def __init__(self, function: Any, tap: Tap, restored: tuple[Any, ...]) -> None:
        functools.update_wrapper(self, function)
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(function)
        self._function = function
        self._tap: Tap | None = tap
        self._vanishes = vanishing(tap, counts=True)
        self._restored = restored

    @skip_frame
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tap = self._tap
        if tap is None or (is_compiling() and self._vanishes()):
            return self._function(*args, **kwargs)
        return _around(tap, self._function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        # __self__, __func__, __code__: what a bound method has.
        if name.startswith("_calltape") or name == "_function":
            raise AttributeError(name)
        return getattr(self._function, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._restored


def _replace(target: Any, name: str, tap: Tap) -> None:
    """Puts a wrapper in the place of ``target.name``, on the instance."""
    function = getattr(target, name)
    own = vars(target).get(name)
    if own is None:
        # The copy's own method: a copied module is known before its attributes are.
        restored: tuple[Any, ...] = (getattr, (target, name))
    else:
        restored = (operator.itemgetter(0), ((own,),))
    wrapper = _Wrapper(function, tap, restored)
    wrapper.__dict__["_calltape_own"] = own
    object.__setattr__(target, name, wrapper)


def _restore(target: Any, name: str, tap: Tap) -> None:
    """Takes our wrapper away, or makes it pass calls on where others wrapped it since."""
    current = vars(target).get(name)
    if isinstance(current, _Wrapper) and current._tap is tap:
        own = current.__dict__["_calltape_own"]
        if own is None:
            object.__delattr__(target, name)
        else:
            object.__setattr__(target, name, own)
        current._tap = None


class ReplacedMethod(Attachment):
    """A wrapper in the place of one method, on one instance; of anything, not only modules."""

    def __init__(self, target: Any, method: str, tap: Tap) -> None:
        self._target = weakref.ref(target)
        self._method = method
        self._tap = tap
        _replace(target, method, tap)
        self._wrapper: weakref.ref[_Wrapper] = weakref.ref(vars(target)[method])

    def detach(self) -> None:
        target, wrapper = self._target(), self._wrapper()
        if target is not None:
            _restore(target, self._method, self._tap)
        if wrapper is not None:
            wrapper._tap = None
