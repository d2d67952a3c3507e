"""How fast a step is at best, what a format gains by context, and what a million tokens costs."""

from __future__ import annotations

from typing import Any

from harness.sizing.capacity import max_batch
from harness.sizing.case import Case
from harness.sizing.holding import Holding
from harness.sizing.section import Section
from harness.sizing.speed import OPTIMISM, decode_work, fastest, usd_per_million

CONTEXTS = tuple(2**power for power in range(11, 21))  # 2,048 to 1,048,576 tokens


def section(case: Case) -> Section | None:
    if case.model.parameters is None or fastest_step(case, case.full, 1, case.load.context) is None:
        return None
    gap = case.stored.gap("decode", case.hardware.name)
    most = case.model.max_tokens or CONTEXTS[-1]
    contexts = sorted({*(one for one in CONTEXTS if one <= min(most, 4 * case.load.context)), case.load.context})
    rows = tuple(_row(case, one, context, gap.times if gap else None) for context in contexts for one in case.holdings)
    return Section(
        f"A decode step of {case.model.name} on {case.load.devices} x {case.hardware.name}: alone, and in the largest batch",
        rows,
        _advice(case, rows),
        (OPTIMISM, _calibration(case), *_evidence(case)),
    )


def fastest_step(case: Case, one: Holding, rows: int, context: int) -> Any:
    assert case.model.parameters is not None
    work = decode_work(case.model, case.model.parameters, rows, context, one.read_bytes(context), case.parameter_bytes)
    return fastest(work, case.hardware, case.load.devices)


def _row(case: Case, one: Holding, context: int, gap: float | None) -> dict[str, Any]:
    alone = fastest_step(case, one, 1, context)
    full = fastest_step(case, case.full, 1, context)
    realized = case.stored.realized(case.hardware.name, one.stacks)
    budget = case.budget_bytes
    batch = max_batch(budget, one.held_bytes(context)) if budget is not None else 0
    step = fastest_step(case, one, batch, context).seconds if batch else None
    tokens_s, price = batch / step if step else None, case.hardware.price_hour
    return {
        "context_tokens": context,
        "setting": one.name,
        "step_ms": 1000 * alone.seconds,
        "tokens_s": 1 / alone.seconds,
        "calibrated_tokens_s": 1 / alone.seconds / gap if gap else None,
        "gain_times": full.seconds / alone.seconds,
        "calibrated_gain_times": full.seconds / alone.seconds * realized.times if realized else None,
        "bound": alone.bound,
        "batch_requests": batch or None,
        "batch_tokens_s": tokens_s,
        "usd_per_million_tokens": usd_per_million(price, case.load.devices, tokens_s) if price and tokens_s else None,
    }


def _advice(case: Case, rows: tuple[dict[str, Any], ...]) -> str:
    here = [row for row in rows if row["context_tokens"] == case.load.context]
    best = max(here, key=lambda row: row["gain_times"])
    at = f"At {case.load.context:,} tokens"
    if best["gain_times"] < 1.05:
        return f"{at} no setting makes a step of a request alone more than 5 % faster: weights are what it reads."
    return (
        f"{at} {best['setting']} makes a step of a request alone at most {best['gain_times']:.2f} times faster; measure it with "
        "kvgate bench before you count on it."
    )


def _calibration(case: Case) -> str:
    gap = case.stored.gap("decode", case.hardware.name)
    if gap is None:
        measured = f"kvgate bench hardware={case.hardware.name} strategy=fp8 on this device"
        return f"not calibrated: no stored bench of hardware {case.hardware.name} has a roofline; {measured} gives one"
    runs = ", ".join(gap.runs[-4:])
    return (
        f"calibrated: measured decode steps took {gap.times:.2f} times the limit (median of {gap.measurements}: {runs})"
    )


def _evidence(case: Case) -> tuple[str, ...]:
    found = ((one, case.stored.realized(case.hardware.name, one.stacks)) for one in case.holdings[1:])
    return tuple(
        f"{one.name}: of its predicted gain {gap.times:.0%} was measured ({', '.join(gap.runs[-4:])})"
        for one, gap in found
        if gap
    )
