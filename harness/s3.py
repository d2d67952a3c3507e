"""Files in a bucket of an object store that speaks S3 (AWS, MinIO, SeaweedFS, Ceph), asked as ``pathlib`` is.

A put is whole or not there, and one that must not overwrite (``If-None-Match``) is refused by the server: all that the store of
results asks for. Credentials, region and endpoint come from the environment, or wherever else boto3 looks, and are never stored.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from mimetypes import guess_type
from typing import Any, TypeVar

from harness.types import BadInput

Answer = TypeVar("Answer")

WAIT_S = 120.0  # so long a server that does not answer is asked again
PAUSE_S = 1.0  # between two tries
TIMEOUT_S = 20.0  # for a connection, and for each answer
READERS = 16  # requests at once where many objects are read
NO_CREDENTIALS = (
    "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or whatever else boto3 reads"
)


@dataclass(frozen=True, order=True)
class S3Path:
    """One object, or all whose names begin with this one's and a slash."""

    bucket: str
    key: str

    @classmethod
    def of(cls, url: str) -> S3Path:
        """Raises BadInput if it is no place in a bucket, or boto3 is missing."""
        if "@" in url:
            raise BadInput("results_dir must be an address without credentials: these come from the environment")
        named = re.fullmatch(r"s3://([a-z0-9][a-z0-9._-]*)/*(.*?)/*", url)
        if not named:
            raise BadInput(f"results_dir must be a folder or s3://BUCKET/PREFIX, got {url}")
        if find_spec("boto3") is None:
            raise BadInput(f"results_dir: {url} needs boto3: pip install 'kvgate[s3]'")
        return cls(named[1], re.sub("/+", "/", named[2]))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> S3Path:
        return S3Path(self.bucket, f"{self.key}/{name}".lstrip("/"))

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> S3Path:
        return S3Path(self.bucket, self.key.rpartition("/")[0])

    def read_bytes(self) -> bytes:
        """Raises FileNotFoundError if there is no such object, OSError for the rest."""
        return self._asked(lambda s3: bytes(s3.get_object(Bucket=self.bucket, Key=self.key)["Body"].read()))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def put(self, data: bytes, *, absent: bool = False) -> None:
        """Raises FileExistsError if it must be ``absent`` and is there, OSError for the rest."""
        self._asked(self._putting(data, absent))

    def _putting(self, data: bytes, absent: bool) -> Callable[[Any], Any]:
        asked = {"ContentType": guess_type(self.key)[0] or "application/octet-stream", "Body": data}
        asked |= {"IfNoneMatch": "*"} if absent else {}
        return lambda s3: s3.put_object(Bucket=self.bucket, Key=self.key, **asked)

    def exists(self) -> bool:
        try:
            self._asked(lambda s3: s3.head_object(Bucket=self.bucket, Key=self.key))
        except FileNotFoundError:
            return False
        return True

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object; one that is gone is no error, since S3 tells no difference."""
        self._asked(lambda s3: s3.delete_object(Bucket=self.bucket, Key=self.key))

    def glob(self, pattern: str) -> Iterator[S3Path]:
        """Objects under this name that match; as in ``pathlib``, ``*`` stands for no slash."""
        head = str(re.split(r"[*?\[]", pattern, maxsplit=1)[0])
        parts = pattern.split("/")
        for found in self._asked(lambda s3: self._listed(s3, (self / head).key)):
            mine = found.removeprefix(f"{self.key}/").split("/")
            if len(mine) == len(parts) and all(map(fnmatchcase, mine, parts)):
                yield S3Path(self.bucket, found)

    def _listed(self, s3: Any, prefix: str) -> list[str]:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def problem(self) -> str | None:
        """Why results cannot be kept here, found by trying, once and without waiting."""
        probe = self / f".probe-{uuid.uuid4().hex}"
        try:
            for absent in (False, True):
                probe._once(probe._putting(b"", absent))
            return f"must be an object store that refuses to overwrite (If-None-Match), got {self}, which does not"
        except FileExistsError:
            probe._once(lambda s3: s3.delete_object(Bucket=self.bucket, Key=probe.key))
            return None
        except OSError as error:
            return f"must be a bucket that can be written, got {self} ({error.strerror})"

    def _asked(self, request: Callable[[Any], Answer]) -> Answer:
        """The answer to a request. While the server cannot give one it is asked again, for up to ``WAIT_S``."""
        began: float | None = None
        while True:
            try:
                answer = self._once(request)
            except ConnectionError as error:
                now = time.monotonic()
                if began is None:
                    began = now
                    print(f"{self}: {error.strerror}; trying again for {WAIT_S:g} s", file=sys.stderr, flush=True)
                elif now - began > WAIT_S:
                    raise
                time.sleep(PAUSE_S)
                continue
            if began is not None:
                waited = time.monotonic() - began
                print(f"{self}: answered after {waited:.0f} s", file=sys.stderr, flush=True)
            return answer

    def _once(self, request: Callable[[Any], Answer]) -> Answer:
        """The answer to a request. What else comes is told as files do: ConnectionError for what may pass by itself."""
        from botocore import exceptions

        try:
            return request(_client(_endpoint()))
        except exceptions.ClientError as error:
            status, code = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
            if status == 412:
                raise FileExistsError(errno.EEXIST, "is there", str(self)) from error
            if code == "NoSuchBucket":
                raise OSError(errno.EIO, f"there is no bucket {self.bucket}", str(self)) from error
            if status == 404:
                raise FileNotFoundError(errno.ENOENT, "not there", str(self)) from error
            kind = ConnectionError if status >= 500 or status in (409, 429) else OSError
            raise kind(errno.EIO, str(error), str(self)) from error
        except exceptions.NoCredentialsError as error:
            raise OSError(errno.EACCES, NO_CREDENTIALS, str(self)) from error
        except (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError) as error:
            raise ConnectionError(errno.EIO, str(error), str(self)) from error
        except (exceptions.BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
            raise OSError(errno.EIO, str(error), str(self)) from error


def read_together(files: Sequence[S3Path]) -> Iterator[bytes]:
    """The content of each object, in their order."""
    with ThreadPoolExecutor(READERS) as pool:
        yield from pool.map(S3Path.read_bytes, files)


def _endpoint() -> str | None:
    """A server that is not AWS, as the environment names it."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


@cache
def _client(endpoint: str | None) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=TIMEOUT_S,
        read_timeout=TIMEOUT_S,
        max_pool_connections=READERS,
        retries={"mode": "standard", "total_max_attempts": 2},
        # other servers than AWS know neither host names made of buckets nor AWS's checksums; lines have their own
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", endpoint_url=endpoint, config=config)


os.register_at_fork(after_in_child=_client.cache_clear)  # two processes must not speak on one connection
