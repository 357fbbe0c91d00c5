"""``calltape-record`` runs a server with a recorder in it, without a change to its code.

::

    calltape-record --target package.module:attribute --tape DIR -- python serve.py

The command runs in place of this process, so signals and exit codes are its own. It, and every
Python process that it starts, finds ``startup/sitecustomize.py`` first on PYTHONPATH and the
settings in ``CALLTAPE``. A process in which the target appears imports :mod:`.attaching`. This file
does not import torch, so the help and wrong usage answer at once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calltape_recorder.bounds import OWNER_ONLY
from calltape_recorder.launch.startup.calltape_startup import VARIABLE, seconds, split
from calltape_recorder.options import help_of, parse_options
from calltape_recorder.write.disk_file import make_folders
from calltape_schema import TapeError

STARTUP = os.fspath(Path(__file__).with_name("startup"))
"""The directory that makes Python processes read ``CALLTAPE``, when it is on PYTHONPATH."""

_NO_OPTIONS = ("target", "tape", "wait", "pid")  # settings that are not for the recorder


def options_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a recorder, from settings that are also those of this launcher.

    Raises:
        TapeError: ``usage`` if a setting is unknown or wrong.
    """
    return parse_options({key: settings[key] for key in settings if key not in _NO_OPTIONS})


def directory_in(settings: Mapping[str, Any]) -> str:
    tape = settings.get("tape")
    if not isinstance(tape, str) or not tape:
        raise TapeError(
            "usage", "no directory for the tapes is given",
            advice=f"pass --tape DIR, or write tape=DIR in {VARIABLE}",
        )  # fmt: skip
    return os.path.abspath(tape)


def prepare(settings: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a command, and every Python process that it starts, is recorded.

    Raises:
        TapeError: ``usage`` if a setting is wrong, ``io`` if the directory of the tapes cannot be
            made or written.
    """
    target = str(settings.get("target") or "")
    module, _, attribute = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        what = f"the target {target[:100]!r} is malformed" if target else "no target is given"
        raise TapeError(
            "usage",
            what,
            advice="name a module, class or method like package.module:attribute; for a class, all "
            "instances are recorded",
        )
    directory = directory_in(settings)
    options = options_in(settings)
    whole = {key: value for key, value in settings.items() if value is not None}
    whole["tape"] = directory
    try:
        seconds(whole.get("wait", 0))
        text = json.dumps({**whole, "pid": os.getpid()})
    except (TypeError, ValueError) as error:
        raise TapeError("usage", str(error), advice="write a duration like 90 or 10m") from None
    try:
        make_folders(directory, options.get("file_mode", OWNER_ONLY))
    except OSError as error:
        raise TapeError("io", error.strerror or str(error), path=directory) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise TapeError("io", "the directory is not writable", path=directory)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [STARTUP, *(path for path in paths if path != STARTUP)]
    return {**environment, VARIABLE: text, "PYTHONPATH": os.pathsep.join(paths)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``calltape-record``. It returns only if the command was not run: 2 for wrong usage, 126
    if the command cannot be run, 127 if it is not found, as in a shell."""
    environment = dict(os.environ)
    parser = parser_of_command()
    given = vars(parser.parse_args(arguments))
    command: list[str] = given.pop("command")
    if given.pop("print_path"):
        sys.stdout.write(f"{STARTUP}\n")
        return 0
    if command[:1] == ["--"]:
        del command[0]
    try:
        if not command:
            raise TapeError("usage", "no command is given", advice="end with: -- python serve.py")
        try:
            settings = split(environment.get(VARIABLE, ""))
        except ValueError as error:
            advice = "write it like target=serve:model;tape=/tapes"
            raise TapeError("usage", f"{VARIABLE}: {error}", advice=advice) from None
        settings.update({key: value for key, value in given.items() if value is not None})
        environment = prepare(settings, environment)
    except TapeError as error:
        sys.stderr.write(f"calltape-record: {error}\n")
        return 2
    # Python ignores these signals, and the command would inherit that.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.stderr.write(f"calltape-record: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def parser_of_command() -> argparse.ArgumentParser:
    """The options of ``calltape-record``."""
    parser = argparse.ArgumentParser(
        prog="calltape-record",
        usage="calltape-record --target MODULE:ATTRIBUTE --tape DIR [options] -- COMMAND ...",
        description="Run a command, and record the calls of a model in it and in every Python"
        " process that it starts, without changing its code.",
        epilog="Options that you do not pass are taken from CALLTAPE, which uses the same names:"
        ' CALLTAPE="target=serve:model;tape=/tapes;keep=novelty()", or a JSON object.',
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument(
        "--target", metavar="MODULE:ATTRIBUTE",
        help="what to record: a module (serve:model, main:app.state.model), a class (all its"
        " instances) or a method (serve:engine.generate); in a script, __main__:name",
    )  # fmt: skip
    parser.add_argument(
        "--tape", metavar="DIR", help="directory for the tapes, <Class>-<process>.tape"
    )
    parser.add_argument(
        "--wait", metavar="TIME", help="how long to wait for the target to appear, such as 10m"
    )
    for name, says in help_of().items():
        says = says.replace("%", "%%")  # argparse puts values in
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="…", help=says)
    parser.add_argument(
        "--print-path", action="store_true",
        help="print the directory that makes Python read CALLTAPE if it is on PYTHONPATH",
    )  # fmt: skip
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
