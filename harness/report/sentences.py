"""The sentences of the report: what a decision means, what it does not, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.report.format import MINUS, count, general, missing, percent, plain, signed
from harness.report.outlook import Cell, Outlook, at
from harness.types import Decision

PEAK_SCOPE = "process peak of the joint decode, shared by all strategies"

MEANING = {
    Decision.GO: "On every gating task a loss larger than the margin is ruled out.",
    Decision.NO_GO: "Harm beyond the margin is shown on a gating task.",
    Decision.INCONCLUSIVE: "Neither safety nor harm is shown on every gating task; more samples are needed.",
    Decision.VOID: "Nothing was tested, so nothing is decided.",
    Decision.MEASURED: "Measured only; fidelity is never a ground for GO.",
}


def headline(outlook: Outlook) -> str:
    """The answer in a sentence: what passes, at which margin, and the cheapest stack that does."""
    if not outlook.strategies:
        return "No strategy was judged."
    if len(outlook.strategies) == 1:
        return _of_one(outlook, outlook.strategies[0])
    passed = [entry["name"] for entry in outlook.strategies if entry["decision"] == Decision.GO]
    of_all, tasks = f"of {len(outlook.strategies)} strategies", _tasks(outlook)
    if not passed:
        return f"None {of_all} is GO on {tasks}{_at_margin(outlook)}{_nearest(outlook)}."
    cheapest = next((name for name in passed if outlook.fractions(name)), None)
    known = f"; cheapest passing stack: {cheapest}, with {_share(outlook, cheapest)}" if cheapest else ""
    return f"{len(passed)} {of_all} {'is' if len(passed) == 1 else 'are'} GO on {tasks}{_at_margin(outlook)}{known}."


def _nearest(outlook: Outlook) -> str:
    """Which strategy is GO on most tasks, else which are open: more samples may decide them."""
    nearest = max(outlook.strategies, key=lambda entry: len(_passed(outlook, entry["name"])))["name"]
    if _passed(outlook, nearest):
        return f"; nearest: {nearest}, {_go_on(outlook, nearest)}"
    unsure = [entry["name"] for entry in outlook.strategies if entry["decision"] == Decision.INCONCLUSIVE]
    return f"; not decided: {', '.join(unsure)}" if unsure else ""


def subject(outlook: Outlook) -> str:
    """``org/model in float32 on engine hf``, as far as it is known."""
    model, engine = outlook.model, (outlook.verdict.get("engine") or {}).get("name")
    held = f" in {model['dtype']}" if model.get("dtype") else ""
    return f"{model.get('id') or 'a model'}{held}{f' on engine {engine}' if engine else ''}"


def _of_one(outlook: Outlook, entry: Mapping[str, Any]) -> str:
    name, decision = entry["name"], entry["decision"]
    if decision == Decision.GO:
        share = f", with {_share(outlook, name)}" if outlook.fractions(name) else ""
        return f"{name} is GO on {_tasks(outlook)}{_at_margin(outlook)}{share}."
    if len(_gating(outlook, name)) < 2:
        return f"{name} is {decision} on {_tasks(outlook)}{_at_margin(outlook)}."
    return f"{name} is {_go_on(outlook, name)}{_at_margin(outlook)}: it is {decision}."


def _gating(outlook: Outlook, strategy: str) -> list[Cell]:
    return [cell for cell in outlook.of(strategy) if cell.get("gating")]


def _passed(outlook: Outlook, strategy: str) -> list[Cell]:
    return [cell for cell in _gating(outlook, strategy) if cell["decision"] == Decision.GO]


def _tasks(outlook: Outlook) -> str:
    """``all 3 tasks``, or the name of the only one."""
    gating = list(dict.fromkeys(at(cell) for cell in outlook.cells if cell.get("gating")))
    if len(gating) == 1:
        return outlook.label(gating[0])
    return "both tasks" if len(gating) == 2 else f"all {len(gating)} tasks"


def _go_on(outlook: Outlook, strategy: str) -> str:
    return f"GO on {len(_passed(outlook, strategy)) or 'none'} of {len(_gating(outlook, strategy))} tasks"


def _at_margin(outlook: Outlook) -> str:
    margin = outlook.gate.get("margin")
    if missing(margin):
        return ""
    if outlook.gate.get("margin_kind") == "relative":
        return f" at a margin of {percent(margin)} of the full cache's score"
    return f" at a {general(100 * margin)}-point margin"


def _share(outlook: Outlook, strategy: str) -> str:
    return f"{outlook.memory(strategy)} of the full cache's KV bytes"


def why(strategy: Mapping[str, Any]) -> str:
    """One sentence for a strategy: its first reason, else what its decision means."""
    reasons = [reason for reason in strategy.get("reasons") or () if reason]
    if not reasons:
        return MEANING[Decision(strategy["decision"])]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{reasons[0].rstrip('.')}{more}."


def ladder(strategy: Mapping[str, Any]) -> str:
    """Where a strategy stands on its budget ladder; empty if it is on none."""
    step = strategy.get("ladder")
    if not step:
        return ""
    certified = "certified" if step.get("certified") else "not certified"
    return f"ladder {step.get('policy')}, {step.get('option')} {plain(step.get('value'))}: {certified}"


def memory_quoted(outlook: Outlook) -> str:
    """How the memory share of a card is to be read."""
    return (
        f"KV share: bytes a token of this cache over those of the full cache, both predicted by formula at "
        f"{outlook.deploy_dtype}, the dtype to deploy."
    )


def scope(outlook: Outlook) -> tuple[str, ...]:
    """What the decisions claim, and what they do not."""
    model = outlook.model.get("id") or "this model"
    looks = outlook.gate.get("looks")
    found = [
        f"The verdict holds for {model} and for these tasks only; another model, or another task, needs its own run.",
        "Speed was not measured here. Fewer bytes are not more tokens a second.",
        "Each strategy is judged alone, on the same samples as the full cache, and is GO only if every gating task is "
        "GO. That intersection needs no correction for the number of tasks.",
        "Choosing the best of several strategies is another claim: the winner of 16 that all sit at the margin is a "
        "false GO up to 56 % of the time. Choose on these samples, then confirm the choice once on a fresh seed.",
    ]
    found += [told] if (told := reused(outlook)) else []
    if outlook.generated:
        found.append(f"It holds for answers generated like this, on both sides: {outlook.generated}.")
    if not missing(looks) and looks > 1:
        alpha = outlook.gate.get("alpha")
        found.append(
            f"{count(looks)} looks at the data were promised before the run; each tests at {general(alpha)} / "
            f"{count(looks)}, so that all of them together err at most {general(alpha)} of the time."
        )
    if any(entry.get("ladder") for entry in outlook.strategies):
        found.append(
            "A budget ladder is judged from mild to harsh and stops at its first failure; the last budget before it is "
            "certified without a correction."
        )
    return tuple(found)


def reused(outlook: Outlook) -> str:
    """Which cells were finished before this run began; "" where none were."""
    by_task: dict[str, list[str]] = {}
    for cell in outlook.verdict.get("reused") or ():
        again = " (alone)" if cell["role"] == "noise" else ""
        by_task.setdefault(outlook.label((cell["task"], cell["mode"])), []).append(cell["strategy"] + again)
    told = "; ".join(f"{task}: {', '.join(dict.fromkeys(names))}" for task, names in by_task.items())
    return f"Reused, as they were finished before this run began: {told}." if told else ""


def matrix_note(outlook: Outlook) -> str:
    """How to read the matrix."""
    margin, kind = general(outlook.gate.get("margin")), outlook.gate.get("margin_kind") or "absolute"
    return (
        f"Each square: decision, score of the full cache → score of the strategy, then the paired difference d "
        f"with its interval. GO means that the whole interval lies above {MINUS}δ (δ = {margin}, {kind}). Tasks in "
        "italics do not gate."
    )


def next_step(outlook: Outlook, cell: Cell) -> str:
    """What would settle a cell that is not settled."""
    reasons = "; ".join(cell.get("reasons") or ())
    if cell["decision"] == Decision.VOID:
        return f"Put the cause right and run again. Cause: {(reasons or 'not recorded').removesuffix('.')}."
    parts = [f"n = {count(cell.get('n'))} does not decide δ = {general(cell.get('margin'))}."]
    needed, observed, delta = cell.get("n_needed"), cell.get("n_needed_observed"), cell.get("delta")
    if not missing(needed):
        power = percent(outlook.gate.get("power"))
        parts.append(f"For joint power {power} it takes n = {count(needed)} if the true difference is 0.")
    if not missing(observed):
        parts.append(f"If it is the observed {signed(delta)}, it takes n = {count(observed)}.")
    elif not missing(delta) and not missing(cell.get("margin")) and delta <= -cell["margin"]:
        parts.append(f"If it is the observed {signed(delta)}, no n gives GO.")
    if not missing(cell.get("min_margin")):
        parts.append(f"This n decides a margin of {general(cell.get('min_margin'))} or more.")
    look, looks = cell.get("look"), cell.get("looks")
    if not missing(look) and not missing(looks):
        spent = look >= looks
        parts.append("All looks are spent: take a fresh seed." if spent else f"A top-up is look {look + 1} of {looks}.")
    return " ".join(parts)


def glossary(outlook: Outlook) -> tuple[tuple[str, str], ...]:
    """The letters of the tables."""
    return (
        ("n, clusters", "pairs that the test counts; samples that share a context count once, as a cluster"),
        (
            "d, CI",
            "mean of strategy minus full over the pairs; the interval inverts the test, two-sided at 1 - 2 alpha",
        ),
        ("δ, min δ", "the margin promised before the run; the smallest margin that this n can decide"),
        ("b, c", "pairs that went wrong → right, and right → wrong"),
        ("ψ, ψ₀", "flip rate (b + c) / n; the same of the full cache against itself in another batch"),
        ("alpha, p, look", "one-sided level of this look, p value of the deciding test, and which look this was"),
        ("control d", "what the positive control, which must hurt, did on this task; no harm there is VOID"),
        (
            "lost pairs",
            "right with the full cache, truncated, failed or degenerate with the strategy alone: counted as wrong",
        ),
        ("degenerate", "answers that are empty, one token or passage over and over, or hold another speaker's turn"),
        ("at token limit", "answers that ended only because they had all the tokens that an answer may have"),
        ("left out, not acted", "pairs lost to infrastructure, and samples on which a layer had nothing to do"),
        ("output tokens", "said to a sample on average, thinking and answer"),
        *(("thinking cut", "share of answers whose thinking used its budget up"),) * bool(outlook.generation.thinking),
    )


def comparison_why(outlook: Outlook, comparison: Mapping[str, Any]) -> str:
    """One sentence for a pair of candidates on a task."""
    reasons = " ".join(comparison.get("reasons") or ()) or "No reason was recorded."
    if comparison["finding"] == "not compared":
        reasons = f"{comparison['a']} and {comparison['b']} are not compared. {reasons}"
    return f"{outlook.label(at(comparison))}: {reasons}"


def comparisons_note(outlook: Outlook) -> str:
    """How to read the comparisons of candidates."""
    tested = sum(not missing(comparison.get("p_value")) for comparison in outlook.comparisons)
    kind = "absolute" if outlook.gate.get("margin_kind") != "relative" else "relative to the better of the two scores"
    return (
        f"d = a {MINUS} b, on the same samples; alone: where one did better than the other. Better: the two-sided test of "
        f"no difference rejects after Holm over all {count(tested)} comparisons that could be made. Equivalent: the "
        f"interval lies within ±δ (δ {kind}); each such claim stands at alpha by itself. No difference shown is neither "
        "of the two. The candidates' own verdicts do not depend on this."
    )


def reproduce(outlook: Outlook) -> tuple[tuple[str, str], ...]:
    """Commands, each with what it is for."""
    verdict = outlook.verdict
    name, seed = verdict.get("name") or "RUN", verdict.get("seed")
    command = verdict.get("command") or "kvgate run …"
    fresh = "NEW" if missing(seed) else seed + 1
    return (
        ("Rebuild this report from the stored records, without a model", f"kvgate report {name}"),
        (
            "Run it again: the overrides of the run, with the versions and hashes above; stored cells are reused",
            command if verdict.get("command") or missing(seed) else f"{command} seed={seed}",
        ),
        ("Confirm a chosen strategy once, on fresh samples", f"{command} seed={fresh}"),
    )
