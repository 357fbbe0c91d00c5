"""Fixtures: an S3 server, and tapes on it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer.reading.remote import blocks
from tests.analyzer.remote.counted import Traffic, aws_environment, nothing, s3_server


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert not len(blocks), "a remote file was not closed"


@dataclass
class Bucket:
    """A bucket of the S3 server, which is empty at first."""

    name: str
    traffic: Traffic
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def system(self) -> Any:
        """A file system of its own: what it knows, nobody else knows."""
        import s3fs

        return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)

    def put(self, key: str, source: Path | bytes) -> str:
        """The URL of a new object."""
        data = source if isinstance(source, bytes) else source.read_bytes()
        self.system.pipe_file(f"{self.name}/{key}", data)
        self.traffic.clear()
        return f"{self.url}/{key}"


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[str, Traffic]]:
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()  # it remembers the server of another module
    with s3_server() as found:
        yield found
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(s3: tuple[str, Traffic], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    address, traffic = s3
    environment = aws_environment(address)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = Bucket(f"bucket-{uuid.uuid4().hex[:12]}", traffic, environment)
    made.system.mkdir(made.name)
    traffic.clear()
    yield made
    traffic.refuses = nothing
