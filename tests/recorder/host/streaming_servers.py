"""Servers whose methods go on after they returned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import torch


class RefusedError(Exception):
    """What the servers below raise."""


class Server:
    """A method of each kind, as inference servers have them; ``log`` has what really ran."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    async def generate(self, x: torch.Tensor, *, fails: bool = False) -> torch.Tensor:
        self.log.append("starts")
        await asyncio.sleep(0)
        if fails:
            raise RefusedError("no")
        return x * 2

    def stream(self, n: int, end: Any = None) -> Iterator[Any]:
        """Takes what is sent and thrown, says so, and cleans up."""
        self.log.append("starts")
        try:
            for index in range(n):
                try:
                    self.log.append((yield index))
                except RefusedError as error:
                    self.log.append(f"caught {error}")
                    yield "caught"
            if isinstance(end, BaseException):
                raise end
        finally:
            self.log.append("cleaned")
        return end

    async def astream(self, n: int, end: Any = None) -> AsyncIterator[Any]:
        self.log.append("starts")
        try:
            for index in range(n):
                try:
                    await asyncio.sleep(0)
                    self.log.append((yield index))
                except RefusedError as error:
                    self.log.append(f"caught {error}")
                    yield "caught"
            if isinstance(end, BaseException):
                raise end
        finally:
            await asyncio.sleep(0)
            self.log.append("cleaned")

    def stubborn(self) -> Iterator[int]:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    async def astubborn(self) -> AsyncIterator[int]:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    def tokens(self, x: torch.Tensor, n: int) -> Iterator[torch.Tensor]:
        """One buffer for all chunks."""
        for _ in range(n):
            x += 1
            yield x

    # Plain functions that return what only runs later.

    def start_generate(self, x: torch.Tensor) -> Awaitable[torch.Tensor]:
        return self.generate(x)

    def start_stream(self, n: int) -> Iterator[Any]:
        return self.stream(n)

    def start_astream(self, n: int) -> AsyncIterator[Any]:
        return self.astream(n)

    async def engine(self, n: int) -> AsyncIterator[Any]:
        return self.astream(n)


class Returning(Server):
    """The same, where every method is a plain function that returns what only runs later."""

    def generate(self, x: torch.Tensor, *, fails: bool = False) -> Any:
        return super().generate(x, fails=fails)

    def stream(self, n: int, end: Any = None) -> Any:
        """Takes what is sent and thrown, says so, and cleans up."""
        return super().stream(n, end)

    def astream(self, n: int, end: Any = None) -> Any:
        return super().astream(n, end)
