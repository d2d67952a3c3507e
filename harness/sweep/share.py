"""Shards that the jobs of a cluster share: each job takes one that nobody has, then the next, so that it opens a model once.

Who has a shard stands in the store, in a file that one job alone can make. A job that is run again, because its node was lost or
its time was up, goes on with what it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from harness.places import Place, create, place, write_atomic
from harness.store import told
from harness.sweep.executor import Shard
from harness.sweep.progress import Progress
from harness.sweep.watch import Seat, outcome, watch

SHARDS = "shards"  # the file that holds all of them


def lay_out(shards: Sequence[Shard]) -> str:
    """Write what there is to do where all jobs find it. Returns the folder. Raises BadInput if it cannot be written."""
    folder = place(shards[0]["job_dir"])
    with told(folder):
        write_atomic(folder / SHARDS, json.dumps(shards))
    return str(folder)


def work(folder: str, job: int, jobs: int) -> None:
    """All that job number ``job`` of ``jobs`` does, with events as its output. A load that it cannot open it leaves to others."""
    shards = json.loads((place(folder) / SHARDS).read_text(encoding="utf-8"))
    first = len(shards) * job // jobs  # jobs begin apart from each other
    waiting = shards[first:] + shards[:first]
    refused = set[str]()
    with Seat() as seat:
        for shard in _taken(waiting, job, seat, refused):
            if watch(shard, seat, _say) and shard["load"] not in seat.opened:
                refused.add(shard["load"])


def _taken(waiting: list[Shard], job: int, seat: Seat, refused: set[str]) -> Iterator[Shard]:
    """Shards that are this job's, those of the load that is open before others, until there is none."""
    while left := [shard for shard in waiting if shard["load"] not in refused]:
        shard = next((shard for shard in left if shard["load"] == seat.load), left[0])
        waiting.remove(shard)
        if _take(shard, job):
            yield shard


def _take(shard: Shard, job: int) -> bool:
    """Whether the shard is this job's to run: nobody has it, or it was this job's before the job was ended, and is not done."""
    return create(_holder_file(shard), str(job)) or (holder(shard) == job and not _is_done(shard))


def _is_done(shard: Shard) -> bool:
    """Something of a worker's that ends with its job may have seemed a failure: what was given up is tried again."""
    came = outcome(shard)
    return came is not None and not came["problems"]


def holder(shard: Shard) -> int | None:
    """The job that has taken a shard."""
    try:
        return int(_holder_file(shard).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _holder_file(shard: Shard) -> Place:
    return place(shard["job_dir"]) / f"{shard['number']}.taken"


def _say(event: Mapping[str, object]) -> None:
    print(event.get("text") or json.dumps(event), flush=True)


def lost(progress: Progress, died: Mapping[int, str]) -> dict[int, str]:
    """When all jobs are gone: what none of them has ended, by number, and why: ``died`` tells it of some jobs."""
    progress.find_ended()
    found = {}
    for shard in list(progress.open.values()):
        progress.ended(shard)
        job = holder(shard)
        if job is None:
            found[shard["number"]] = "no job could take it: " + ("; ".join(dict.fromkeys(died.values())) or "see above")
        else:
            found[shard["number"]] = died.get(job, "its job ended without a word")
    return found
