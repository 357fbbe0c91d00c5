"""The table of all options of a recorder.

The keywords of :func:`~calltape_recorder.record`, the settings of ``calltape-record`` and
``CALLTAPE``, their help, and the policy of the manifest are made from it.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from typing_extensions import Self, TypedDict

from calltape_recorder.bounds import (
    LEAST_DISK_BYTES,
    MAX_COUNT,
    MAX_PATTERN_CHARACTERS,
    MAX_PATTERNS,
    MAX_POLICY_CHARACTERS,
    MAX_POLICY_DEPTH,
    OLDEST_SHARE,
    OWNER_ONLY,
)
from calltape_recorder.keep.flight_recorder import FlightRecorder
from calltape_recorder.keep.novelty import Novelty
from calltape_recorder.keep.policies import (
    Every,
    First,
    Keep,
    PerSecond,
    PerStructure,
    Rate,
)
from calltape_recorder.launch.startup.calltape_startup import seconds
from calltape_schema import TapeError
from calltape_schema.records import FlightPolicy, Policy


class _Spelling(NamedTuple):
    """How people write the values of an option.

    Attributes:
        advice: what to pass in code, for the error about another value.
        text: what to write in settings, for the help; empty if the option exists only in code.
        read: reads a value of ``types`` in settings. It raises ValueError, or TapeError if it can
            say more.
        types: the types that need reading. Other values from JSON are as in code.
    """

    advice: str
    text: str = ""
    read: Callable[[Any], Any] = str
    types: tuple[type, ...] = (str,)


def _one_of(*words: str) -> _Spelling:
    return _Spelling(f"pass {' or '.join(map(repr, words))}", " or ".join(words))


def _read_values(text: str) -> str | dict[str, str]:
    """Reads ``all``, ``none``, or patterns of leaf paths (``*:all,cache.*:none``)."""
    if ":" not in text:
        return text
    parts = [part.rpartition(":") for part in text.split(",")]
    if not all(pattern.strip() for pattern, _, _ in parts):
        raise ValueError
    return {pattern.strip(): choice.strip() for pattern, _, choice in parts}


def _read_flight_recorder(value: str | bool | Mapping[str, Any]) -> FlightRecorder | None:
    """Reads ``true``, or one or both of the bounds: ``calls=100,bytes=64MiB``."""
    if isinstance(value, str) and "=" in value:
        parts = [part.partition("=") for part in value.split(",")]
        value = {name.strip(): given.strip() for name, _, given in parts}
    if not isinstance(value, Mapping):
        return FlightRecorder() if _truth(value) else None
    if not value.keys() <= {"calls", "bytes"}:
        raise ValueError
    return FlightRecorder(**{name: int(_size(given)) for name, given in value.items()})


_POLICIES: dict[str, type[Keep]] = {
    "every": Every,
    "first": First,
    "novelty": Novelty,
    "per_second": PerSecond,
    "per_structure": PerStructure,
    "rate": Rate,
}
_BY_NAME = {name.replace("_", ""): policy for name, policy in _POLICIES.items()}


def _read_keep(text: str) -> Keep:
    """Reads policies that are composed with ``&`` and ``|``; ``&`` binds tighter. The text is what
    ``str(policy)`` gives. It is parsed and never evaluated: only known names of policies are taken,
    with numbers as their arguments."""
    if len(text) > MAX_POLICY_CHARACTERS:
        raise ValueError
    try:
        return _policy(ast.parse(" ".join(text.split()), mode="eval").body, MAX_POLICY_DEPTH)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError from None


def _policy(node: ast.expr, depth: int) -> Keep:
    if depth and isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        left, right = _policy(node.left, depth - 1), _policy(node.right, depth - 1)
        return left & right if isinstance(node.op, ast.BitAnd) else left | right
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError
    name = node.func.id
    policy = _BY_NAME.get(name.replace("_", "").lower())
    if policy is None:
        raise TapeError(
            "usage", f"no policy {name[:100]!r}",
            advice=f"there are {', '.join(_POLICIES)}; a predicate is passed in code, as"
            " keep=When(function)",
        )  # fmt: skip
    arguments = [_number(argument) for argument in node.args]
    named = {keyword.arg or "**": _number(keyword.value) for keyword in node.keywords}
    try:
        if len(named) < len(node.keywords):
            raise TypeError("an argument is given twice")
        return policy(*arguments, **named)
    except TypeError:
        fields = ", ".join(inspect.signature(policy).parameters) or "none"
        raise TapeError(
            "usage", f"other arguments than those of {name[:100]}",
            advice=f"they are: {fields}",
        ) from None  # fmt: skip


def _number(node: ast.expr) -> int | float:
    value = ast.literal_eval(node)
    if type(value) not in (int, float):
        raise ValueError
    return value  # type: ignore[no-any-return]


def absolute_path(path: Any) -> str:
    """The path as absolute text.

    Raises:
        TapeError: ``usage`` if this is not a path.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise TapeError(
            "usage",
            f"a {type(path).__name__} is not a path",
            advice="pass the path of the new tape",
        ) from None
    if "\0" in text:
        raise TapeError(
            "usage", "the path contains a zero character", path=text, advice="remove it"
        )
    try:
        # A relative path would change its meaning: an application that becomes a daemon changes
        # directory.
        return os.path.join(os.getcwd(), text)
    except OSError:  # the current directory was deleted
        return text


_truth = TypeAdapter(bool).validate_python
_size = TypeAdapter(ByteSize).validate_python
_TRUTH = _Spelling("pass True or False", "true or false", _truth)
_COUNT = _Spelling("pass an int, 0 or more", "a number, such as 10000", int)
_SIZE = _Spelling(_COUNT.advice, "a size, such as 256MiB", lambda text: int(_size(text)))
_TIME = _Spelling("pass a number above 0", "a time, such as 90, 10m, 24h or 7d", seconds)
_WHOLE: dict[str, Any] = {"ge": 0, "le": MAX_COUNT}
_ABOVE_0: dict[str, Any] = {"gt": 0, "allow_inf_nan": False}


def _option(default: Any, spelling: _Spelling, **bounds: Any) -> Any:
    """A field. The bounds are arguments of :func:`pydantic.Field`."""
    return Field(default, json_schema_extra={_SPELLED: cast("Any", spelling)}, **bounds)


_SPELLED = "spelling"
_TEXT = "text"
"""The context of values that come from settings."""


class Options(BaseModel):
    """The options of a recorder. Sizes are in bytes, times in seconds; None means no limit."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid",
        arbitrary_types_allowed=True,
    )  # fmt: skip

    overwrite: bool = _option(False, _TRUTH._replace(text=""))
    """Replace an existing file. Otherwise, starting fails."""

    outputs: bool = _option(True, _TRUTH)
    """Record outputs as well as inputs."""

    values: Literal["all", "none"] | Mapping[str, Literal["all", "none"]] = _option(
        "all",
        _Spelling(
            "pass 'all', 'none', or a dict from leaf paths to one of these, with at most"
            f" {MAX_PATTERNS} patterns of {MAX_PATTERN_CHARACTERS} characters",
            "all, none, or *:all,cache.*:none", _read_values,
        ),
    )  # fmt: skip
    """Which values to keep, by leaf path. ``"all"`` keeps the bytes of every tensor, text and
    number. ``"none"`` keeps the shapes of tensors and the length of texts. A dict chooses by leaf
    path, and the last matching pattern applies: ``{"*": "all", "cache.*": "none"}``. Patterns have
    the syntax of :mod:`fnmatch`, and also match everything below their path. Paths of outputs begin
    with ``outputs``. A pattern without wildcards omits numbers as well. docs/privacy.md has a table
    of all this."""

    keep: Keep = _option(
        Every(),
        _Spelling(
            "pass a Keep of calltape_recorder",
            'policies, such as "novelty() | rate(0.01, seed=7) & per_second(5)"', _read_keep,
        ),
    )  # fmt: skip
    """Which calls to keep. By default, all. Policies are :class:`Keep` objects."""

    flight_recorder: FlightRecorder | None = _option(
        None,
        _Spelling(
            "pass a FlightRecorder of calltape_recorder", "true, or calls=100,bytes=64MiB",
            _read_flight_recorder, (str, bool, Mapping),
        ),
    )  # fmt: skip
    """Hold the last calls that ``keep`` does not select in memory. They are written when a call
    raises, on :meth:`Recorder.dump`, or when an exception ends the process."""

    write_ahead: bool = _option(False, _TRUTH)
    """Write the inputs of each call to a file before the model runs. If the process crashes, the
    inputs of the running call are on disk. Each call waits for this write."""

    max_calls: int | None = _option(None, _COUNT, **_WHOLE)
    """Stop recording after this many calls."""

    max_seconds: float | None = _option(None, _TIME, **_ABOVE_0)
    """Stop recording after this time."""

    max_share: float | None = _option(
        None,
        _Spelling(
            f"{_TIME.advice}, and at most 1",
            "a share, such as 1%",
            lambda text: float(text.removesuffix("%")) / (100 if text.endswith("%") else 1),
        ),
        gt=0,
        le=1,
    )
    """Limit the cost of recording to this share of the time of the calls, by recording fewer. The
    other calls are only counted, as dropped for ``max_share``. The cost is the time added to calls
    plus the processor time of the recorder's thread, as in
    :class:`~calltape_recorder.keep.ledger.Stats`. The limit has no effect if ``keep`` selects no
    calls, or only slow ones: only recorded calls show how long a call takes."""

    max_queue_bytes: int = _option(256 * 1024 * 1024, _SIZE, **_WHOLE)
    """Limit the memory of calls that are running or waiting to be written, pooled buffers included.
    A call that does not fit is counted and dropped before it is copied. Up to a quarter of the
    memory (and of that of a flight recorder) holds copies that later calls share, until a call
    needs the room."""

    max_disk_bytes: int | None = _option(None, _SIZE, **_WHOLE)
    """Limit the size of all files together, at least 128 KiB. Half of these 131,072 bytes are
    reserved for the end of a file."""

    min_free_bytes: int | None = _option(None, _SIZE, **_WHOLE)
    """Leave this much space of the disk free."""

    when_full: Literal["stop", "delete_oldest"] = _option("stop", _one_of("stop", "delete_oldest"))
    """What to do when a limit of the disk is reached. ``"stop"`` drops calls until there is space
    again. ``"delete_oldest"`` deletes the oldest file of this recorder, and files that hold only
    samples before files with calls that showed something new."""

    max_age_seconds: float | None = _option(None, _TIME, **_ABOVE_0)
    """Delete sealed files of this recorder this long after their end. Their calls count as
    ``expired``. ``segment_seconds`` is an eighth of this by default, and a call is deleted at most
    ``max_age_seconds + segment_seconds`` after it was recorded. Files of earlier processes are
    never deleted."""

    segment_bytes: int | None = _option(None, _SIZE, **_WHOLE)
    """Continue in another file (``<name>-00001.tape`` and so on) when a file has this size."""

    segment_seconds: float | None = _option(None, _TIME, **_ABOVE_0)
    """Continue in another file when this much time has passed since the first call of a file. The
    counters are written as often, and at least once a minute."""

    file_mode: int = _option(
        OWNER_ONLY,
        _Spelling(
            "pass permissions that let the owner read and write, such as 0o640",
            "permissions, such as 640; 600 by default", lambda text: int(text, 8),
        ),
        ge=OWNER_ONLY, le=0o777,
    )  # fmt: skip
    """The permissions of the files, whatever the umask. By default, only the owner has access
    (0o600). Everybody who may read the files may search new directories."""

    control: str | os.PathLike[str] | None = _option(None, _Spelling("pass a path", "a path"))
    """A file to pause, resume, seal and dump from outside, which is read about once a second. It is
    rejected if others can write to it. :mod:`calltape_recorder.control` describes its content."""

    via: Literal["hook", "method"] = _option("hook", _one_of("hook", "method"))
    """How to see the calls. ``"hook"`` records calls of ``module(...)``. ``"method"`` replaces the
    method on the instance, and also records direct calls of it. Hooks do not see a
    ``BaseException`` that is not an ``Exception``, such as ``KeyboardInterrupt``: unless it leaves
    the ``with`` block, its type and message are unknown, and the tape has ``BaseException``."""

    method: str = _option(
        "forward", _Spelling("name one of the object's methods", "a name"), min_length=1
    )
    """The name of the method to record. Any name but ``forward`` implies ``via="method"``."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_read(cls, value: Any, info: ValidationInfo) -> Any:
        """Reads what comes from settings."""
        spelling = _SPELLINGS[str(info.field_name)]
        if info.context is not _TEXT or not isinstance(value, spelling.types):
            return value
        try:
            return spelling.read(value)
        except TapeError as error:
            reason = f"{info.field_name}: {error.reason}"
            raise TapeError("usage", reason, advice=error.advice) from None

    @field_validator("values")
    @classmethod
    def _has_few_patterns(cls, values: Any) -> Any:
        patterns = () if isinstance(values, str) else values
        if len(patterns) > MAX_PATTERNS or any(len(p) > MAX_PATTERN_CHARACTERS for p in patterns):
            raise ValueError
        return values

    @field_validator("max_disk_bytes")
    @classmethod
    def _has_room(cls, most: int | None) -> int | None:
        if most is not None and most < LEAST_DISK_BYTES:
            reason = f"max_disk_bytes={most} leaves no room for a call and the end of its file"
            raise TapeError("usage", reason, advice=f"pass at least {LEAST_DISK_BYTES}")
        return most

    @field_validator("file_mode")
    @classmethod
    def _lets_the_owner(cls, mode: int) -> int:
        if mode & OWNER_ONLY != OWNER_ONLY:
            raise ValueError
        return mode

    @field_validator("control", mode="before")
    @classmethod
    def _is_absolute(cls, path: Any) -> str | None:
        if path is None:
            return None
        if path == "" or not isinstance(path, (str, os.PathLike)):
            raise ValueError
        return absolute_path(path)

    @model_validator(mode="after")
    def _may_delete(self) -> Self:
        if self.deletes and not self.is_rolling:
            raise TapeError(
                "usage", "when_full='delete_oldest' needs more than one file",
                advice="pass max_disk_bytes, segment_bytes or segment_seconds",
            )  # fmt: skip
        return self

    @property
    def patterns(self) -> tuple[tuple[str, str], ...]:
        """The patterns of ``values``, and what they keep."""
        values = self.values
        return (("*", values),) if isinstance(values, str) else tuple(values.items())

    @property
    def deletes(self) -> bool:
        """Whether old files make room for new ones."""
        return self.when_full == "delete_oldest"

    @property
    def max_segment_bytes(self) -> int | None:
        """Bytes at which the next file begins."""
        if self.segment_bytes is None and self.deletes and self.max_disk_bytes is not None:
            return max(self.max_disk_bytes // OLDEST_SHARE, 1)
        return self.segment_bytes

    @property
    def max_segment_seconds(self) -> float | None:
        """Seconds after which the next file begins."""
        if self.segment_seconds is None and self.max_age_seconds is not None:
            return self.max_age_seconds / OLDEST_SHARE
        return self.segment_seconds

    @property
    def is_rolling(self) -> bool:
        """Whether there may be several files."""
        return self.max_segment_bytes is not None or self.max_segment_seconds is not None

    def policy(self) -> Policy:
        """The options in the form of the manifest."""
        shared = Policy.model_fields.keys() & type(self).model_fields.keys()
        flight, patterns = self.flight_recorder, self.patterns
        keep = None if isinstance(self.keep, Every) else str(self.keep)
        is_plain = len(patterns) == 1 and patterns[0][0] == "*"
        return Policy(**{
            **{name: getattr(self, name) for name in shared},
            "values": "all" if any(kept == "all" for _, kept in patterns) else "none",
            "leaf_values": () if is_plain else patterns,
            "keep": keep and keep[:MAX_POLICY_CHARACTERS],
            "flight_recorder": flight and FlightPolicy(calls=flight.calls, bytes=flight.bytes),
            "segment_bytes": self.max_segment_bytes,
            "when_full": self.when_full if self.max_disk_bytes is not None else None,
        })  # fmt: skip


class Keywords(TypedDict, total=False):
    """The keywords of a recorder, for type checkers. :class:`Options` describes them.

    ``Unpack`` does not accept a pydantic model, and a type checker does not run code that could
    derive this class from one. A test compares the two classes.
    """

    overwrite: bool
    outputs: bool
    values: Literal["all", "none"] | Mapping[str, Literal["all", "none"]]
    keep: Keep
    flight_recorder: FlightRecorder | None
    write_ahead: bool
    max_calls: int | None
    max_seconds: float | None
    max_share: float | None
    max_queue_bytes: int
    max_disk_bytes: int | None
    min_free_bytes: int | None
    when_full: Literal["stop", "delete_oldest"]
    max_age_seconds: float | None
    segment_bytes: int | None
    segment_seconds: float | None
    file_mode: int
    control: str | os.PathLike[str] | None
    via: Literal["hook", "method"]
    method: str


_SPELLINGS: dict[str, _Spelling] = {
    name: cast("Any", field.json_schema_extra)[_SPELLED]
    for name, field in Options.model_fields.items()
}


def check_options(given: Mapping[str, Any]) -> Options:
    """Checks the keyword arguments of a recorder, and fills in the others.

    Raises:
        TapeError: ``usage`` if an option has a wrong value.
        TypeError: an option does not exist, as with any function.
    """
    for name in given:
        if name not in _SPELLINGS:
            near = difflib.get_close_matches(name, _SPELLINGS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"a recorder has no option {name!r}{hint}")
    options = _checked(given, None)
    return options if options.method == "forward" else options.model_copy(update={"via": "method"})


def _checked(given: Mapping[str, Any], context: Any) -> Options:
    try:
        return Options.model_validate(dict(given), context=context)
    except ValidationError as error:
        name = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
        spelling = _SPELLINGS[name]
        advice = f"write {spelling.text}" if context is _TEXT else spelling.advice
        raise TapeError("usage", f"{name}={given[name]!r:.100}", advice=advice) from None


def parse_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a recorder, from settings whose values are text or come from JSON.

    Raises:
        TapeError: ``usage`` if a setting is unknown or wrong. The error names the key.
    """
    known = [name for name, spelling in _SPELLINGS.items() if spelling.text]
    for key in settings:
        if key not in known:
            advice = f"the options are {', '.join(known)}"
            raise TapeError("usage", f"unknown option {key[:100]!r}", advice=advice)
    options = _checked(settings, _TEXT)
    return {name: getattr(options, name) for name in settings}


def help_of() -> dict[str, str]:
    """By option that has a text: what it does, in a sentence, and how the text looks."""
    # With use_attribute_docstrings, every import of the recorder would read the source, for 20 ms.
    [body] = ast.parse(inspect.getsource(Options)).body
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, doc in itertools.pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
            name = ast.unparse(field.target)
            text = _SPELLINGS[name].text
            if text:
                description = " ".join(ast.literal_eval(doc.value).split())
                sentence = description.partition(". ")[0].removesuffix(".").replace("`", "")
                texts[name] = f"{sentence[:1].lower()}{sentence[1:]}: {text}"
    return texts
