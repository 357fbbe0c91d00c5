"""Functions of torch are replaced while a model is traced, and put back. Two threads that did so at
once would put back what the other one had put there: they take turns."""

from __future__ import annotations

import threading

__all__ = ["PATCHING"]

PATCHING = threading.RLock()
"""Held by the thread that replaces functions of torch, until they are put back."""
