"""What may be chosen of an export, besides the tape, the model and the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.session.probing import Probe

__all__ = ["ExportOptions"]


@dataclass(frozen=True)
class ExportOptions:
    """How programs are made and checked, and what that may cost. The defaults are for a workstation
    that has room for the recorded calls.

    Attributes:
        merge: ``"auto"`` makes one program of prefill and decode steps if replay proves it right.
            ``"never"`` saves the time to find out; ``notes`` say where that would have been wise.
        tolerances: of the comparison; by default of ``torch.testing``, wider for ONNX.
        attempt_seconds: how long a trace may take (of processor time, in the main thread), and a
            run at other sizes than the recorded ones; by default a minute, for a trace half a
            minute and a tenth of a second per module.
        probe: at which other sizes model and programs are run and compared: ``"near"`` is up to 4
            times the recorded ones, ``"far"`` up to 500 times, ``"none"`` is at none.
        max_memory: the bytes that a run at other sizes may take, with the run that it is compared
            with. By default what the largest recorded call takes, or 256 MiB if that is more, and
            never more than half of what is free (for ``probe="far"``: that half).
        max_seconds: how long all of it may take; no limit by default. When the time is up, the
            programs that were found are returned, and ``missing`` says what was not tried. A trace
            is interrupted (in the main thread), a run of a recorded call is not.
        exporter: for ``torch.export.export`` or ``torch.onnx.export``, as in
            ``{"opset_version": 20}``.

    Raises:
        UsageError: for a value that is none of these.
    """

    merge: Literal["auto", "never"] = "auto"
    tolerances: Tolerances | None = None
    attempt_seconds: float | None = None
    probe: Probe = "near"
    max_memory: int | None = None
    max_seconds: float | None = None
    exporter: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.merge not in ("auto", "never"):
            raise UsageError(f"merge={self.merge!r}", advice="pass 'auto' or 'never'")
        if self.probe not in ("near", "far", "none"):
            raise UsageError(f"probe={self.probe!r}", advice="pass 'near', 'far' or 'none'")
        if self.max_memory is not None and self.max_memory < 0:
            raise UsageError(f"max_memory={self.max_memory!r}", advice="pass bytes, or None")
        for name in ("max_seconds", "attempt_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise UsageError(f"{name}={seconds!r}", advice="pass a number above 0, or None")
