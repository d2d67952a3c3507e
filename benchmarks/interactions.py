"""Do the errors of eviction and number format add up? Every budget with every format, and each alone, with intervals.

Runs `kvgate run experiment=interactions` and the formats alone on the same samples (finished samples are kept in --results-dir,
so it can be stopped and started again) and prints one JSON object. From a record, --table prints the Markdown table of
docs/eviction.md and --plot draws its curves.

    python benchmarks/interactions.py [--results-dir results] [--samples 64] > benchmarks/results/interactions.json
    python benchmarks/interactions.py --table benchmarks/results/interactions.json
    python benchmarks/interactions.py --plot docs/interactions.png benchmarks/results/interactions.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.runs import kvgate, markdown, record
from harness.report.plots.theme import QUIET, paint

POLICIES = ("snapkv", "keydiff")
KEEPS = (0.9, 0.75, 0.5, 0.25)
FORMATS = ("", "fp8", "flexgen4", "kivi2")  # "" is full precision
COLOURS = ("#1b1f24", "#0072b2", "#e69f00", "#d55e00")
TASKS = {"needle_single": "needle", "code_lookup": "code"}
PLAIN = ("task=needle_single,code_lookup,fidelity", "task.lengths=[512]", "gate.margin=0.1")


def measured(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By strategy and task: scores with their intervals, or the KL divergence; and the share of bytes that is left."""
    n = f"n={options.samples}"
    both, _ = kvgate(options.results_dir, "interactions", "experiment=interactions", n)
    alone, _ = kvgate(options.results_dir, "formats_alone", "-m", f"strategy={','.join(FORMATS[1:])}", *PLAIN, n)
    rows: dict[str, dict[str, Any]] = {}
    for cell in [*both["cells"], *alone["cells"]]:
        row = rows.setdefault(cell["strategy"], {})
        if cell["task"] == "fidelity":
            row["kl_mean"] = cell["fidelity"]["kl_mean"] if cell["n"] else None
            memory = cell["memory"]
            row["share"] = memory["deploy_bytes_per_token"] / memory["deploy_full_bytes_per_token"]
        else:
            keys = ("decision", "n", "baseline", "score", "delta", "ci_low", "ci_high")
            row[TASKS[cell["task"]]] = {key: cell[key] for key in keys}
    return rows


def name(policy: str, keep: float, format: str) -> str:
    return f"{policy}@{keep}" + (f"+{format}" if format else "")


def together(rows: Mapping[str, Any], policy: str, keep: float, format: str) -> tuple[float, float] | None:
    """KL divergence of the two layers together, and the sum of that of each alone; None if one had nothing to do."""
    mine = rows[name(policy, keep, format)]["kl_mean"]
    return None if mine is None else (mine, rows[name(policy, keep, "")]["kl_mean"] + rows[format]["kl_mean"])


def table(rows: Mapping[str, Any]) -> str:
    head = ["kept", *(f"{task}, {format or 'exact'}" for task in ("needle", "code") for format in FORMATS)]
    head += [f"KL, {format}: together / sum" for format in FORMATS[1:]]
    body = [["all", *(_score(rows, format, task) for task in ("needle", "code") for format in FORMATS)]]
    body[0] += [f"{rows[format]['kl_mean']:.3f}" for format in FORMATS[1:]]
    for policy in POLICIES:
        for keep in KEEPS:
            cells = [f"{policy} {keep:g}"]
            cells += [
                _score(rows, name(policy, keep, format), task) for task in ("needle", "code") for format in FORMATS
            ]
            for format in FORMATS[1:]:
                sums = together(rows, policy, keep, format)
                cells.append("" if sums is None else f"{sums[0]:.3f} / {sums[1]:.3f}")
            body.append(cells)
    return markdown(head, body)


def _score(rows: Mapping[str, Any], strategy: str, task: str) -> str:
    if not strategy:
        return f"{next(iter(rows.values()))[task]['baseline']:.2f}"
    cell = rows[strategy][task]
    return "void" if cell["score"] is None else f"{cell['score']:.2f}"


def plot(rows: Mapping[str, Any]) -> bytes:
    """Difference to the full cache against the tokens kept, one curve a format, with the interval of each point."""

    def fill(figure: Figure) -> None:
        axes = figure.subplots(len(POLICIES), len(TASKS), sharex=True, sharey=True)
        for across, policy in zip(axes, POLICIES, strict=True):
            for panel, task in zip(across, TASKS.values(), strict=True):
                for shift, (format, colour) in enumerate(zip(FORMATS, COLOURS, strict=True)):
                    found = [(keep, rows[name(policy, keep, format)][task]) for keep in KEEPS]
                    found = [(keep, cell) for keep, cell in found if cell["score"] is not None]
                    if format:
                        found.insert(0, (1.0, rows[format][task]))
                    at = [keep + 0.012 * (shift - 1.5) for keep, _ in found]
                    middle = [cell["delta"] for _, cell in found]
                    reach = [
                        [cell["delta"] - cell["ci_low"] for _, cell in found],
                        [cell["ci_high"] - cell["delta"] for _, cell in found],
                    ]
                    label = format or "exact"
                    panel.errorbar(at, middle, reach, color=colour, marker="o", ms=4, lw=1.2, capsize=2, label=label)
                panel.axhline(0, color=QUIET, lw=0.8)
                panel.axhline(-0.1, color=QUIET, lw=0.8, ls=":")
                panel.set_title(f"{policy}, {task}")
                panel.grid(axis="y")
        for panel in axes[-1]:
            panel.set_xlabel("share of tokens kept")
        for panel in axes[:, 0]:
            panel.set_ylabel("score minus full cache")
        figure.tight_layout(rect=(0, 0, 1, 0.96))
        figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=len(FORMATS), frameon=False, loc="upper right")

    return paint(9.0, 6.4, fill)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results-dir", default="results", help="where the runs' samples are kept")
    parser.add_argument("--samples", type=int, default=64, help="samples a task")
    parser.add_argument("--table", action="store_true", help="print the table of RECORD and do nothing else")
    parser.add_argument("--plot", default=None, metavar="PNG", help="draw the curves of RECORD and do nothing else")
    parser.add_argument("record", nargs="?", metavar="RECORD", help="a record that was printed before")
    options = parser.parse_args()
    if bool(options.table or options.plot) != bool(options.record):
        parser.error("--table and --plot need a RECORD, and a RECORD needs one of them")
    if not options.record:
        print(json.dumps(record("interactions", samples=options.samples, strategies=measured(options)), indent=1))
        return
    rows = json.loads(Path(options.record).read_text(encoding="utf-8"))["strategies"]
    if options.table:
        print(table(rows))
    if options.plot:
        Path(options.plot).write_bytes(plot(rows))


if __name__ == "__main__":
    main()
