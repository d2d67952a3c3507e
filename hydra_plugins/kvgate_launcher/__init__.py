"""The launcher that makes a grid one job, and its sweeper: every point is composed once, and all are handed over together.

Hydra accepts both from a ``hydra_plugins`` package only; everything of substance is in ``harness``.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class KvgateLauncher(Launcher):
    """Runs all jobs of a sweep as one plan: one model load, one prefill a sample, one comparison."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from harness import cli

        composed = []
        for index, overrides in enumerate(job_overrides, start=initial_job_idx):
            config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(config):
                config.hydra.job.id = str(index)
                config.hydra.job.num = index
            composed.append((config, list(overrides)))
        cli.run_jobs(composed, self.config.hydra.job.config_name)
        return [JobReturn(overrides=list(words), status=JobStatus.COMPLETED) for words in job_overrides]


class KvgateSweeper(BasicSweeper):
    """Hydra's own sweeper, which composes every point to see that it can be and throws it away: our launcher does so anyway,
    before anything runs."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        pass


LAUNCHER = {"_target_": "hydra_plugins.kvgate_launcher.KvgateLauncher"}
SWEEPER = {"_target_": "hydra_plugins.kvgate_launcher.KvgateSweeper", "max_batch_size": None, "params": None}
ConfigStore.instance().store(group="hydra/launcher", name="kvgate", node=LAUNCHER, provider="kvgate")
ConfigStore.instance().store(group="hydra/sweeper", name="kvgate", node=SWEEPER, provider="kvgate")
