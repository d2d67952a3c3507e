"""The store: nothing lost, nothing mixed, whatever happens to those who write it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import samples as sample_files
from harness.places import create, place, read_all, write_atomic
from harness.store import Cell, ResultStore, store_of
from harness.types import BadInput, Evidence, Memory, Record, Response, Sample, State, canonical, digest
from tests.s3server import BUCKET, KEYS, Server, serving


def record(sample: str = "s0", score: float | None = 1.0, state: State = State.SCORED, **changes: object) -> Record:
    whole = Record(
        cell="c",
        sample_id=sample,
        sample_hash="h" + sample,
        prompt_hash="p",
        state=state,
        score=score,
        answer="42",
        parts={"leak": 0.25, "kind: begins": 1.0},
        response=Response("42 </script>", (1, 2), "stop", {"kl_mean": 0.5}),
        evidence=(Evidence("quant/fp8", True, "quantized 5 of 5", {"clipped_elements": 0.0}),),
        memory=Memory(10, 1, 2, 3, 4, 5, 0.5, 6, 7),
        seconds=0.25,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultStore:
    """An empty store, on a disk or in a bucket of a real S3 server."""
    if request.param == "folder":
        return ResultStore(tmp_path / "results")
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3_server").endpoint)
    return ResultStore(f"s3://{BUCKET}/{tmp_path.name}")


@pytest.fixture
def cell(store: ResultStore) -> Cell:
    return store.cell("abc")


def test_a_record_comes_back_as_it_went_in(cell: Cell) -> None:
    cell.append([record(), record("s1", None, State.FAILED, response=None, memory=None, error="x", fault="model")])
    records, damaged = cell.read()
    assert records == {
        "s0": record(),
        "s1": record("s1", None, State.FAILED, response=None, memory=None, error="x", fault="model"),
    }
    assert damaged == []


def test_a_record_of_before_scores_had_parts_is_read(cell: Cell) -> None:
    old = {key: value for key, value in record().to_json().items() if key != "parts"}
    cell._write_part([canonical({"checksum": digest(old), "record": old})])
    records, damaged = cell.read()
    assert records == {"s0": record(parts={})} and damaged == []


def test_a_model_s_failure_outranks_one_of_the_infrastructure(cell: Cell) -> None:
    for i in range(20):  # whatever the names of the files
        ours = record(f"s{i}", None, State.FAILED, response=None, error="out of memory", fault="infrastructure")
        theirs = record(f"s{i}", None, State.FAILED, response=None, error="not finite", fault="model")
        cell.append([ours])
        cell.append([theirs])
        assert cell.read()[0][f"s{i}"].fault == "model"


def test_a_sample_whose_tokens_were_found_outranks_one_whose_were_lost(cell: Cell) -> None:
    for i in range(20):
        for lost in (3.0, 0.0):
            evidence = Evidence("offload/disk", not lost, "", {"recomputed_layers": lost})
            cell.append([replace(record(f"s{i}"), evidence=(evidence,))])
        assert cell.read()[0][f"s{i}"].final


def test_a_sample_that_changed_under_its_id_does_not_hide_the_new_one(cell: Cell) -> None:
    for i in range(20):
        cell.append([record(f"s{i}", sample_hash="old")])
        cell.append([record(f"s{i}", sample_hash="new", score=0.0)])
    for _ in range(2):
        assert {r.score for r in cell.read(dict.fromkeys((f"s{i}" for i in range(20)), "new"))[0].values()} == {0.0}
        assert len(cell.read(dict.fromkeys((f"s{i}" for i in range(20)), "old"))[0]) == 20
        cell.finish("set")
    assert cell.read({"s0": "other"})[0] == {}


def test_damage_behind_whole_lines_costs_none_of_them(cell: Cell) -> None:
    cell.append([record("s0"), record("s1")])
    part = next(cell.folder.glob("part-*"))
    write_atomic(part, part.read_bytes() + b"garbage\n")
    assert len(cell.repair()) == 1
    assert sorted(cell.read()[0]) == ["s0", "s1"] and cell.read()[1] == []
    assert b"garbage" in (cell.folder / "damaged" / part.name).read_bytes()


def test_an_empty_cell_reads_as_empty(cell: Cell) -> None:
    assert cell.read() == ({}, [])


def test_of_two_records_the_better_state_wins(cell: Cell) -> None:
    cell.append([record(state=State.FAILED, score=None, fault="infrastructure")])
    cell.append([record()])
    assert cell.read()[0]["s0"].state is State.SCORED


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_one_damaged_byte_costs_at_most_one_line(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
) -> None:
    cell = ResultStore(tmp_path_factory.mktemp("r")).cell("abc")
    cell.append([record(f"s{i}") for i in range(3)])
    part = next(cell.folder.glob("part-*"))
    content = bytearray(part.read_bytes())
    at = position % len(content)
    joins = content[at] == ord("\n") != byte  # the end of a line goes: two records are one line then
    content[at] = byte
    part.write_bytes(bytes(content))
    before, damaged = cell.read()
    assert all(known == record(known.sample_id) for known in before.values())  # what is believed is true
    assert len(before) >= (1 if joins else 2)
    repaired = cell.repair()
    assert [d.line for d in repaired] == [d.line for d in damaged]
    after, left = cell.read()
    assert after == before and left == []
    assert bool(damaged) == bool(list(cell.folder.glob("damaged/*")))


def test_a_truncated_part_is_reported_with_file_and_line_and_moved_aside(cell: Cell) -> None:
    cell.append([record("s0"), record("s1")])
    cell.finish("set")
    part = next(cell.folder.glob("part-*"))
    write_atomic(part, part.read_bytes()[:-30])
    (damage,) = cell.repair()
    assert damage.line == 2 and str(part) in str(damage)
    assert list(cell.read()[0]) == ["s0"]
    assert not cell.finished("set")
    assert (cell.folder / "damaged" / part.name).exists()


def test_finishing_merges_parts_and_marks_last(cell: Cell) -> None:
    for i in range(5):
        cell.append([record(f"s{i}")])
    cell.finish("set")
    assert len(list(cell.folder.glob("part-*"))) == 1
    assert cell.finished("set") and not cell.finished("other")
    assert len(cell.read()[0]) == 5
    cell.append([record("s9")])
    cell.finish("set")
    cell.finish("set")
    assert len(cell.read()[0]) == 6


def _write_many(root: str, writer: int) -> None:
    cell = ResultStore(root).cell("abc")
    for i in range(30):
        cell.append([record(f"s{i}", seconds=writer + i / 100)])
        if i % 7 == 0:
            cell.finish("set")
    cell.finish("set")


def test_writers_at_once_lose_nothing(store: ResultStore) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(str(store.root), w)) for w in range(4)]
    for worker in workers:
        worker.start()
    cell = store.cell("abc")
    while any(worker.is_alive() for worker in workers):
        records, damaged = cell.read()  # readers meanwhile see whole records only
        assert damaged == [] and all(r.score == 1.0 for r in records.values())
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(cell.read()[0]) == 30


def test_a_cell_is_not_continued_by_a_model_that_loads_otherwise(cell: Cell) -> None:
    cell.note_loaded({"dtype": "float32"})
    cell.note_loaded({"dtype": "float32"})
    with pytest.raises(BadInput, match="not mixed"):
        cell.note_loaded({"dtype": "bfloat16"})


def test_the_address_depends_on_every_fact_and_on_nothing_else(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    ask = {"model": {"weights": "a"}, "seed": 0}
    assert store.ask(ask) == ResultStore(tmp_path / "elsewhere").ask(dict(reversed(list(ask.items()))))
    assert store.ask(ask) != store.ask({**ask, "seed": 1})


def test_looks_are_counted_once_for_each_set_of_samples(store: ResultStore) -> None:
    assert [store.look("pair", s, {"looks": 2})[0] for s in ("a", "a", "b", "a", "c")] == [1, 1, 2, 1, 3]
    assert store.look("other pair", "c", {"looks": 2})[0] == 1


def test_what_was_promised_before_the_first_look_is_kept(store: ResultStore) -> None:
    assert store.look("pair", "a", {"looks": 1}) == (1, {"looks": 1})
    assert store.look("pair", "b", {"looks": 5}) == (2, {"looks": 1})
    assert store.look("pair", "a", {"looks": 9}) == (1, {"looks": 1})


def _look_at(root: str, names: list[str]) -> list[int]:
    return [ResultStore(root).look("pair", name, {"looks": 2})[0] for name in names]


def test_looks_of_several_at_once_have_numbers_of_their_own(store: ResultStore) -> None:
    context, names = multiprocessing.get_context("fork"), [[f"{worker}-{i}" for i in range(8)] for worker in range(4)]
    with context.Pool(4) as pool:
        told = pool.starmap(_look_at, [(str(store.root), mine) for mine in names])
    assert sorted(look for mine in told for look in mine) == list(range(1, 33))
    assert [_look_at(str(store.root), mine) for mine in names] == told  # and keep them


def test_looks_keep_their_order_when_the_clock_goes_back(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for days, name in enumerate("abc"):
        monkeypatch.setattr(time, "time", lambda days=days: -86400.0 * days)
        monkeypatch.setattr(time, "time_ns", lambda days=days: -86400 * 10**9 * days)
        assert store.look("pair", name, {"looks": days}) == (days + 1, {"looks": 0})


def test_looks_of_before_they_had_numbers_come_first(store: ResultStore) -> None:
    for name, time_ns in (("a", 2), ("b", 1)):
        write_atomic(store.root / "looks" / "pair" / f"{name}.json", canonical({"promise": name, "time_ns": time_ns}))
    assert [store.look("pair", name, {})[0] for name in ("a", "b", "c", "a")] == [2, 1, 3, 2]
    assert store.look("pair", "c", {}) == (3, "b")


def test_only_one_of_many_makes_a_file(store: ResultStore) -> None:
    file = store.root / "one" / "file.json"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda text: create(file, text), map(str, range(32))))
    assert made.count(True) == 1
    assert file.read_text() == str(made.index(True))


def test_a_mount_without_hard_links_makes_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert [create(tmp_path / "a" / "b", text) for text in ("x", "y")] == [True, False]
    assert [(file.name, file.read_text()) for file in (tmp_path / "a").iterdir()] == [("b", "x")]


def test_a_place_is_asked_as_pathlib_is(store: ResultStore) -> None:
    for name in ("a/x.json", "a/y.txt", "a/b/z.json", "ab/x.json"):
        write_atomic(store.root / name, name)
    assert sorted(str(file).removeprefix(f"{store.root}/") for file in store.root.glob("*/*.json")) == [
        "a/x.json",
        "ab/x.json",
    ]
    assert [file.stem for file in (store.root / "a").glob("*.json")] == ["x"]
    one = store.root / "a/b/z.json"
    assert (one.name, one.stem, one.parent.name, one.exists(), one.read_text()) == (
        "z.json",
        "z",
        "b",
        True,
        "a/b/z.json",
    )
    assert place(str(one)) == one and list(read_all([one, store.root / "a/x.json"])) == [b"a/b/z.json", b"a/x.json"]
    one.unlink()
    one.unlink(missing_ok=True)
    assert not one.exists()
    with pytest.raises(FileNotFoundError):
        one.read_bytes()


def _append_limited(root: str) -> str:
    """With room for half a record."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
    try:
        ResultStore(root).cell("abc").append([record("s1")])
    except BadInput as error:
        return str(error)
    return "written"


def test_a_record_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    cell = ResultStore(tmp_path).cell("abc")
    cell.append([record("s0")])
    with multiprocessing.get_context("fork").Pool(1) as pool:
        said = pool.apply(_append_limited, (str(tmp_path),))
    assert said.startswith(f"results_dir: {cell.folder} could not be written (") and "start the run again" in said
    assert list(cell.read()[0]) == ["s0"] and len(list(cell.folder.iterdir())) == 1


def test_repair_by_two_at_once_keeps_all_whole_lines(store: ResultStore) -> None:
    cell = store.cell("abc")
    for i in range(12):
        cell.append([record(f"s{i}"), record(f"t{i}")])
    for part in list(cell.folder.glob("part-*"))[::2]:
        write_atomic(part, part.read_bytes()[:-30])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: cell.repair(), range(2)))
    records, damaged = cell.read()
    assert damaged == [] and len(records) == 18 and {f"s{i}" for i in range(12)} <= set(records)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("gs://bucket/results", "results_dir must be a folder or s3://BUCKET/PREFIX, got gs://bucket/results"),
        ("s3://", "results_dir must be a folder or s3://BUCKET/PREFIX, got s3://"),
        ("s3://Bad_Bucket!/x", "results_dir must be a folder or s3://BUCKET/PREFIX, got s3://Bad_Bucket!/x"),
        (
            "s3://id:secret@bucket/x",
            "results_dir must be an address without credentials: these come from the environment",
        ),
    ],
)
def test_an_address_that_is_none_is_told(url: str, told: str) -> None:
    assert store_of(url) == (None, [told])


def test_without_boto3_a_bucket_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.s3.find_spec", lambda _: None)
    assert store_of("s3://bucket/x")[1] == ["results_dir: s3://bucket/x needs boto3: pip install 'kvgate[s3]'"]


@pytest.mark.slow
def test_a_bucket_that_cannot_be_used_is_one_problem(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    assert store_of(f"s3://{BUCKET}/x")[1] == []
    assert store_of("s3://nobody-s/x")[1] == [
        "results_dir must be a bucket that can be written, got s3://nobody-s/x (there is no bucket nobody-s)"
    ]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (told,) = store_of(f"s3://{BUCKET}/x")[1]
    assert told.startswith(f"results_dir must be a bucket that can be written, got s3://{BUCKET}/x (Could not connect")


@pytest.mark.slow
def test_a_server_that_is_gone_for_good_is_one_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("harness.s3.WAIT_S", 2.0)
    with serving(tmp_path) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        cell = ResultStore(f"s3://{BUCKET}/x").cell("abc")
        cell.append([record("s0")])
        server.kill()
        with pytest.raises(BadInput, match=rf"results_dir: s3://{BUCKET}/x/cells/abc could not be written \(Could not"):
            cell.append([record("s1")])
        assert capfd.readouterr().err.count("trying again for 2 s") == 1
        server.start()
        cell.append([record("s2")])
        assert sorted(cell.read()[0]) == ["s0", "s2"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file" / "results", Path("/proc/kvgate")):
        (problem,) = ResultStore(root).problems()
        assert problem.startswith("results_dir must be") and str(root) in problem


def test_samples_come_back_as_they_went_in(tmp_path: Path) -> None:
    samples = [
        Sample("a", "text", "q?", ("1", "2"), 5, " it is", ("\n",), "doc", False, {"depth": 0.5, "length": 10}),
        Sample("b", "", "", (), 1, follow=True, instructions=("be brief", "in English")),
    ]
    sample_files.save(samples, tmp_path / "s.parquet")
    assert sample_files.load(tmp_path / "s.parquet") == samples
    assert [s.hash for s in sample_files.load(tmp_path / "s.parquet")] == [s.hash for s in samples]
    assert sample_files.load(tmp_path / "s.parquet", 1) == samples[:1]
    assert sample_files.set_hash(samples) == sample_files.set_hash(samples[::-1]) != sample_files.set_hash(samples[:1])
