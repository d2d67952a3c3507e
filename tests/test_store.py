"""The store: nothing lost, nothing mixed, whatever happens to those who write it."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import samples as sample_files
from harness.store import Cell, ResultStore
from harness.types import BadInput, Evidence, Memory, Record, Response, Sample, State, canonical, digest


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


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return ResultStore(tmp_path / "results").cell("abc")


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
    part.write_bytes(part.read_bytes() + b"garbage\n")
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
    assert bool(damaged) == (cell.folder / "damaged").exists()


def test_a_truncated_part_is_reported_with_file_and_line_and_moved_aside(cell: Cell) -> None:
    cell.append([record("s0"), record("s1")])
    cell.finish("set")
    part = next(cell.folder.glob("part-*"))
    part.write_bytes(part.read_bytes()[:-30])
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
    cell = ResultStore(Path(root)).cell("abc")
    for i in range(30):
        cell.append([record(f"s{i}", seconds=writer + i / 100)])
        if i % 7 == 0:
            cell.finish("set")
    cell.finish("set")


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(str(tmp_path), w)) for w in range(4)]
    for worker in workers:
        worker.start()
    cell = ResultStore(tmp_path).cell("abc")
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


def test_looks_are_counted_once_for_each_set_of_samples(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    assert [store.look("pair", s, {"looks": 2})[0] for s in ("a", "a", "b", "a", "c")] == [1, 1, 2, 1, 3]
    assert store.look("other pair", "c", {"looks": 2})[0] == 1


def test_what_was_promised_before_the_first_look_is_kept(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    assert store.look("pair", "a", {"looks": 1}) == (1, {"looks": 1})
    assert store.look("pair", "b", {"looks": 5}) == (2, {"looks": 1})
    assert store.look("pair", "a", {"looks": 9}) == (1, {"looks": 1})


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
