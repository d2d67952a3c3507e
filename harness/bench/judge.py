"""From stored measurements to payoff.json: pairs them by trial, counts the look, and asks ``payoff``. Reads files only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.bench import metrics, roofline
from harness.bench.metrics import SLO
from harness.judge import loaded_notes
from harness.payoff import METRICS, MetricVerdict, Payoff, Series, judge_metric, judge_setting
from harness.store import ResultStore
from harness.types import Decision, Measurement, Request, Served, canonical, digest

SCHEMA = "kvgate.payoff/1"
GIB = 2**30
TAIL_VALUES = 100  # below so many values the 99th percentile is but the largest, and not told
FORMULA_SLACK = 0.01  # stored bytes farther from the formula are told

Trials = Mapping[str, Served]


def measured(served: Served, slo: SLO) -> dict[str, float | None]:
    """Every metric of one measurement; None where it was not seen."""
    requests = served.requests
    ttft = [metrics.ttft_s(request) for request in requests]
    return {
        "throughput": metrics.output_tokens_s(requests),
        "requests": metrics.requests_s(requests),
        "goodput": _goodput(served, slo),
        "ttft_p50": _percentile(ttft, 50),
        "ttft_p99": _percentile(ttft, 99),
        "tpot_p50": _percentile([metrics.tpot_s(request) for request in requests], 50),
        "itl_p99": _percentile(metrics.pooled_itl_s(requests), 99),
        "e2e_p50": _percentile([metrics.e2e_s(request) for request in requests], 50),
        "peak": served.memory.peak_bytes,
        "capacity": GIB / served.memory.kv_bytes_per_token,
    }


def _percentile(values: Sequence[float | None], percent: float) -> float | None:
    found = metrics.percentile(values, percent)
    return None if found is None or (percent > 90 and found.n < TAIL_VALUES) else found.value


def _goodput(served: Served, slo: SLO) -> float | None:
    """No request that meets the limits counts as half a one: a ratio needs something on both sides."""
    rate, span = metrics.goodput(served.requests, slo), metrics.span_s(served.requests)
    return None if rate is None or span is None else max(rate, 0.5 / span)


def judge(store: ResultStore, manifest: Mapping[str, Any], payoff: Payoff) -> dict[str, Any]:
    """The content of payoff.json."""
    baseline, noise, *candidates = manifest["arms"]
    read = {arm["address"]: store.load(arm["address"]).read()[0] for arm in manifest["arms"]}
    notes = list(manifest["notes"])
    judged = [_candidate(store, manifest, payoff, (baseline, noise, arm), read, notes) for arm in candidates]
    notes += _loaded_notes(store, manifest)
    notes += roofline.same_device(manifest["hardware"], manifest["engine"], manifest["machine"]["cpu"])
    alone = _served(read[baseline["address"]])
    return {
        "schema": SCHEMA,
        **{key: manifest[key] for key in ("name", "created", "command", "model", "engine", "load", "machine")},
        **{key: manifest[key] for key in ("hardware", "seed", "pairs", "kvgate", "git")},
        "payoff": asdict(payoff),
        "baseline": {"strategy": baseline["strategy"], **_facts(alone, payoff.slo, manifest)},
        "candidates": judged,
        "notes": notes,
    }


def _candidate(
    store: ResultStore,
    manifest: Mapping[str, Any],
    payoff: Payoff,
    arms: Sequence[Mapping[str, Any]],
    read: Mapping[str, Mapping[str, Measurement]],
    notes: list[str],
) -> dict[str, Any]:
    """One setting beside the baseline of the same trials."""
    arm = arms[-1]
    full, again, mine = (_served(read[one["address"]]) for one in arms)
    trials = [trial for trial in mine if trial in full and trial in again]
    look = 1
    if len(trials) >= manifest["pairs"]:
        look, payoff = _look(store, arms, trials, payoff, notes)
    verdicts = [
        judge_metric(name, _series(name, trials, full, again, mine, payoff.slo), payoff, look, manifest["pairs"])
        for name in METRICS
    ]
    decision, reasons = judge_setting(verdicts, idle=_idle(mine))
    notes += _notes(arm["strategy"], read[arm["address"]], mine)
    return {
        "strategy": arm["strategy"],
        "describe": arm["describe"],
        "address": arm["address"],
        "decision": decision.value,
        "reasons": reasons,
        "quality": quality(store.root, manifest, arm["stack"]),
        "pairs": len(trials),
        "look": look,
        "metrics": {verdict.metric: _metric_json(verdict) for verdict in verdicts},
        **_facts(mine, payoff.slo, manifest),
    }


def _served(measurements: Mapping[str, Measurement]) -> dict[str, Served]:
    """By trial what was served, warm-ups and failures left out."""
    return {
        trial: one.served
        for trial, one in measurements.items()
        if one.served is not None and not trial.startswith("warm-up")
    }


def _series(name: str, trials: Sequence[str], full: Trials, again: Trials, mine: Trials, slo: SLO) -> Series:
    by_arm = [[measured(arm[trial], slo)[name] for trial in trials] for arm in (full, again, mine)]
    rows = list(zip(*by_arm, strict=True))
    return Series(
        pairs=[(base, candidate) for base, _, candidate in rows if base and candidate],
        noise=[(base, twice) for base, twice, _ in rows if base and twice],
    )


def _look(
    store: ResultStore,
    arms: Sequence[Mapping[str, Any]],
    trials: Sequence[str],
    payoff: Payoff,
    notes: list[str],
) -> tuple[int, Payoff]:
    """Which test of this setting this is, and the gate that it is held to. More trials make another test.

    Alpha and the number of looks stay as promised before the first; another gain may be asked for, and is noted.
    """
    promise = {"wanted": dict(payoff.wanted), "alpha": payoff.alpha, "looks": payoff.looks}
    pair = digest(["payoff", arms[0]["address"], arms[-1]["address"]], 24)
    look, first = store.look(pair, digest(sorted(trials)), promise)
    for key in ("alpha", "looks"):
        if first[key] != promise[key]:
            why = f"as promised before the first look, not {promise[key]}"
            notes.append(f"{arms[-1]['strategy']}: gate.{key} stays {first[key]} {why}")
    if first["wanted"] != promise["wanted"]:
        then, now = (
            ", ".join(f"{k} {v:g}" for k, v in one.items()) or "nothing" for one in (first["wanted"], payoff.wanted)
        )
        notes.append(f"{arms[-1]['strategy']}: gate.payoff asked for {then} at the first look, now for {now}")
    return look, replace(payoff, alpha=first["alpha"], looks=first["looks"])


def _idle(mine: Trials) -> str:
    """The first layer that did not act in some measurement, with the condition that it states; empty if all did."""
    missed = (one for served in mine.values() for one in served.evidence if not one.acted)
    first = next(missed, None)
    return f"{first.layer} did not act: {first.why}" if first else ""


def _notes(strategy: str, measurements: Mapping[str, Measurement], mine: Trials) -> list[str]:
    notes = [f"{strategy}: a measurement failed: {one.error}" for one in measurements.values() if one.error]
    lost = [request.error for served in mine.values() for request in served.requests if request.error]
    if lost:
        notes.append(f"{strategy}: {len(lost)} requests failed, such as: {lost[0]}")
    memory = next((served.memory for served in mine.values()), None)
    if memory and abs(memory.stored_bytes / memory.formula_bytes - 1) > FORMULA_SLACK:
        notes.append(
            f"{strategy}: {memory.stored_bytes:,} bytes are stored where the formula says {memory.formula_bytes:,}"
        )
    return list(dict.fromkeys(notes))


def _loaded_notes(store: ResultStore, manifest: Mapping[str, Any]) -> list[str]:
    """What engines were found to be that a reader of ratios has to know."""
    (_, whole), *others = ((arm["strategy"], store.load(arm["address"]).loaded()) for arm in manifest["arms"])
    model, notes = manifest["model"], []
    if whole.get("kv_bytes_per_token") and model["element_bytes"] != model["deploy_element_bytes"]:
        notes.append(
            f"the baseline's cache is held in {model['element_bytes']} bytes an element here and would be in "
            f"{model['deploy_element_bytes']} where it is deployed ({model['deploy_dtype']}): capacity is told against the former"
        )
    for strategy, mine in others:
        notes += loaded_notes(strategy, mine, whole)
    return list(dict.fromkeys(notes))


def _metric_json(verdict: MetricVerdict) -> dict[str, Any]:
    return {**asdict(verdict), "decision": verdict.decision.value}


def _facts(mine: Trials, slo: SLO, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Geometric means of the measurements, latencies of all requests pooled, memory, price."""
    by_trial = [measured(served, slo) for served in mine.values()]
    values = {name: _mean([one[name] for one in by_trial]) for name in METRICS}
    requests = [request for served in mine.values() for request in served.requests]
    pooled: dict[str, Sequence[float | None]] = {
        "queue": [metrics.queue_s(request) for request in requests],
        "ttft": [metrics.ttft_s(request) for request in requests],
        "tpot": [metrics.tpot_s(request) for request in requests],
        "itl": metrics.pooled_itl_s(requests),
        "e2e": [metrics.e2e_s(request) for request in requests],
    }
    last = list(mine.values())[-1] if mine else None
    return {
        "values": values,
        "latencies": {name: _spread(times) for name, times in pooled.items()},
        "requests": len(requests),
        "failed": sum(bool(request.error) for request in requests),
        "attainment": metrics.attainment(requests, slo),
        "memory": asdict(last.memory) if last else None,
        "roofline": _roofline(requests, last, manifest),
        "usd_per_million_tokens": _price(values["throughput"], manifest["hardware"].get("price_hour")),
    }


def _roofline(requests: Sequence[Request], served: Served | None, manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fastest prefill and the median decode step beside the least that they can take; empty where rates are not known.

    A step has every request that is in flight, each half way through its answer.
    """
    hardware, load = manifest["hardware"], manifest["load"]
    rates = [hardware.get(name) for name in roofline.RATES]
    if served is None or None in rates or manifest["size"] is None:
        return []
    size = roofline.Size(**manifest["size"])
    prompt, rows = load["prompt_tokens"], min(load["in_flight"], load["requests"])
    stored = served.memory.stored_bytes / len(served.requests)
    share = min(1.0, stored / (size.kv_bytes * prompt))  # later tokens are taken to be held like the prompt's
    held = share * (prompt + load["output_tokens"] / 2)
    works = {
        "prefill": (roofline.prefill(size, prompt, stored), [metrics.ttft_s(request) for request in requests], 0),
        "decode": (
            roofline.decode(size, rows, held, held * size.kv_bytes),
            [metrics.tpot_s(request) for request in requests],
            50,
        ),
    }
    found = []
    for name, (work, times, percent) in works.items():
        least, seen = roofline.limit(work, *rates), metrics.percentile(times, percent)
        if seen:
            gap = seen.value / least.seconds
            found.append({"what": name, **asdict(work), **asdict(least), "measured_s": seen.value, "gap": gap})
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return float(np.exp(np.mean(np.log(known)))) if known else None


def _spread(times: Sequence[float | None]) -> dict[str, Any]:
    """Percentiles with 95 % limits, where the sample allows."""
    found = {f"p{percent}": metrics.percentile(times, percent) for percent in (50, 90, 99)}
    return {name: asdict(one) if one else None for name, one in found.items()}


def _price(tokens_s: float | None, price_hour: float | None) -> float | None:
    return price_hour / 3600 / tokens_s * 1e6 if tokens_s and price_hour else None


def quality(root: Path, manifest: Mapping[str, Any], stack: Mapping[str, Any]) -> dict[str, str] | None:
    """What the newest run of this results folder decided of the same layers on the same weights; the same engine's first."""
    found = []
    for file in (root / "runs").glob("*/run.json"):
        try:
            run, verdict = (
                json.loads((file.parent / name).read_text("utf-8")) for name in ("run.json", "verdict.json")
            )
        except (OSError, ValueError):  # not finished, or damaged: it decides nothing here
            continue
        if run["model"]["weights_sha"] != manifest["model"]["weights_sha"]:
            continue
        cells = [cell for group in run["groups"] for cell in group["cells"] if cell["role"] == "candidate"]
        names = {cell["strategy"] for cell in cells if canonical(cell["stack"]) == canonical(stack)}
        for entry in verdict["strategies"]:
            if entry["name"] in names:
                same = run["engine"]["name"] == manifest["engine"]["name"]
                told = {
                    "decision": Decision(entry["decision"]).value,
                    "run": run["name"],
                    "engine": run["engine"]["name"],
                }
                found.append((same, run["created"], told))
    return max(found, key=lambda one: one[:2])[2] if found else None
