"""The documents: links lead somewhere, and the figures of docs/claims.md are those of the records that they cite."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md"])
CLAIMS = (ROOT / "docs" / "claims.md").read_text()


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


def test_every_document_is_in_the_readme() -> None:
    linked = set(re.findall(r"\(docs/([\w]+\.md)", (ROOT / "README.md").read_text()))
    assert {page.name for page in ROOT.glob("docs/*.md")} <= linked


@cache
def record(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def formats(name: str) -> Any:
    return record("formats")["formats"][name]


def needle(name: str, length: str = "4096") -> float:
    return float(formats(name)["needle_by_length"][length])


def kl(name: str) -> float:
    return float(formats(name)["exact"]["kl_mean"])


def evicted(name: str, task: str, mode: str = "prompt") -> float:
    found = record("eviction")["strategies"][name][mode][task]
    return float(found["kl_mean"] if task == "fidelity" else found["score"])


def other(strategy: str, mode: str) -> float:
    cells = record("other_question")["cells"]
    return float(next(cell["score"] for cell in cells if (cell["strategy"], cell["mode"]) == (strategy, mode)))


def pays_below(name: str) -> float:
    """GB/s below which coding before moving pays: bytes saved out and back over seconds of coding and decoding."""
    model = record("offload")["models"]["8B, GQA"]["formats"]
    saved, seconds = model["exact"]["deploy_bytes"] - model[name]["deploy_bytes"], model[name]["seconds"]
    return float(2 * saved / (seconds["code"]["median"] + seconds["decode"]["median"]) / 1e9)


FIGURES = {
    "FP8 loses": [
        (3, formats("fp8")["needle"]["score"]),
        (3, formats("fp8")["code"]["score"]),
        (4, kl("fp8")),
        (1, -100 * formats("fp8")["needle"]["ci_low"]),
    ],
    "FP8 and INT8 differ": [
        (3, record("fp8_int8")["comparisons"][0][key]) for key in ("a_score", "b_score", "ci_high")
    ],
    "A scale for each": [(4, kl("fp8")), (4, kl("fp8 tensor")), (4, kl("int8"))],
    "2 bits keep": [
        *((3, needle(name)) for name in ("full", "kivi2", "kivi4")),
        (3, formats("kivi2")["code"]["baseline"]),
        *((3, formats(name)["code"]["score"]) for name in ("kivi2", "kivi4")),
    ],
    "About 3.5 bits": [
        *((3, kl(f"turboquant {name}")) for name in ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")),
        (3, needle("turboquant k3v4_nc")),
    ],
    "4/6 scales": [(3, kl("nvfp4")), (3, kl("nvfp4 4/6"))],
    "NVFP4 loses": [(3, needle("nvfp4")), (3, needle("full")), (3, kl("nvfp4"))],
    "A low-rank": [(3, kl("lowrank 192")), (3, formats("lowrank 192")["code"]["score"])],
    "Random eviction": [
        (2, evicted("random 0.5", "needle")),
        (2, evicted("keydiff 0.5", "needle")),
        *(
            (3, evicted(f"{name} 0.5", "fidelity"))
            for name in ("random", "window", "knorm", "snapkv", "pyramidkv", "adakv")
        ),
    ],
    "A fifth": [(2, evicted("h2o 0.25", "needle")), (2, evicted("h2o 0.25", "code"))],
    "Pyramids": [
        *((2, evicted(f"{name} 0.5", "needle")) for name in ("snapkv", "pyramidkv", "adakv")),
        *((3, evicted(f"{name} 0.5", "fidelity")) for name in ("snapkv", "pyramidkv", "adakv")),
    ],
    "Expected Attention": [
        *((2, evicted(f"{name} 0.5", "needle", "context")) for name in ("expected_attention", "keydiff")),
        *((3, evicted(f"{name} 0.5", "fidelity", "context")) for name in ("expected_attention", "keydiff")),
    ],
    "KVzip makes": [
        (2, evicted("kvzip 0.25", "needle", "context")),
        (3, evicted("kvzip 0.25", "fidelity", "context")),
    ],
    "KVzip's second": [(1, 100 * record("eviction")["cost"]["kvzip"])],
    "What was compressed": [(2, other(name, mode)) for name in ("oracle", "delayed") for mode in ("prompt", "other")],
    "Compressing before": [(2, pays_below("flexgen4")), (2, pays_below("int8"))],
    "Paging wastes": [
        (2, 100 * record("paging")["lengths"]["made up"]["rows"]["paged 16"]["waste"]),
        (1, 100 * record("paging")["lengths"]["made up"]["rows"]["static"]["waste"]),
    ],
    "Two engines": [
        (0, record("agreement")["pairs"]["vllm full | reference full"]["equal"]),
        (0, record("agreement")["pairs"]["vllm fp8 | reference fp8"]["equal"]),
    ],
}
ROWS = [row for row in CLAIMS.splitlines() if "../benchmarks/results/" in row and row.startswith("|")]


def test_every_claim_that_cites_a_record_is_checked() -> None:
    assert len(ROWS) == len(FIGURES) and all(row.startswith(f"| {key}") for row, key in zip(ROWS, FIGURES, strict=True))


@pytest.mark.parametrize("claim", FIGURES)
def test_figures_of_a_claim_are_those_of_its_record(claim: str) -> None:
    (row,) = [row for row in ROWS if row.startswith(f"| {claim}")]
    shown = re.findall(r"\d[\d,]*(?:\.\d+)?", row)
    for digits, value in FIGURES[claim]:
        assert f"{value:.{digits}f}" in shown, (claim, value, digits)
