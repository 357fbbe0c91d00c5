"""The manifest of a tape that was made of what another tool wrote."""

from __future__ import annotations

import platform
import secrets
import time

from calltape_schema import __version__
from calltape_schema.history import MAX_STEPS, Step
from calltape_schema.records import MINOR, VERSION, Manifest, Producer, Target

__all__ = ["manifest_of_form"]


def manifest_of_form(form: str, target: Target | None, known: Manifest | None = None) -> Manifest:
    """A manifest whose history says which form the calls came from.

    Args:
        form: its name.
        target: what was recorded, if that is known.
        known: the manifest of the tape that the form was written from; None if there was none.
    """
    if known is None:
        known = Manifest(
            format="calltape",
            version=VERSION,
            minor=MINOR,
            tape=secrets.token_bytes(16),
            created_ns=time.time_ns(),
            producer=Producer(calltape=__version__, python=platform.python_version()),
            target=target,
        )
    step = Step(
        verb="convert",
        tool="calltape",
        version=__version__,
        tape=known.tape,
        options=(("from", form),),
    )
    history = (*(known.history or ())[-(MAX_STEPS - 1) :], step)
    return known.model_copy(update={"history": history, "minor": max(MINOR, known.minor)})
