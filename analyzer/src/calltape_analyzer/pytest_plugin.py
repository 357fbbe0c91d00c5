"""The pytest plugin: the mark and the fixture ``tape``, and ``--calltape-update``.

pytest loads it by its entry point in every test run of an environment, so that this module imports
nothing but pytest until a test asks for a tape (docs/testing.md).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape
    from calltape_analyzer.testing.assertion import Updates

_MARK = (
    "tape(*paths, calls=None, variant=None, ignore=(), classes=(), whole=False): runs the test "
    "once for each recorded call of these tapes, with the fixture tape; whole=True: for each tape."
)
_OPTION = "--calltape-update"
_WRITE = "Write outputs that differ to the tapes, and list them at the end."
_LOOK = "Only list them, and write nothing."
_SPOOL = "calltape_spool"
_TAPES = 8
"""How many tapes are held open."""

tapes_key: pytest.StashKey[dict[Any, Tape]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("calltape")
    # Two options without a value: one whose value may be left out takes the path that follows it.
    for option, how, text in ((_OPTION, "write", _WRITE), (f"{_OPTION}=look", "look", _LOOK)):
        group.addoption(option, action="store_const", const=how, dest="calltape_update", help=text)
    parser.addini("calltape_dir", "Where the tapes are that tests are run with.", default=None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    config.stash[tapes_key] = {}
    if config.getoption(_OPTION) is not None:
        from calltape_analyzer.testing.assertion import Updates, set_updates

        given = getattr(config, "workerinput", {}).get(_SPOOL)
        set_updates(Updates(given))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker of xdist where new outputs go, which this process writes to the tapes."""
    if node.config.getoption(_OPTION) is not None:
        node.workerinput[_SPOOL] = _updates().folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tape" not in metafunc.fixturenames or not _is_ours(metafunc):
        return
    from calltape_analyzer.testing.chosen_tapes import choices_of

    config = metafunc.config
    tapes = _calltape_dir(config)
    folders = [metafunc.definition.path.parent, *([tapes] if tapes else []), config.rootpath]
    marks = [(mark.args, mark.kwargs) for mark in metafunc.definition.iter_markers("tape")]
    found = choices_of(marks, folders, tapes)
    metafunc.parametrize("tape", found, ids=[one.id for one in found], indirect=True)


def _is_ours(metafunc: pytest.Metafunc) -> bool:
    """Whether the fixture is that of this module, and not one that the tests define."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", "")
        if "tape" in (names.replace(" ", "").split(",") if isinstance(names, str) else names):
            return False
    known = getattr(metafunc, "_arg2fixturedefs", {}).get("tape", ())
    return bool(known) and known[-1].func.__module__ == __name__


def _calltape_dir(config: pytest.Config) -> Path | None:
    given = config.getini("calltape_dir")
    if not given:
        return None
    base = config.inipath.parent if config.inipath is not None else config.rootpath
    return base / str(given)


@pytest.fixture
def tape(request: pytest.FixtureRequest) -> Iterator[Tape]:
    """The tape of the test's mark ``tape``, or each tape of ``calltape_dir``: one call of it for
    each test, or all of it if the mark says ``whole=True``."""
    from calltape_analyzer.errors import TapeError
    from calltape_analyzer.testing.assertion import named
    from calltape_analyzer.testing.chosen_tapes import Problem

    choice = getattr(request, "param", None)
    if choice is None:
        pytest.fail("the fixture tape needs a test, and not another fixture", pytrace=False)
    if isinstance(choice, Problem):
        pytest.fail(choice.text, pytrace=False)
    try:
        whole = _opened(request.config, choice)
        part = whole if choice.place is None else whole.only(calls=whole.calls[choice.place])
    except TapeError as error:
        pytest.fail(f"the tape cannot be used: {error}", pytrace=False)
    with named(_command(request)):
        yield part


def _opened(config: pytest.Config, choice: Any) -> Tape:
    """The tape, which stays open: each of its calls is a test. The tests of a tape follow each
    other, so few are held."""
    from calltape_analyzer.testing.chosen_tapes import opened

    held = config.stash[tapes_key]
    key = (choice.path, id(choice.options))
    if key not in held:
        while len(held) >= _TAPES:
            held.pop(next(iter(held))).close()
        held[key] = opened(choice.path, choice.options)
    return held[key]


def _command(request: pytest.FixtureRequest) -> str:
    """The command that runs this test alone, from where pytest was started."""
    node: pytest.Item = request.node
    file, _, rest = node.nodeid.partition("::")
    started = request.config.invocation_params.dir
    path = os.path.relpath(request.config.rootpath / file, started)
    return f"python -m pytest {shlex.quote(f'{path}::{rest}')}"


def _updates() -> Updates:
    from calltape_analyzer.testing.assertion import updates

    found = updates()
    assert found is not None
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    for held in config.stash.get(tapes_key, {}).values():
        held.close()
    how = config.getoption(_OPTION)
    if how is not None and not hasattr(config, "workerinput"):
        _updates().finish(write=how == "write")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption(_OPTION) is None or hasattr(config, "workerinput"):
        return
    terminalreporter.section("calltape: new outputs")
    for line in _updates().lines:
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.getoption(_OPTION) is not None:
        from calltape_analyzer.testing.assertion import set_updates, updates

        found = updates()
        if found is not None:
            found.close()
        set_updates(None)
