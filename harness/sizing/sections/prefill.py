"""How fast a prompt is read at best."""

from __future__ import annotations

from typing import Any

from harness.sizing.case import Case
from harness.sizing.section import Section
from harness.sizing.speed import OPTIMISM, fastest, prefill_work


def section(case: Case) -> Section | None:
    context = case.load.context
    lengths = sorted({max(1, context // 16), max(1, context // 4), context})
    found = [(tokens, prefill_s(case, tokens)) for tokens in lengths]
    if any(seconds is None for _, seconds in found):
        return None
    gap = case.stored.gap("prefill", case.hardware.name)
    rows: tuple[dict[str, Any], ...] = tuple(
        {
            "prompt_tokens": tokens,
            "ttft_s": seconds,
            "prompt_tokens_s": tokens / seconds,
            "calibrated_ttft_s": seconds * gap.times if gap else None,
        }
        for tokens, seconds in found
        if seconds
    )
    longest = rows[-1]["ttft_s"]
    return Section(
        f"Reading a prompt with {case.model.name} on {case.load.devices} x {case.hardware.name}, alone",
        rows,
        f"A prompt of {context:,} tokens takes {longest:.3g} s at the least before its first token: what was computed before is "
        "worth keeping where it is asked again.",
        (OPTIMISM, "no number format of the cache changes this: a prompt's operations stay the same"),
    )


def prefill_s(case: Case, tokens: int) -> float | None:
    """The least that a prompt of ``tokens`` takes; None where weights or rates are not known."""
    if case.model.parameters is None:
        return None
    kv = case.full.held_bytes(tokens)
    least = fastest(
        prefill_work(case.model, case.model.parameters, tokens, kv, case.parameter_bytes),
        case.hardware,
        case.load.devices,
    )
    return least.seconds if least else None


def prefill_tokens_s(case: Case) -> float | None:
    """Prompt tokens a second of the whole replica: those that were given, else the roofline's, with the gap that is stored."""
    if case.load.prefill_tokens_s:
        return case.load.prefill_tokens_s
    seconds = prefill_s(case, case.load.prompt_tokens)
    gap = case.stored.gap("prefill", case.hardware.name)
    return case.load.prompt_tokens / seconds / (gap.times if gap else 1.0) if seconds else None
