"""``calltape health``: whether the recorders of a directory record."""

from __future__ import annotations

import typer

from calltape_schema.health_command import main

__all__ = ["health"]


def health(context: typer.Context) -> None:
    """Whether the recorders that write to a directory record.

    For probes of containers: the exit code says it.

    \b
    calltape health runs/
    calltape health runs/ --stale-after 120 --ok paused,ended --json
    """
    raise typer.Exit(main(context.args))
