"""Stored tokens wait in an object store that speaks S3: AWS, MinIO, SeaweedFS, Ceph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar

from strategies.base import KVShape, Lost, Offload, Tier

GLANCE_S = 5.0  # at most so long a first look at the bucket may take


class S3Tier(Tier):
    """One object a key under ``<bucket>/<prefix>/``. There is no limit: what a bucket may hold is for its owner to set."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self.client, self.bucket, self.prefix = client, bucket, prefix

    def put(self, key: str, data: bytes) -> str:
        with self._asking(key):
            self.client.put_object(Bucket=self.bucket, Key=self._object(key), Body=data)
        return "s3"

    def get(self, key: str) -> tuple[bytes, str]:
        with self._asking(key):
            return self.client.get_object(Bucket=self.bucket, Key=self._object(key))["Body"].read(), "s3"

    def delete(self, key: str) -> None:
        with self._asking(key):
            self.client.delete_object(Bucket=self.bucket, Key=self._object(key))

    def _object(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    @contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        where = f"s3: {self.bucket}/{self._object(key)}"
        try:
            yield
        except self.client.exceptions.NoSuchKey as error:
            raise Lost(f"{where}: not there") from error
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"{where}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class S3(Offload):
    """A bucket. Credentials come from the environment or wherever else boto3 looks, never from options.

    A request takes about ``attempts * timeout_s`` at most when nobody answers.

    Args:
        bucket: must exist.
        prefix: what the names of all objects begin with.
        endpoint: URL of the server; None for AWS.
        region: of the bucket; None for what the environment says.
        timeout_s: seconds to wait for a connection, and for each answer.
        attempts: how often a request is tried.
    """

    name: ClassVar[str] = "s3"
    places: ClassVar[frozenset[str]] = Offload.places | {"bucket", "prefix", "endpoint", "region"}

    bucket: str | None = None
    prefix: str = "kvgate"
    endpoint: str | None = None
    region: str | None = None
    timeout_s: float = 10.0
    attempts: int = 2

    def tier(self) -> S3Tier:
        assert self.bucket is not None
        return S3Tier(self._client(), self.bucket, self.prefix)

    def problems(self, shape: KVShape) -> list[str]:
        found = super().problems(shape)
        if not self.bucket:
            found.append(f"{self.option('bucket')} must name a bucket to keep the stored tokens in, got {self.bucket}")
        if self.timeout_s <= 0:
            found.append(f"{self.option('timeout_s')} must be above 0, got {self.timeout_s}")
        if self.attempts < 1:
            found.append(f"{self.option('attempts')} must be 1 or more, got {self.attempts}")
        if find_spec("boto3") is None:
            found.append("strategy.offload: offload/s3 needs boto3: pip install 'kvgate[s3]'")
        if not found and (unreachable := self._unreachable()):
            found.append(unreachable)
        return found

    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=self.timeout_s,
            read_timeout=self.timeout_s,
            retries={"mode": "standard", "total_max_attempts": self.attempts},
            # other servers than AWS know neither host names made of buckets nor AWS's checksums; packets have their own
            s3={"addressing_style": "path" if self.endpoint else "auto"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client("s3", endpoint_url=self.endpoint, region_name=self.region, config=config)

    def _unreachable(self) -> str | None:
        """Why the bucket cannot be used, found by one short look at it."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        server = self.endpoint or "AWS"
        try:
            replace(self, timeout_s=min(self.timeout_s, GLANCE_S), attempts=1)._client().head_bucket(Bucket=self.bucket)
        except NoCredentialsError:
            told = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or whatever else boto3 reads"
            return f"{self.option('bucket')}: no credentials were found for {self.bucket} at {server}: {told}"
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            reason = {404: "there is none of that name", 403: "these credentials may not use it"}
            return (
                f"{self.option('bucket')} must be a bucket at {server}, got {self.bucket}: {reason.get(status, error)}"
            )
        except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
            return f"{self.option('endpoint')} must be a server that answers, got {server}: {error}"
        return None
