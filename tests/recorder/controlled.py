"""What a control file steers, instead of a recorder."""

from __future__ import annotations

from typing import Any


class Fake:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    def set_rate(self, rate: float | None) -> None:
        self.told.append(rate)

    def seal(self) -> None:
        self.told.append("seal")

    def dump(self, reason: str) -> int:
        self.told.append(f"dump {reason}")
        return 1

    def take(self) -> list[Any]:
        told, self.told = self.told, []
        return told
