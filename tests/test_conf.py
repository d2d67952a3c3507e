"""Every option of every config group composes into a run and builds what it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from harness import difficulty, schema
from harness.bench.loads.points import points_of
from harness.engines.base import Engine
from harness.engines.hf.engine import HFEngine
from harness.make import make
from harness.plan import Job
from harness.sizing.hardware import hardware_of
from harness.stacks import make_stack
from harness.sweep.kinds import Sweep
from harness.types import BadInput
from strategies.base import KVShape, Layer
from strategies.evict.hybrid import Hybrid
from strategies.evict.snapkv import SnapKV
from strategies.evict.two_phase import TwoPhase
from strategies.quant.fp8 import FP8
from tasks.base import Task

CONF = Path(__file__).resolve().parents[1] / "conf"
SHAPE = KVShape(layers=30, kv_heads=3, query_heads=9, head_dim=64, element_bytes=2)
ASKS = {
    "disk": "path",
    "handoff": "path",
    "s3": "bucket",
    "tiered": "tiers.1.path",
}  # what only the user knows, of offload's options
OPTIONS = sorted((f.parent.relative_to(CONF).as_posix(), f.stem) for f in CONF.glob("*/**/*.yaml"))


def composed(primary: str, *overrides: str) -> Any:
    schema.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return schema.plain(compose(primary, list(overrides)))


def job(*overrides: str) -> Job:
    """What the planner is given of ``kvgate run`` with these words."""
    (plain,) = difficulty.plain([Job(composed("run", *overrides), overrides)])
    return plain


@pytest.mark.parametrize("group, option", OPTIONS, ids=lambda x: str(x))
def test_an_option_composes_and_builds(group: str, option: str) -> None:
    if group in ("hardware", "hardware/tiers"):
        built = hardware_of(composed("plan", f"{group}={option}")["hardware"])
        assert built.name == (option if group == "hardware" else "h100")
        return
    if group == "load":
        config = composed("bench", f"load={option}")["load"]
        if option == "links":
            assert make(config, "load").name == option
            return
        loads = [point.load for point in points_of(config)]
        asked = ["load.path must be a trace, a JSONL file, got null"] if option == "trace" else []
        assert all(load.name == option and load.problems(8192) == asked for load in loads)
        return
    if group == "experiment":
        config = composed("run", f"experiment={option}")
        assert config["gate"]["margin"] > 0
        return
    path = ["model.path=x"] if (group, option) == ("model", "hf") else []
    config = composed("run", f"{group}={option}", *path)
    if group == "strategy" or group.startswith("strategy/"):
        stack = HFEngine().resolve(make_stack("s", config["strategy"]))
        asked = [f"strategy.offload.{ASKS[option]} must"] if group == "strategy/offload" and option in ASKS else []
        assert [problem[: problem.index(" must") + 5] for problem in stack.problems(SHAPE)] == asked
        if group == "strategy":
            assert config["strategy"]["name"] == option
            assert bool(stack.layers()) == (option != "full")
        else:
            slot = group.split("/")[1]
            assert isinstance(getattr(stack, slot), Layer) == (option != "none")
    elif group == "task":
        task = make(job(f"task={option}").config["task"], "task")
        assert isinstance(task, Task) and task.name == option
    elif group == "sweep":
        assert config["gate"]["early_stop"] == (option != "none")
        assert isinstance(make(config["sweep"], "sweep"), Sweep)
    elif group == "engine":
        assert isinstance(make(config["engine"], "engine"), Engine)
    elif group == "executor":
        assert make(config["executor"], "executor").name == option


@pytest.mark.parametrize("command", ["run", "bench", "plan", "report", "watch", "doctor"])
def test_a_primary_config_composes(command: str) -> None:
    assert composed(command, *(["run=x"] if command in ("report", "watch") else []))


def test_a_layer_made_from_yaml_is_the_layer_made_in_code() -> None:
    """Also as the key of a dictionary: a YAML list is a tuple."""
    made = make({"_target_": "strategies.quant.fp8.FP8", "skip": [0, -1]}, "strategy.quant")
    assert {made: 1}[FP8(skip=(0, -1))]


def test_an_option_may_hold_layers() -> None:
    """One or a list; what is wrong inside is named by its place."""
    snapkv = {"_target_": "strategies.evict.snapkv.SnapKV", "window": 8}
    node = {"_target_": "strategies.evict.hybrid.Hybrid", "keep": 0.5, "parts": [snapkv], "weights": [1]}
    assert {make(node, "strategy.evict"): 1}[Hybrid(keep=0.5, parts=(SnapKV(window=8),), weights=(1.0,))]
    both = {"_target_": "strategies.evict.two_phase.TwoPhase", "prefill": snapkv, "decode": None}
    assert make(both, "strategy.evict") == TwoPhase(prefill=SnapKV(window=8))
    with pytest.raises(BadInput, match=r"strategy\.evict\.parts\.0\.window: .*integer"):
        make({**node, "parts": [{**snapkv, "window": "wide"}]}, "strategy.evict")
    with pytest.raises(BadInput, match=r"strategy\.evict\.parts\.0: .* cannot be built: .*windows"):
        make({**node, "parts": [{**snapkv, "windows": 8}]}, "strategy.evict")
    with pytest.raises(BadInput, match=r"strategy\.evict\.prefill"):
        make({**both, "prefill": {"_target_": "strategies.quant.fp8.FP8"}}, "strategy.evict")


def test_the_constructor_s_complaint_names_field_and_class() -> None:
    with pytest.raises(BadInput, match=r"strategy.quant: strategies.quant.fp8.FP8 cannot be built: .*scales"):
        make({"_target_": "strategies.quant.fp8.FP8", "scales": 1}, "strategy.quant")
    with pytest.raises(BadInput, match="must name a class"):
        make({"keep": 1}, "strategy.evict")
    with pytest.raises(BadInput, match=r"strategy\.evict must hold a layer of that slot"):
        make_stack("s", {"evict": {"_target_": "strategies.quant.fp8.FP8"}})
    with pytest.raises(BadInput, match=r"strategy\.evicted must be one of the slots"):
        make_stack("s", {"evicted": {"_target_": "strategies.quant.fp8.FP8"}})
