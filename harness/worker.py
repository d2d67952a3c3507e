"""Runs shards of one load in a process of its own: ``python -m harness.worker``, each a JSON line on standard input, {} the last.

Standard output carries one JSON event a line; records go straight into the store, sample by sample, so whatever happens to
this process, finished samples stay. It ends when its parent does.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from harness import samples as sample_files
from harness.calibration import text_of
from harness.early import Harm, Rule
from harness.engines.base import Answer, Ask, Engine, Row, Session
from harness.history import Heard, in_order, link, waves
from harness.make import make
from harness.pace import paced
from harness.places import place
from harness.stacks import make_stack
from harness.store import ResultStore
from harness.types import BadInput, Record, Sample, State, Unsupported
from strategies.stack import Stack
from tasks.base import Task

SHARE = 0.05  # of a worker's time that reading what others have answered may take
PATIENCE = 3  # samples in a row that may fail in every row before the unit is given up


def emit(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def run(shards: Iterator[Mapping[str, Any]]) -> None:
    """Open the engine once and answer every sample that the cells of each shard still miss."""
    unit = next(shards)
    store = ResultStore(unit["results_dir"])
    engine: Engine = make(unit["engine"], "engine")
    _check_device(engine, unit["device"])
    one = next(row for group in unit["groups"] for batch in group["batches"] for row in batch)
    with engine.open(unit["model"], _stack(one, engine)) as session:
        facts = dict(session.facts())
        emit("opened", facts=facts)
        for shard in chain([unit], shards):
            for group in shard["groups"]:
                _run_group(group, shard, engine, session, store, facts)
            emit("done")


def _check_device(engine: Engine, planned: str | None) -> None:
    """Answers go into cells that name the device which the run was planned on: another's are not mixed in. Raises BadInput."""
    here = engine.spec().get("device")
    if here != planned:
        raise BadInput(
            f"engine: the run was planned on {planned}, and this worker has {here}: start it where the device is its workers'"
        )


def _run_group(
    group: Mapping[str, Any],
    unit: Mapping[str, Any],
    engine: Engine,
    session: Session,
    store: ResultStore,
    facts: Mapping[str, Any],
) -> None:
    task = make(group["task"], "task")
    batches = [
        [Row(row["cell"], fitted(_stack(row, engine), unit["calibration"], session)) for row in batch]
        for batch in group["batches"]
    ]
    cells = list(dict.fromkeys(row.cell for batch in batches for row in batch))
    for cell in cells:
        store.cell(cell).note_loaded(facts)
    session.forget()
    samples = sample_files.load(place(group["samples_file"]), group["n"])
    missing = {cell: set(ids) for cell, ids in group["missing"].items()}
    waiting = {sample.id: [cell for cell in cells if sample.id in missing[cell]] for sample in samples}
    heard = _heard(group["history"], samples, cells, store)
    asked = [sample for sample in in_order(samples, heard.before) if waiting[sample.id]]
    mode = {key: group[key] for key in ("compress", "prefill", "start", "seed")}
    left: dict[str, set[str]] = {}
    harm = _harm(group, samples, store)
    catch_up = paced(lambda: harm and harm.learn(store, but=missing), share=SHARE)
    lost = 0  # samples in a row

    def keep(sample: Sample, answer: Answer) -> None:
        record = judged(task, sample, answer)
        store.cell(answer.cell).append([record])
        heard.note([record])
        if harm:
            harm.note([record])
        left[sample.id].discard(answer.cell)
        if not left[sample.id]:
            emit("answered", group=group["id"], sample=sample.id)

    size = session.together // len(cells) if harm else session.together  # rows that stop do so between two waves
    for wave in waves(asked, heard.before, 1 if unit.get("careful") else max(1, size)):
        if harm:
            catch_up()
            _stop(harm, group)
            for sample in wave:
                waiting[sample.id] = harm.asks(waiting[sample.id])
        for sample in wave:
            left[sample.id] = set(waiting[sample.id])
            if not left[sample.id]:
                emit("answered", group=group["id"], sample=sample.id)  # by nobody: it need not be
                continue
            emit("sample", group=group["id"], sample=sample.id, cells=sorted(waiting[sample.id]))
            for answer in heard.failures(sample, waiting[sample.id]):
                keep(sample, answer)
        answers: dict[str, list[Answer]] = {sample.id: [] for sample in wave}
        for told in _tellings(wave, waiting, heard):
            asks = [Ask(one, _wanted(batches, mine)) for _, one, mine in told.values()]
            for answer in session.run(asks, **mode):
                emit("heard", group=group["id"], sample=answer.sample_id)
                answers[answer.sample_id].append(answer)
                sample, _, mine = told[answer.sample_id]
                if answer.cell in mine:  # else the baseline's, to a history that is not its own, or answered before
                    keep(sample, answer)
        for sample in wave:
            if given := answers[sample.id]:
                lost = lost + 1 if all(answer.fault == "infrastructure" for answer in given) else 0
            if lost == PATIENCE:
                raise BadInput(
                    f"engine: {PATIENCE} samples in a row failed in every row, the last with {given[0].error}"
                )


def _harm(group: Mapping[str, Any], samples: Sequence[Sample], store: ResultStore) -> Harm | None:
    """What is known of the harm that candidates do, where that may stop them."""
    if not group["early_stop"]:
        return None
    harm = Harm(Rule.from_json(group["early_stop"]), samples)
    harm.learn(store)
    return harm


def _stop(harm: Harm, group: Mapping[str, Any]) -> None:
    """Look for candidates that need not be asked any more, and tell of each that was found."""
    names = {row["cell"]: row["strategy"] for batch in group["batches"] for row in batch}
    for cell, units in harm.look().items():
        if cell in names:
            emit("stopped", text=f"{group['id']}: {names[cell]} is stopped, harm is shown after {units} units")


def _heard(history: str, samples: Sequence[Sample], cells: Sequence[str], store: ResultStore) -> Heard:
    """What the cells have answered before this worker began, as far as later turns are told it."""
    heard = Heard(link(history, samples))
    hashes = {one.id: one.hash for earlier in heard.before.values() for one in earlier}
    for cell in cells if hashes else ():
        heard.note(store.cell(cell).read(hashes)[0].values())
    return heard


def _tellings(
    wave: Sequence[Sample], waiting: Mapping[str, Sequence[str]], heard: Heard
) -> Iterator[dict[str, tuple[Sample, Sample, list[str]]]]:
    """By sample id the sample, as it is told, and the cells that are told so: one history of each sample at a time."""
    histories = [(sample, iter(heard.told(sample, waiting[sample.id]))) for sample in wave]
    while told := {sample.id: (sample, *history) for sample, mine in histories for history in islice(mine, 1)}:
        yield told


def _stack(row: Mapping[str, Any], engine: Engine) -> Stack:
    return engine.resolve(make_stack(row["strategy"], row["stack"]))


def fitted(stack: Stack, calibration: Mapping[str, Any], session: Session) -> Stack:
    """The strategy, with what its layers learn from the calibration text."""
    return session.fit(stack, text_of(calibration["text"]), calibration["tokens"]) if stack.calibrates else stack


def _wanted(batches: Sequence[Sequence[Row]], cells: Sequence[str]) -> list[list[Row]]:
    """The rows of ``cells``. The first row leads the first batch even if its own answer is there already, or is another's."""
    leader = batches[0][0]
    rows = [[row for row in batch if row.cell in cells] for batch in batches]
    rows[0] = [leader, *(row for row in rows[0] if row is not leader)]
    return rows


def judged(task: Task, sample: Sample, answer: Answer) -> Record:
    """An engine's answer and the task's judgement of it, as one record."""
    common: dict[str, Any] = {
        "cell": answer.cell,
        "sample_id": sample.id,
        "sample_hash": sample.hash,
        "prompt_hash": answer.prompt_hash,
        "response": answer.response,
        "evidence": answer.evidence,
        "memory": answer.memory,
        "seconds": answer.seconds,
    }
    if answer.response is None:
        return Record(**common, state=State.FAILED, error=answer.error, fault=answer.fault)
    try:
        score = task.score(sample, answer.response)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadInput(f"task {task.name}: its scorer failed on the answer to sample {sample.id}: {reason}") from error
    return Record(**common, state=score.state, score=score.value, answer=score.answer, parts=score.parts)


def _told() -> Iterator[dict[str, Any]]:
    """What the parent asks for, until it asks for nothing more. When standard input closes the parent is gone: exit at once."""
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(3)

    threading.Thread(target=listen, daemon=True).start()
    while shard := json.loads(lines.get()):
        yield shard


def carry_out(work: Callable[[], None]) -> None:
    """Do the work of this process; what is refused is told its parent, and ends it."""
    try:
        work()
    except (BadInput, Unsupported) as error:
        emit("refused", problems=getattr(error, "problems", [str(error)]))
        sys.exit(2)
    except KeyboardInterrupt:  # the parent was told too, and says what it means
        sys.exit(130)


def main() -> None:
    carry_out(lambda: run(_told()))


if __name__ == "__main__":
    main()
