"""The S3 server of the tests of URLs."""

from tests.analyzer.remote.conftest import _nothing_is_left, bucket, s3

__all__ = ["_nothing_is_left", "bucket", "s3"]
