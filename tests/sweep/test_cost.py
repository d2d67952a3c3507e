"""What a run tells of its work beforehand, and of what it did not have to do afterwards."""

from __future__ import annotations

import json
import re

from tests.cli import Kvgate

REUSED = "Reused, as they were finished before this run began: needle_single: full, fp8, full (alone), control."


def test_what_is_stored_is_told_before_and_after(kvgate: Kvgate) -> None:
    told = kvgate.run("strategy=fp8", "gate.margin=0.3", "dry_run=true").out
    assert "4 cells, 0 of them reused" in told and "executor local: 1 shard(s) of 3 sample(s), 1 at once" in told
    assert "time: not known, for the store has no record of llama" in told and "memory: not known yet" in told
    assert re.search(r"a margin of 0\.3 needs n = \d+ at 0%, \d+ at 1%, \d+ at 2%, \d+ at 5%", told)

    first = kvgate.run("strategy=fp8", "name=first")
    assert first.code == 0 and "Reused" not in first.out
    grid = ("-m", "strategy=fp8,int8", "name=second")
    told = kvgate.run(*grid, "dry_run=true", "n=30", "executor.workers=2", "executor.shard=9").out
    assert "5 cells, 0 of them reused" in told and "executor local: 4 shard(s) of 3 to 9 sample(s), 2 at once" in told
    assert re.search(r"time: about \d+ s for \d+ s of work", told) and re.search(r"held up to \d\.\d GiB", told)
    assert "5 cells, 4 of them reused" in kvgate.run(*grid, "dry_run=true").out

    second = kvgate.run(*grid)
    page = (kvgate.results / "runs" / "second" / "report.html").read_text()
    assert second.code == 0 and REUSED in page and REUSED in " ".join(second.out.split())
    for again in (kvgate.run(*grid), kvgate("report", "second", f"results_dir={kvgate.results}")):
        assert again.code == 0 and REUSED in " ".join(again.out.split())  # what it computed itself is not reused
    reused = json.loads((kvgate.results / "runs" / "second" / "verdict.json").read_text())["reused"]
    assert {cell["strategy"] for cell in reused} == {"full", "fp8", "control"}
    assert "executor local: 0 shard(s), 0 at once\ntime: about 0 s" in kvgate.run(*grid, "dry_run=true").out


def test_hydra_s_own_word_for_it_chooses_the_executor(kvgate: Kvgate) -> None:
    for words in (("hydra/launcher=kvgate", "hydra.launcher.workers=3"), ("executor=local", "executor.workers=3")):
        said = kvgate.run(*words, "strategy=fp8", "dry_run=true", "executor.shard=1")
        assert said.code == 0 and "executor local: 3 shard(s) of 1 sample(s), 3 at once" in said.out
    said = kvgate.run("-m", "hydra/launcher=basic", "strategy=fp8", "dry_run=true")
    assert said.code == 2 and "executor/basic" in said.err
    assert kvgate.run("-m", "strategy=fp8", "executor.workers=1,2", "dry_run=true").err.startswith(
        "kvgate run: executor: one run"
    )
