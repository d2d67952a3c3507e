"""The skeleton of each command's configuration. With ``cli.py`` the only place that knows OmegaConf.

Values live in ``conf/``; what is typed here is what every run has. The parts (model, engine, strategy, task) are checked by the
constructors that their ``_target_`` names.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf


@dataclass
class SLOSchema:
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    share: float = 0.9


@dataclass
class PayoffSchema:
    throughput: float | None = None
    requests: float | None = None
    goodput: float | None = None
    rate: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    itl_p99: float | None = None
    e2e_p50: float | None = None
    peak: float | None = None
    capacity: float | None = None
    slo: SLOSchema = field(default_factory=SLOSchema)


@dataclass
class GateSchema:
    margin: float = MISSING
    margin_kind: str = MISSING
    alpha: float = MISSING
    looks: int = MISSING
    power: float = MISSING
    tasks: list[str] = field(default_factory=list)
    strict: bool = False
    early_stop: bool = False
    control: Any = MISSING
    payoff: PayoffSchema = field(default_factory=PayoffSchema)


@dataclass
class CalibrationSchema:
    text: str | None = None
    tokens: int = MISSING


@dataclass
class GenSchema:
    temperature: float = MISSING
    k: int = MISSING
    think_tokens: int = MISSING
    think_open: str = MISSING
    think_close: str = MISSING
    stop: list[str] = field(default_factory=list)


@dataclass
class RunSchema:
    model: Any = MISSING
    engine: Any = MISSING
    strategy: Any = MISSING
    task: Any = MISSING
    gate: GateSchema = field(default_factory=GateSchema)
    sweep: Any = None
    keep: Any = None
    compare: list[str] = field(default_factory=list)
    n: int = MISSING
    seed: int = MISSING
    compress: str = MISSING
    prefill: str = MISSING
    start: str = MISSING
    history: str = MISSING
    calibration: CalibrationSchema = field(default_factory=CalibrationSchema)
    gen: GenSchema = field(default_factory=GenSchema)
    scenario: Any = None
    executor: Any = MISSING
    name: str = MISSING
    results_dir: str = MISSING
    privacy: str = MISSING
    dry_run: bool = False


@dataclass
class BenchSchema:
    model: Any = MISSING
    engine: Any = MISSING
    strategy: Any = MISSING
    load: Any = MISSING
    gate: GateSchema = field(default_factory=GateSchema)
    hardware: Any = MISSING
    pairs: int = MISSING
    seed: int = MISSING
    calibration: CalibrationSchema = field(default_factory=CalibrationSchema)
    scenario: Any = None
    name: str = MISSING
    results_dir: str = MISSING
    dry_run: bool = False


@dataclass
class TraceSchema:
    path: str | None = None
    form: str = MISSING
    block: int | None = None
    policies: list[str] = field(default_factory=list)


@dataclass
class SimulatedSchema:
    requests: int = MISSING
    replicas: int = MISSING
    link_bytes_s: float | None = None
    chunks_tokens: list[int] = field(default_factory=list)


@dataclass
class PlanSchema:
    model: Any = MISSING
    strategy: Any = MISSING
    formats: Any = MISSING
    hardware: Any = MISSING
    scenario: Any = None
    context: int = MISSING
    output_tokens: int = MISSING
    requests_s: float = MISSING
    in_flight: int = MISSING
    hit_share: float | None = None
    kept_requests: int = MISSING
    devices: int = MISSING
    utilization: float = MISSING
    weight_bits: float | None = None
    kv_gib: float | None = None
    prefill_tokens_s: float | None = None
    sites: int = MISSING
    site_bytes_s: float = MISSING
    trace: TraceSchema = field(default_factory=TraceSchema)
    simulated: SimulatedSchema = field(default_factory=SimulatedSchema)
    slo: SLOSchema = field(default_factory=SLOSchema)
    show: list[str] = field(default_factory=list)
    format: str = MISSING
    results_dir: str = MISSING


@dataclass
class ReportGateSchema:
    """What may be asked differently of stored cells; None keeps what the run promised."""

    margin: float | None = None
    margin_kind: str | None = None
    tasks: list[str] | None = None
    strict: bool | None = None


@dataclass
class ReportSchema:
    run: Any = MISSING  # a name, or a list of them
    results_dir: str = MISSING
    gate: ReportGateSchema = field(default_factory=ReportGateSchema)
    compare: list[str] = field(default_factory=list)
    rescore: bool = False
    privacy: str | None = None
    by: str = MISSING
    format: str = MISSING


@dataclass
class WatchSchema:
    run: str = MISSING
    results_dir: str = MISSING
    every_s: float = MISSING
    once: bool = False


@dataclass
class DoctorSchema:
    format: str = MISSING


def register() -> None:
    """Make the skeletons known to Hydra; the primary config of each command names its own first."""
    store = ConfigStore.instance()
    store.store(name="base_run", node=RunSchema)
    store.store(name="base_bench", node=BenchSchema)
    store.store(name="base_plan", node=PlanSchema)
    store.store(name="base_report", node=ReportSchema)
    store.store(name="base_watch", node=WatchSchema)
    store.store(name="base_doctor", node=DoctorSchema)
    OmegaConf.register_new_resolver("scratch", _scratch, use_cache=True, replace=True)


def _scratch() -> str:
    """A folder for what Hydra writes before anything is checked; gone when the process ends."""
    folder = tempfile.mkdtemp(prefix="kvgate-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def plain(config: DictConfig) -> Mapping[str, Any]:
    """The composed configuration without Hydra's own part, resolved, as plain containers."""
    container = OmegaConf.to_container(OmegaConf.masked_copy(config, [k for k in config if k != "hydra"]), resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
