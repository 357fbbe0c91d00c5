"""The ``calltape`` command, and ``python -m calltape_analyzer`` if scripts are not on the path."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command with the arguments of the process."""
    try:
        from calltape_analyzer.interruption import signals_handled

        with signals_handled():
            from calltape_analyzer.cli.verbs import main as command

            command()
    except KeyboardInterrupt as end:  # also from `signals_handled` itself: a signal may come early
        from calltape_analyzer.interruption import exit_code_of

        return exit_code_of(end)
    return 0


if __name__ == "__main__":
    sys.exit(main())
