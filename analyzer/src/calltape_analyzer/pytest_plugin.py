"""The pytest plugin: the ``tape`` mark and fixture, and ``--calltape-update`` (docs/testing.md).

pytest loads plugins in every test run of an environment, so this module imports only pytest until a
test uses a tape.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
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
_FOLDER = "calltape_updates"
_MAX_OPEN = 8
"""How many tapes stay open."""

tapes_key: pytest.StashKey[dict[Any, Tape]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("calltape")
    # Two flags, because an option with an optional value would swallow a path that follows it.
    for option, how, text in ((_OPTION, "write", _WRITE), (f"{_OPTION}=look", "look", _LOOK)):
        group.addoption(option, action="store_const", const=how, dest="calltape_update", help=text)
    parser.addini("calltape_dir", "Where the tapes are that tests are run with.", default=None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)
    config.stash[tapes_key] = {}
    if config.getoption(_OPTION) is not None:
        from calltape_analyzer.testing.assertion import Updates, set_updates

        folder = getattr(config, "workerinput", {}).get(_FOLDER)
        set_updates(Updates(folder))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells an xdist worker the folder for new outputs, which this process writes to the tapes."""
    if node.config.getoption(_OPTION) is not None:
        node.workerinput[_FOLDER] = _updates().folder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tape" not in metafunc.fixturenames or not _is_ours(metafunc):
        return
    from calltape_analyzer.testing.parameters import parameters_for

    config, definition = metafunc.config, metafunc.definition
    folders, tapes = [definition.path.parent, config.rootpath], None
    if calltape_dir := config.getini("calltape_dir"):
        base = config.inipath.parent if config.inipath is not None else config.rootpath
        tapes = base / str(calltape_dir)
        folders.insert(1, tapes)
    marks = [(mark.args, mark.kwargs) for mark in definition.iter_markers("tape")]
    parameters = parameters_for(marks, folders, tapes)
    metafunc.parametrize(
        "tape", parameters, ids=[parameter.id for parameter in parameters], indirect=True
    )


def _is_ours(metafunc: pytest.Metafunc) -> bool:
    """Whether the test uses the fixture of this module, not a fixture of its own."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", "")
        if "tape" in (names.replace(" ", "").split(",") if isinstance(names, str) else names):
            return False
    fixtures = getattr(metafunc, "_arg2fixturedefs", {}).get("tape", ())
    return bool(fixtures) and fixtures[-1].func.__module__ == __name__


@pytest.fixture
def tape(request: pytest.FixtureRequest) -> Iterator[Tape]:
    """A tape of the test's ``tape`` marks, or of ``calltape_dir``. Each test has one call of it, or
    all calls if the mark says ``whole=True``."""
    from calltape_analyzer.errors import TapeError
    from calltape_analyzer.testing.assertion import rerun_with
    from calltape_analyzer.testing.parameters import BadParameter

    parameter = getattr(request, "param", None)
    if parameter is None:
        pytest.fail("the fixture tape needs a test, and not another fixture", pytrace=False)
    if isinstance(parameter, BadParameter):
        pytest.fail(parameter.text, pytrace=False)
    try:
        whole = _open(request.config, parameter)
        is_whole = parameter.position is None
        part = whole if is_whole else whole.only(calls=whole.calls[parameter.position])
    except TapeError as error:
        pytest.fail(f"the tape cannot be used: {error}", pytrace=False)
    # The command runs this test alone, from the folder in which pytest was started.
    node: pytest.Item = request.node
    file, _, test_name = node.nodeid.partition("::")
    started = request.config.invocation_params.dir
    path = os.path.relpath(request.config.rootpath / file, started)
    with rerun_with(f"python -m pytest {shlex.quote(f'{path}::{test_name}')}"):
        yield part


def _open(config: pytest.Config, parameter: Any) -> Tape:
    """A tape, which stays open for the tests of its other calls, which usually follow."""
    from calltape_analyzer.testing.parameters import opened_part

    tapes = config.stash[tapes_key]
    key = (parameter.path, id(parameter.options))
    if key not in tapes:
        while len(tapes) >= _MAX_OPEN:
            tapes.pop(next(iter(tapes))).close()
        tapes[key] = opened_part(parameter.path, parameter.options)
    return tapes[key]


def _updates() -> Updates:
    from calltape_analyzer.testing.assertion import updates

    current = updates()
    assert current is not None
    return current


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    for used_tape in config.stash.get(tapes_key, {}).values():
        used_tape.close()
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

        current = updates()
        if current is not None:
            current.close()
        set_updates(None)
