"""How work is cut: every sample once, what belongs together together, and never so fine that it does not pay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan import Plan, plan
from harness.sweep import shards
from harness.sweep.local import LocalExecutor
from harness.sweep.shards import Atom, cut
from harness.types import Memory, Record, State
from tests.test_conf import job

Planned = Callable[..., Plan]


@given(st.lists(st.floats(0.1, 50)), st.floats(0.5, 100))
def test_pieces_hold_every_atom_in_order_and_are_full_or_last(weights: list[float], most: float) -> None:
    atoms = [Atom(0, [str(number)], weight) for number, weight in enumerate(weights)]
    pieces = list(shards._pieces(atoms, most))
    assert [atom for piece in pieces for atom in piece] == atoms and all(pieces)
    for piece, after in pairwise(pieces):
        assert sum(atom.weight for atom in piece) <= most * 1.001 or len(piece) == 1
        assert sum(atom.weight for atom in (*piece, after[0])) > most  # what comes next had no room


@pytest.fixture
def planned(tiny: Path, tmp_path: Path) -> Planned:
    def make(*words: str, task: str = "task=needle_single", n: int = 12, tokens: int = 420) -> Plan:
        where = ("model=hf", f"model.path={tiny}", f"results_dir={tmp_path}", f"n={n}", "name=r")
        return plan([job("strategy=fp8", task, f"task.lengths=[{tokens}]", *where, *words)])

    return make


def own(cuts: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[sample for part in shard["groups"] for sample in part["own"]] for shard in cuts]


def answer(made: Plan, samples: Sequence[str], seconds: float = 1.0) -> None:
    """Store an answer to each of these samples in every cell."""
    (group,) = made.groups
    memory = Memory(made.groups[0].tokens[0], 1, 1, 1, 1, 2**30, 1.0, 1, 1)
    for cell in group.cells:
        made.store.note_ask(cell.ask)
        made.store.cell(cell.address).append(
            Record(cell.address, sample.id, sample.hash, "x", State.SCORED, 1.0, memory=memory, seconds=seconds)
            for sample in group.samples
            if sample.id in samples
        )


def test_every_sample_is_in_one_shard(planned: Planned) -> None:
    made = planned("executor.workers=2", "executor.shard=5")
    cuts = cut(made)
    ids = [sample.id for sample in made.groups[0].samples]
    assert own(cuts) == [ids[:5], ids[5:10], ids[10:]]
    assert [shard["number"] for shard in cuts] == [0, 1, 2]
    assert {shard["job_dir"] for shard in cuts} == {cuts[0]["job_dir"]} != {cut(made)[0]["job_dir"]}


def test_one_worker_takes_all_at_once_unless_it_is_told_otherwise(planned: Planned) -> None:
    assert [len(samples) for samples in own(cut(planned()))] == [12]
    assert [len(samples) for samples in own(cut(planned("executor.shard=4")))] == [4, 4, 4]


def test_where_nothing_is_known_each_worker_gets_four(planned: Planned) -> None:
    assert [len(samples) for samples in own(cut(planned("executor.workers=3")))] == [1] * 12
    assert [len(samples) for samples in own(cut(planned("executor.workers=1")))] == [12]


@pytest.mark.parametrize("seconds, sizes", [(1.0, [10]), (15.0, [2, 2, 2, 2, 2]), (100.0, [1] * 10)])
def test_what_is_known_of_seconds_makes_shards_of_a_minute(planned: Planned, seconds: float, sizes: list[int]) -> None:
    """A sample takes so long in the joint decode, and once more alone."""
    made = planned("executor.workers=4")
    answer(made, [sample.id for sample in made.groups[0].samples[:2]], seconds)
    assert [len(samples) for samples in own(cut(made))] == sizes


def test_another_run_of_the_model_tells_seconds_too(planned: Planned) -> None:
    before = planned("seed=1", task="task=needle_multikey", tokens=500)
    answer(before, [sample.id for sample in before.groups[0].samples], 15.0)
    assert len(cut(planned("executor.workers=4"))) == 6


def test_only_what_is_missing_is_cut(planned: Planned) -> None:
    made = planned("executor.shard=4")
    ids = [sample.id for sample in made.groups[0].samples]
    answer(made, ids[3:9])
    assert own(cut(made)) == [[*ids[:3], ids[9]], ids[10:]]
    answer(made, ids)
    assert cut(made) == []


def test_a_conversation_stays_together(planned: Planned) -> None:
    made = planned("executor.shard=1", "history=own", task="task=needle_turns", n=8, tokens=900)
    clusters = {sample.id: sample.cluster for sample in made.groups[0].samples}
    cuts = own(cut(made))
    assert len(cuts) > 1 and all(len({clusters[sample] for sample in samples}) == 1 for samples in cuts)
    assert Counter(sample for samples in cuts for sample in samples) == Counter(clusters.keys())


def test_samples_that_reuse_what_earlier_ones_left_are_not_parted(planned: Planned) -> None:
    assert [len(samples) for samples in own(cut(planned("executor.shard=2", "strategy/prefix=reuse")))] == [12]


def test_a_run_that_is_cut_has_the_same_cells(planned: Planned) -> None:
    addresses = [
        [cell.address for cell in made.groups[0].cells]
        for made in (planned(), planned("executor.workers=2", "executor.shard=3"))
    ]
    assert addresses[0] == addresses[1]


def test_the_jobs_of_a_run_have_one_executor(planned: Planned) -> None:
    made = planned()
    assert made.executor == LocalExecutor(workers=1)
    assert replace(made, executor=LocalExecutor(workers=2, shard=6)).executor.shard == 6
