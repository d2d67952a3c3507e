"""Conversations in which each strategy hears what it has said itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import worker
from harness.generation import drawn
from harness.groups import read_run
from harness.history import Heard, in_order, link, most_tokens, waves
from harness.judge import judge
from harness.manifest import make_manifest
from harness.plan import Plan, plan
from harness.store import ResultStore
from harness.table import to_table
from harness.types import Generation, Record, Response, Sample, State
from tests.cli import Kvgate
from tests.tasks.task_doubles import Pieces
from tests.test_conf import job


def talk(name: str, questions: str, cluster: str | None = None) -> list[Sample]:
    """A conversation that asks one letter a turn; the reference answer of "a" is "A"."""
    return [
        Sample(
            id=f"{name}-{at}",
            context=f"text of {name}",
            question=asked,
            answers=(asked.upper(),),
            max_new_tokens=4,
            answer_prefix="so",
            cluster=name if cluster is None else cluster,
            turns=tuple((before, before.upper()) for before in questions[:at]),
        )
        for at, asked in enumerate(questions)
    ]


def said(cell: str, sample: Sample, text: str | None, fault: Any = None) -> Record:
    state = State.SCORED if text is not None else State.FAILED
    response = Response(text, (1,), "stop") if text is not None else None
    return Record(cell, sample.id, sample.hash, "p", state, response=response, fault=fault)


@given(talks=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4), order=st.randoms())
def test_turns_are_linked_by_what_was_asked_before_and_asked_in_that_order(talks: list[str], order: Any) -> None:
    """Whatever order the samples come in, also where two conversations are about one text."""
    samples = [sample for at, questions in enumerate(talks) for sample in talk(str(at), questions)]
    shuffled = order.sample(samples, len(samples))
    before = link("own", shuffled)
    for sample in samples:
        name, at = sample.id.split("-")
        assert [one.id for one in before[sample.id]] == [f"{name}-{turn}" for turn in range(int(at))]
    ordered = in_order(shuffled, before)
    assert sorted(one.id for one in ordered) == sorted(one.id for one in samples)
    places = {one.id: place for place, one in enumerate(ordered)}
    assert all(places[one.id] < places[sample.id] for sample in samples for one in before[sample.id])
    assert in_order(samples, link("own", samples)) == samples  # no order is changed that is right already


def test_conversations_about_one_text_that_part_share_their_beginning() -> None:
    one, other = talk("x", "abc"), [replace(sample, id=f"other-{sample.id}") for sample in talk("x", "abd")]
    before = link("own", [*one, *other])
    assert [sample.id for sample in before["other-x-2"]] == ["x-0", "x-1"]


def test_each_draw_hears_the_draws_before_it() -> None:
    samples = drawn(talk("x", "ab"), 6, Generation(temperature=0.7, k=3))
    before = link("own", samples)
    assert {sample.id: [one.id for one in before[sample.id]] for sample in samples if sample.turns} == {
        "x-1~1": ["x-0~1"],
        "x-1~2": ["x-0~2"],
        "x-1~3": ["x-0~3"],
    }


def test_a_turn_that_nobody_asks_is_named() -> None:
    first, second, third = talk("x", "abc")
    with pytest.raises(ValueError) as refused:
        link("own", [replace(first, question="z"), second, third])
    assert [line.split("; ")[1] for line in str(refused.value).splitlines()] == [
        "sample 'x-1' (cluster 'x') has turn 1 that none asks",
        "sample 'x-2' (cluster 'x') has turn 1 that none asks",
    ]
    with pytest.raises(ValueError, match=r"'x-2' \(cluster 'x'\) has turns 1, 2 that none asks"):
        link("own", [third])
    with pytest.raises(ValueError, match=r"cluster '' *\) has turn 1"):  # alone: pairs would count as independent
        link("own", talk("x", "ab", cluster=""))
    with pytest.raises(ValueError, match="turn 1"):
        link("own", [replace(first, context="another text"), second])
    assert link("reference", [third]) == {}


def test_what_a_cell_hears_is_the_beginning_of_its_answer_and_its_own_words() -> None:
    first, second, third = talk("x", "abc")
    heard = Heard(link("own", [first, second, third]))
    cells = ["p", "q", "r", "s"]
    for cell, *texts in (("p", " A", " B"), ("q", " no", " B"), ("r", " A", " B"), ("s", " A", "")):
        heard.note([said(cell, first, texts[0]), said(cell, second, texts[1])])
    assert heard.told(first, cells) == [(first, cells)]
    assert [(sample.turns, mine) for sample, mine in heard.told(second, cells)] == [
        ((("a", "so A"),), ["p", "r", "s"]),
        ((("a", "so no"),), ["q"]),
    ]
    told = heard.told(third, cells)
    assert [mine for _, mine in told] == [["p", "r"], ["q"], ["s"]]
    assert told[2][0] == replace(third, turns=(("a", "so A"), ("b", "so")))
    assert Heard({}).told(third, cells) == [(third, cells)]


def test_a_turn_without_an_answer_takes_the_later_ones_with_it() -> None:
    first, second, third = talk("x", "abc")
    heard = Heard(link("own", [first, second, third]))
    heard.note([said("p", first, " A"), said("p", second, None, "model"), said("q", first, None, "infrastructure")])
    assert not list(heard.failures(first, ["p", "q"])) and not list(heard.failures(second, ["p"]))
    answers = list(heard.failures(third, ["p", "q"]))
    for answer, (cell, turn, one, fault) in zip(
        answers, (("p", 2, second, "model"), ("q", 1, first, "infrastructure")), strict=True
    ):
        assert (answer.cell, answer.sample_id, answer.response, answer.fault) == (cell, third.id, None, fault)
        assert answer.error == f"turn {turn} of this conversation, sample {one.id}, has no answer in this cell"
    assert [answer.fault for answer in heard.failures(second, ["nobody"])] == ["infrastructure"]
    assert not heard.told(third, ["p", "q"])


def test_a_wave_holds_no_turn_beside_an_earlier_one() -> None:
    samples = [*talk("x", "ab"), *talk("y", "a"), *talk("z", "a")]
    before = link("own", samples)
    order = in_order(samples, before)
    assert [[order.index(one) for one in wave] for wave in waves(order, before, 2)] == [[0], [1, 2], [3]]
    assert [len(wave) for wave in waves(order, {}, 3)] == [3, 1]


def test_a_prompt_may_have_the_longest_answers_before_it() -> None:
    class Counting(Pieces):
        def new_tokens(self, sample: Sample) -> int:
            return sample.max_new_tokens

        def compressed_tokens(self, sample: Sample, compress: str) -> int:
            return self.prompt_tokens(sample)

    tokenizer, samples = Counting(), talk("x", "ab")
    before = link("own", samples)
    begun = replace(samples[1], turns=(("a", "so"),))
    assert most_tokens(samples[1], before, tokenizer) == tokenizer.prompt_tokens(begun) + 4 + 4
    assert most_tokens(samples[1], {}, tokenizer) == tokenizer.prompt_tokens(samples[1]) + 4
    assert most_tokens(samples[0], before, tokenizer) == tokenizer.prompt_tokens(samples[0]) + 4


# --- In a run ---

FEW = ("task=needle_turns", "task.lengths=[700]", "task.turns=3", "n=6")


@pytest.fixture
def planned(tiny: Path, tmp_path: Path) -> Any:
    """Plans a run on the tiny model, harsh enough that strategies say different things."""

    def make(*words: str, results: Path = tmp_path / "results") -> Plan:
        where = ["model=hf", f"model.path={tiny}", f"results_dir={results}", "engine.threads=1", "name=r"]
        overrides = ["strategy=window", "strategy.evict.keep=0.2", *FEW, *where, *words]
        return plan([job(*overrides)])

    return make


def work(made: Plan, ids: set[str] | None = None) -> None:
    """Answer what is missing in this process; of samples ``ids`` only, as if killed before the others."""
    for unit in made.units():
        for part, group in zip(unit["groups"], made.groups, strict=True):
            missing = made.missing(group)
            part["missing"] = {cell: sorted(some if ids is None else some & ids) for cell, some in missing.items()}
        worker.run(iter([unit]))


def records(made: Plan) -> dict[str, dict[str, Record]]:
    """By role and sample id."""
    (group,) = made.groups
    return {cell.role: made.store.cell(cell.address).read()[0] for cell in group.cells}


def test_each_strategy_is_told_what_it_has_said(planned: Any) -> None:
    own, reference = planned("history=own"), planned("history=reference")
    work(own)
    work(reference)
    (group,) = own.groups
    mine, theirs = records(own), records(reference)
    differ = set()
    tokenizer = own.facts.tokenizer
    for sample in group.samples:
        for answers in mine.values():
            record = answers[sample.id]
            assert record.state == "scored" and record.sample_hash == sample.hash  # of the sample as it was planned
            assert record.prompt_hash == tokenizer.prompt(_told(sample, group.samples, answers)).hash
        if not sample.turns:
            assert {a: _text(r, sample) for a, r in mine.items()} == {a: _text(r, sample) for a, r in theirs.items()}
        if mine["candidate"][sample.id].prompt_hash != mine["baseline"][sample.id].prompt_hash:
            differ.add(sample.meta["turn"])
        assert mine["noise"][sample.id].prompt_hash == mine["baseline"][sample.id].prompt_hash
    assert differ == {2, 3}  # else the histories were equal and nothing was tested
    stored = read_run(own.store, make_manifest(own, ["kvgate", "run"]))
    verdict, rows = judge(stored, own.gate), to_table(stored.groups)
    assert not any("different prompts" in reason for cell in verdict["cells"] for reason in cell["reasons"])
    assert {cell["mode"] for cell in verdict["cells"]} == {"prompt own history"} == set(rows["mode"])


def _told(sample: Sample, samples: list[Sample], answers: Mapping[str, Record]) -> Sample:
    """The sample after its conversation as the records have it, put together by turn."""
    talk = [one for one in samples if one.cluster == sample.cluster and one.meta["turn"] < sample.meta["turn"]]
    return replace(sample, turns=tuple((one.question, one.answer_prefix + _text(answers, one)) for one in talk))


def _text(answers: Mapping[str, Record], sample: Sample) -> str:
    response = answers[sample.id].response
    assert response is not None
    return response.text


def test_a_run_that_stops_between_turns_goes_on_with_what_was_said(planned: Any, tmp_path: Path) -> None:
    whole, parted = planned("history=own"), planned("history=own", results=tmp_path / "parted")
    work(whole)
    (group,) = parted.groups
    for turn in (1, 2):
        work(parted, {sample.id for sample in group.samples if sample.meta["turn"] == turn})
    work(parted)
    assert {role: len(mine) for role, mine in records(parted).items()} == dict.fromkeys(records(whole), 6)
    for role, mine in records(whole).items():
        for sample, record in mine.items():
            again = records(parted)[role][sample]
            assert (again.response, again.prompt_hash) == (record.response, record.prompt_hash)


def test_a_turn_that_failed_fails_the_later_ones_in_that_cell_alone_until_it_is_answered(planned: Any) -> None:
    made = planned("history=own")
    (group,) = made.groups
    first, second, third, *_ = group.samples
    work(made, {first.id})
    (candidate,) = [cell for cell in group.cells if cell.role == "candidate"]
    store = made.store.cell(candidate.address)
    for part in store.folder.glob("part-*"):
        part.unlink()
    store.append([replace(said(candidate.address, first, None, "infrastructure"), error="died")])
    work(made, {second.id, third.id})
    found = records(made)
    assert {found["baseline"][one.id].state for one in (second, third)} == {State.SCORED}
    for one in (second, third):
        record = found["candidate"][one.id]
        assert (record.state, record.fault, record.prompt_hash) == (State.FAILED, "infrastructure", "")
        assert f"turn 1 of this conversation, sample {first.id}," in record.error
    work(made)  # another try: none of these was final
    assert {record.state for record in records(made)["candidate"].values()} == {State.SCORED}


def test_an_address_changes_only_where_turns_are_told(planned: Any) -> None:
    def addresses(*words: str) -> dict[str, str]:
        (group,) = planned(*words).groups
        return {cell.role: cell.address for cell in group.cells}

    own, reference = addresses("history=own"), addresses()
    assert not set(own.values()) & set(reference.values())
    asks = [cell.ask["mode"] for cell in planned().groups[0].cells]
    assert all(set(mode) == {"compress", "prefill", "pass", "batch"} for mode in asks)  # as before there was a choice
    both = ["task=needle_single", "task.lengths=[420]"]
    jobs = [
        job("strategy=fp8", f"results_dir={planned().store.root}", f"history={h}", "n=2", *more)
        for more in (both, ["task=needle_turns", "task.lengths=[700]"])
        for h in ("own", "reference")
    ]
    groups = {(group.label, group.history): group for group in plan(jobs).groups}
    single = [groups["needle_single", history] for history in ("own", "reference")]
    assert [cell.address for cell in single[0].cells] == [cell.address for cell in single[1].cells]


def test_conversations_of_ones_own_are_rows_of_one_cluster(kvgate: Kvgate, tmp_path: Path) -> None:
    def row(turn: int) -> dict[str, Any]:
        asked = [text for at in range(turn) for text in (f"question {at}?", f"answer {at}")]
        said = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * turn, asked, strict=True)]
        messages = [*said, {"role": "user", "content": f"question {turn}?"}]
        return {
            "id": f"turn {turn}",
            "context": "A text. " * 40,
            "messages": messages,
            "answers": ["x"],
            "cluster": "one",
        }

    def run(*rows: dict[str, Any]) -> Any:
        path = tmp_path / "mine.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        words = ["strategy=fp8", "task=jsonl", f"task.path={path}", "history=own", "n=9", "gate.margin=0.3", "name=r"]
        where = ["model=hf", f"model.path={kvgate.model}", f"results_dir={kvgate.results}", "engine.threads=1"]
        return kvgate("run", *words, *where)

    missing = run(row(0), row(2))
    assert missing.code == 2 and "sample 'turn 2' (cluster 'one') has turn 2 that none asks" in missing.err
    asked = run(row(2), row(0), row(1))
    assert asked.code == 0, asked.err
    (cell,) = json.loads((kvgate.results / "runs" / "r" / "verdict.json").read_text())["cells"]
    assert cell["clusters"] == 1 and cell["samples"] == 3
    found = ResultStore(kvgate.results).cell(cell["address"]).read()[0].values()
    assert {record.state for record in found} == {State.SCORED}


@pytest.mark.parametrize(
    "words, says",
    [
        (["history=mine"], "history must be reference or own, got 'mine'"),
        (["history=own"], "history=own needs a task whose samples have earlier turns, got needle_single"),
        (["history=own", "task=needle_turns", "task.lengths=[800]", "n=1"], "earlier turns, got needle_turns"),
        (["history=own", "task=fidelity,needle_turns", "task.lengths=[800]"], "fidelity all are fed the baseline's"),
        (["history=own", "task=needle_turns", "task.lengths=[4096]", "n=4"], "leave room in the model's 4096 tokens"),
    ],
)
def test_what_cannot_be_told_is_refused(kvgate: Kvgate, words: list[str], says: str) -> None:
    refused = kvgate.run("-m", "strategy=fp8", *words)
    assert refused.code == 2 and says in refused.err and "Traceback" not in refused.err, refused


@pytest.mark.slow
def test_a_real_model_that_lost_the_facts_goes_on_from_what_it_made_up(smollm2: Path, tmp_path: Path) -> None:
    """The full cache hears the facts it found. A cache of a few tokens hears numbers that stand nowhere, and says others."""
    evicting = ["strategy=window", "strategy.evict.keep=0.1", "compress=context", "history=own"]
    few = ["task=needle_turns", "task.lengths=[640]", "n=8", f"results_dir={tmp_path}", "name=r", "engine.threads=1"]
    made = plan([job(*evicting, *few)])
    work(made)
    (group,) = made.groups
    found = records(made)
    scores = {role: sum(record.score or 0.0 for record in mine.values()) / 8 for role, mine in found.items()}
    assert scores["baseline"] >= 0.5 > scores["candidate"]
    last = [sample for sample in group.samples if sample.meta["turn"] == 4]
    for sample in last:
        told = {role: _told(sample, group.samples, found[role]) for role in ("baseline", "candidate")}
        assert told["baseline"] != told["candidate"]
        prompts = {role: made.facts.tokenizer.prompt(heard).hash for role, heard in told.items()}
        assert prompts == {role: found[role][sample.id].prompt_hash for role in prompts}
    verdict = judge(read_run(made.store, make_manifest(made, ["kvgate", "run"])), made.gate)
    (cell,) = verdict["cells"]
    assert (cell["mode"], cell["clusters"]) == ("context own history", 2) and cell["delta"] < 0
