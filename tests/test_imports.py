"""Who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# room: modules (by prefix) that nothing in it may import
BANNED = {
    "harness/types.py": ["harness", "strategies", "tasks", "torch", "numpy", "pandas", "hydra", "omegaconf"],
    "strategies": ["harness.plan", "harness.engines", "harness.store", "tasks", "hydra", "omegaconf", "transformers"],
    "tasks": ["torch", "transformers", "strategies", "hydra", "omegaconf", "harness.engines", "harness.plan"],
    "harness/engines": [
        "strategies.evict",
        "strategies.quant",
        "tasks.retrieval",
        "tasks.code",
        "tasks.reasoning",
        "hydra",
    ],
    "harness/engines/base.py": ["torch", "transformers"],
    "harness/stats.py": ["torch", "transformers", "harness.engines", "strategies", "tasks"],
    "harness/parts.py": ["torch", "transformers", "harness.engines", "strategies", "tasks"],
    "harness/pairs.py": ["torch", "transformers", "harness.engines", "strategies", "tasks"],
    "harness/early.py": ["torch", "transformers", "harness.engines", "strategies", "tasks"],
    "harness/live.py": ["torch", "transformers", "harness.engines", "strategies"],
    "harness/verdict.py": ["torch", "transformers", "harness.engines", "strategies", "tasks"],
    "harness/compare.py": ["torch", "transformers", "harness.engines", "strategies", "tasks"],
    "harness/payoff.py": ["torch", "transformers", "harness.engines", "strategies", "tasks"],
    "harness/bench/metrics.py": ["torch", "transformers", "harness.engines", "strategies", "tasks", "pandas"],
    "harness/bench/roofline.py": ["torch", "transformers", "harness.engines", "tasks", "pandas"],
    "harness/bench/judge.py": ["torch", "transformers", "harness.engines", "strategies"],
    "harness/bench/facts.py": ["torch", "transformers", "harness.engines", "strategies"],
    "harness/bench/notes.py": ["torch", "transformers", "harness.engines", "strategies"],
    "harness/bench/quality.py": ["torch", "transformers", "harness.engines", "strategies"],
    "harness/sizing": ["torch", "transformers", "vllm", "harness.engines", "strategies", "tasks", "hydra", "omegaconf"],
    "harness/between": ["torch", "transformers", "harness.engines", "strategies", "tasks", "hydra", "omegaconf"],
    "harness/judge.py": ["torch", "transformers", "harness.engines", "strategies"],
    "harness/report": ["torch", "transformers", "harness.engines", "strategies", "tasks", "hydra", "omegaconf"],
    "harness/plan.py": ["torch", "transformers", "hydra", "omegaconf", "strategies.evict", "strategies.quant"],
    "harness/sweep": ["torch", "transformers", "hydra", "omegaconf", "strategies.evict", "strategies.quant"],
    "harness/worker.py": ["torch", "transformers", "hydra", "omegaconf", "strategies.evict", "strategies.quant"],
}

# files that may import what their room may not
ALLOWED = {
    "harness/sizing/command.py": ["harness.engines"],  # asks for the model's shape when it runs
    "harness/sizing/paging.py": ["strategies"],  # the paging layer's own allocator, which needs no torch
    "harness/sizing/stacks.py": ["harness.engines", "strategies"],  # the layers' own byte formulas
    "harness/sizing/traces.py": ["strategies"],  # and its hashes of blocks
    "strategies/quant/hf_cache.py": ["transformers"],  # its method is the library's own class, imported when it runs
}


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("room", BANNED)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    where = ROOT / room
    files = [where] if where.is_file() else sorted(where.rglob("*.py"))
    assert files
    for file in files:
        for name in imported(file):
            for banned in BANNED[room]:
                allowed = room == "harness/types.py" and not name.startswith(banned)
                allowed |= banned in ALLOWED.get(file.relative_to(ROOT).as_posix(), [])
                within = name == banned or name.startswith(banned + ".")
                assert allowed or not within, f"{file.relative_to(ROOT)} imports {name}"


def test_a_plan_s_formulas_need_no_torch() -> None:
    """All of harness.sizing, simulators too, but the command and what counts the layers' bytes for it."""
    names = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in ROOT.glob("harness/sizing/**/*.py")
    ]
    pure = [name for name in names if name not in ("harness.sizing.command", "harness.sizing.stacks")]
    code = f"import sys, {', '.join(pure)}; print([m for m in ('torch', 'transformers', 'strategies.base') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert len(pure) > 10 and done.stdout.strip() == "[]"


def test_only_the_command_line_knows_omegaconf() -> None:
    knowing = {f.relative_to(ROOT).as_posix() for f in ROOT.glob("harness/**/*.py") if "omegaconf" in imported(f)}
    assert knowing == {"harness/cli.py", "harness/schema.py"}


def test_a_report_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; import harness.cli, harness.commands, harness.judge, harness.manifest, harness.report, tasks.fidelity;"
        "import harness.bench.judge, harness.report.bench;"
        "print([m for m in ('torch', 'transformers', 'strategies') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
