"""How fast a report opens that holds very many flipped samples, beside one that holds none, in Debian's Chromium.

A made-up run of 10 strategies on 4 tasks, all of whose samples flipped. Opened: from the start of the navigation to the end of
the page's load event, as the browser tells; in sight: until it has painted text. Then the samples of one cell are asked for,
and then all of them: until the first stand on the page. Each is the median of `--repeats` fresh pages. Prints one JSON object.

    python benchmarks/report_page.py [--samples 20000] [--repeats 5] > benchmarks/results/report_page.json
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from playwright.sync_api import Browser, sync_playwright

from benchmarks.runs import record
from harness.report import html
from harness.report.page import build

STRATEGIES, TASKS = [f"strategy-{i}" for i in range(10)], [f"task-{i}" for i in range(4)]
WORDS = re.findall(
    r"\w+", "the cache holds keys and values of every token that a model has read so that it need not read it again"
)


def verdict() -> dict[str, Any]:
    """Every strategy on every task, without numbers: what is timed does not depend on them."""
    cells = [
        {"strategy": strategy, "task": task, "mode": "prompt", "decision": "NO-GO", "gating": True}
        for strategy in STRATEGIES
        for task in TASKS
    ]
    return {"name": "many", "strategies": [{"name": name, "decision": "NO-GO"} for name in STRATEGIES], "cells": cells}


def samples(number: int) -> pd.DataFrame:
    """So many samples that were right and no longer are, spread evenly over the cells, with texts of some 250 characters."""
    rng = random.Random(0)
    each = number // (len(STRATEGIES) * len(TASKS))
    rows = []
    for task in TASKS:
        for i in range(each):
            told = " ".join(rng.choices(WORDS, k=50))
            common = {
                "task": task,
                "mode": "prompt",
                "sample_id": f"{task}-{i}",
                "state": "scored",
                "baseline_score": 1.0,
                "baseline_state": "scored",
                "expected": str(rng.randrange(10**7)),
                "excerpt": " ".join(rng.choices(WORDS, k=60)),
                "prompt_tokens": 4000 + i,
                "length": 4096,
                "depth": i / max(each, 1),
            }
            rows.append({**common, "strategy": "full", "role": "baseline", "score": 1.0, "text": told})
            for strategy in STRATEGIES:
                said = " ".join(rng.choices(WORDS, k=50))
                rows.append({**common, "strategy": strategy, "role": "candidate", "score": 0.0, "text": said})
    return pd.DataFrame(rows)


def opened(browser: Browser, path: Path, asks: bool) -> dict[str, float]:
    """Seconds of one opening."""
    page = browser.new_page()
    page.goto(path.as_uri(), wait_until="load")
    facts = {"opened_s": page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000}
    painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    page.wait_for_function(painted)
    facts["in_sight_s"] = page.evaluate(painted) / 1000
    if asks:
        facts["one_cell_s"] = _until_shown(
            page,
            "form.querySelector('[name=task]').value = 'task-0';"
            "form.querySelector('[name=strategy]').value = 'strategy-0';",
        )
        facts["all_s"] = _until_shown(page, "form.reset();")
    page.close()
    return facts


def _until_shown(page: Any, choice: str) -> float:
    """Seconds from asking for samples until the first of them stand on the page."""
    script = f"""async () => {{
        const [form, rows] = ["filters", "rows"].map((id) => document.getElementById(id));
        rows.replaceChildren();
        {choice}
        const start = performance.now();
        const shown = new Promise((done) => new MutationObserver(done).observe(rows, {{ childList: true }}));
        form.requestSubmit();
        await shown;
        return performance.now() - start;
    }}"""
    return float(page.evaluate(script)) / 1000


def measure(browser: Browser, folder: Path, number: int, repeats: int) -> dict[str, Any]:
    path = folder / f"{number}.html"
    path.write_text(html.render(build(verdict(), samples(number)), ()), encoding="utf-8")
    times = [opened(browser, path, asks=number > 0) for _ in range(repeats)]
    middle = {name: round(median(one[name] for one in times), 3) for name in times[0]}
    return {"samples": number, "file_mib": round(path.stat().st_size / 2**20, 2), **middle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        rows = [measure(browser, Path(folder), number, asked.repeats) for number in (0, asked.samples)]
        facts = {"browser": f"Chromium {browser.version}", "repeats": asked.repeats, "pages": rows}
        browser.close()
    print(json.dumps(record("report_page", model=None, **facts), indent=1))


if __name__ == "__main__":
    main()
