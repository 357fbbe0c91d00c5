"""The LitServe example; its workers say now and then that all they answered is in their file."""

from __future__ import annotations

from typing import Any

import server

__all__ = ["Acknowledging"]

_EVERY = 5


class Acknowledging(server.Generate):
    def setup(self, device: str) -> None:
        super().setup(device)
        self.given = 0

    def encode_response(self, output: list[int]) -> dict[str, Any]:
        self.given += 1
        recorder = getattr(self, "recorder", None)
        flushed = recorder is not None and self.given % _EVERY == 0 and recorder.flush()
        return {**super().encode_response(output), "given": self.given, "flushed": flushed}


if __name__ == "__main__":
    server.Generate = Acknowledging
    server.main()
