"""From stored measurements to payoff.json: pairs them by trial, counts the look, and asks ``payoff``. Reads files only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.bench import metrics, roofline
from harness.bench.metrics import SLO
from harness.judge import loaded_notes
from harness.payoff import METRICS, MetricVerdict, Payoff, Series, judge_metric, judge_setting
from harness.store import ResultStore
from harness.types import Decision, Measurement, Request, Served, canonical, digest

SCHEMA = "kvgate.payoff/2"
GIB = 2**30
TAIL_VALUES = 100  # below so many values the 99th percentile is but the largest, and not told
FORMULA_SLACK = 0.01  # stored bytes farther from the formula are told,
CAPACITY_SLACK = 0.05  # so is a capacity farther from it,
PEAK_SLACK = 0.1  # and a peak farther from the baseline's with its store exchanged

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


@dataclass(frozen=True)
class _Seen:
    """What was measured of one setting under one load, beside the baseline and the baseline once more."""

    arm: Mapping[str, Any]
    full: Trials
    again: Trials
    mine: Trials
    addresses: tuple[str, str]  # of the baseline and of the setting
    failures: tuple[str, ...]

    @property
    def trials(self) -> list[str]:
        """Those in which all three were measured."""
        return [trial for trial in self.mine if trial in self.full and trial in self.again]


def judge(store: ResultStore, manifest: Mapping[str, Any], payoff: Payoff) -> dict[str, Any]:
    """The content of payoff.json."""
    points, notes = manifest["points"], list(manifest["notes"])
    seen = [_seen(store, point) for point in points]
    for at in seen:
        notes += _notes(points[0]["arms"][0]["strategy"], at[0].full) + _reused(at[0].full)
    settings = [[at[number] for at in seen] for number in range(len(points[0]["arms"]) - 2)]
    judged = [_candidate(store, manifest, payoff, setting, notes) for setting in settings]
    notes += _loaded_notes(store, manifest)
    notes += roofline.same_device(manifest["hardware"], manifest["engine"], manifest["machine"]["cpu"])
    baseline = [at[0].full for at in seen]
    return {
        "schema": SCHEMA,
        **{key: manifest[key] for key in ("name", "created", "command", "model", "engine", "load", "machine")},
        **{key: manifest[key] for key in ("hardware", "seed", "pairs", "kvgate", "git")},
        "payoff": asdict(payoff),
        "points": [{key: point[key] for key in ("label", "value", "describe")} for point in points],
        "baseline": {
            "strategy": points[0]["arms"][0]["strategy"],
            "points": [
                _facts(alone, payoff.slo, manifest, point) for alone, point in zip(baseline, points, strict=True)
            ],
        },
        "candidates": judged,
        "notes": list(dict.fromkeys(notes)),
    }


def _seen(store: ResultStore, point: Mapping[str, Any]) -> list[_Seen]:
    """By candidate, what was measured under one load."""
    read = [store.load(arm["address"]).read()[0] for arm in point["arms"]]
    full, again, *others = map(_served, read)
    baseline, _, *candidates = point["arms"]
    return [
        _Seen(
            arm,
            full,
            again,
            mine,
            (baseline["address"], arm["address"]),
            tuple(one.error for one in measurements.values() if one.error),
        )
        for arm, mine, measurements in zip(candidates, others, read[2:], strict=True)
    ]


def _candidate(
    store: ResultStore, manifest: Mapping[str, Any], payoff: Payoff, seen: Sequence[_Seen], notes: list[str]
) -> dict[str, Any]:
    """One setting under every load, beside the baseline of the same trials."""
    arm, points, planned = seen[0].arm, manifest["points"], manifest["pairs"]
    at, verdicts = [], list[MetricVerdict]()
    for one, point in zip(seen, points, strict=True):
        look, held = _look(store, [one], payoff, planned, notes)
        mine = [
            judge_metric(name, _series(name, one, payoff.slo), held, look, planned)
            for name, metric in METRICS.items()
            if not metric.curve
        ]
        decision, _ = judge_setting(mine, idle=_idle(one.mine))
        notes += _notes(arm["strategy"], one.mine, one.failures)
        allocated = "kv_bytes_per_token" in store.load(one.arm["address"]).loaded()
        notes += [f"{arm['strategy']}: {_at(point, told)}" for told in _surprises(one, point["load"], allocated)]
        verdicts += [replace(verdict, reason=_at(point, verdict.reason)) for verdict in mine]
        at.append(
            {
                "address": one.arm["address"],
                "decision": decision.value,
                "pairs": len(one.trials),
                "look": look,
                "metrics": {verdict.metric: _metric_json(verdict) for verdict in mine},
                **_facts(one.mine, payoff.slo, manifest, point),
            }
        )
    curve = []
    if len(points) > 1:
        look, held = _look(store, seen, payoff, planned, notes)
        curve = [judge_metric("rate", _rates(seen, points, payoff.slo), held, look, planned)]
    elif "rate" in payoff.wanted:
        notes.append("gate.payoff.rate is told of a load with several points, such as load=arrivals, and this has one")
    idle = next((_at(point, why) for one, point in zip(seen, points, strict=True) if (why := _idle(one.mine))), "")
    decision, reasons = judge_setting([*verdicts, *curve], idle=idle)
    return {
        "strategy": arm["strategy"],
        "describe": arm["describe"],
        "decision": decision.value,
        "reasons": reasons,
        "quality": quality(store.root, manifest, arm["stack"]),
        "points": at,
        "curve": {verdict.metric: _metric_json(verdict) for verdict in curve},
    }


def _at(point: Mapping[str, Any], words: str) -> str:
    return f"{words} ({point['label']})" if point["label"] else words


def _served(measurements: Mapping[str, Measurement]) -> dict[str, Served]:
    """By trial what was served, warm-ups and failures left out."""
    return {
        trial: one.served
        for trial, one in measurements.items()
        if one.served is not None and not trial.startswith("warm-up")
    }


def _series(name: str, seen: _Seen, slo: SLO) -> Series:
    by_arm = [[measured(arm[trial], slo)[name] for trial in seen.trials] for arm in (seen.full, seen.again, seen.mine)]
    return _paired(*by_arm)


def _rates(seen: Sequence[_Seen], points: Sequence[Mapping[str, Any]], slo: SLO) -> Series:
    """By trial that every load was measured in, the highest rate that meets the SLO."""
    whole = [trial for trial in seen[0].trials if all(trial in one.trials for one in seen)]

    def sustained(trial: str, arm: str) -> float | None:
        served = [getattr(one, arm)[trial].requests for one in seen]
        rates = [_rate_of(point, requests) for point, requests in zip(points, served, strict=True)]
        if None in rates:
            return None
        met = [metrics.attainment(requests, slo) for requests in served]
        return metrics.sustained_rate(zip(rates, met, strict=True), slo.share)  # type: ignore[arg-type]

    return _paired(*([sustained(trial, arm) for trial in whole] for arm in ("full", "again", "mine")))


def _rate_of(point: Mapping[str, Any], requests: Sequence[Request]) -> float | None:
    """Requests a second: as they came, where the load says how, else as they were served."""
    return point["load"].get("rate_s") or metrics.requests_s(requests)


def _paired(full: Sequence[float | None], again: Sequence[float | None], mine: Sequence[float | None]) -> Series:
    rows = list(zip(full, again, mine, strict=True))
    return Series(
        pairs=[(base, candidate) for base, _, candidate in rows if base and candidate],
        noise=[(base, twice) for base, twice, _ in rows if base and twice],
    )


def _look(
    store: ResultStore, seen: Sequence[_Seen], payoff: Payoff, planned: int, notes: list[str]
) -> tuple[int, Payoff]:
    """Which test of this setting under these loads this is, and the gate that it is held to. More trials make another test.

    Alpha and the number of looks stay as promised before the first; another gain may be asked for, and is noted. Before all
    planned trials are there, nothing is tested.
    """
    if min(len(one.trials) for one in seen) < planned:
        return 1, payoff
    promise = {"wanted": dict(payoff.wanted), "alpha": payoff.alpha, "looks": payoff.looks}
    pair = digest(["payoff", *(address for one in seen for address in one.addresses)], 24)
    trials, strategy = sorted(trial for one in seen for trial in one.trials), seen[0].arm["strategy"]
    look, first = store.look(pair, digest(trials), promise)
    for key in ("alpha", "looks"):
        if first[key] != promise[key]:
            why = f"as promised before the first look, not {promise[key]}"
            notes.append(f"{strategy}: gate.{key} stays {first[key]} {why}")
    if first["wanted"] != promise["wanted"]:
        then, now = (
            ", ".join(f"{k} {v:g}" for k, v in one.items()) or "nothing" for one in (first["wanted"], payoff.wanted)
        )
        notes.append(f"{strategy}: gate.payoff asked for {then} at the first look, now for {now}")
    return look, replace(payoff, alpha=first["alpha"], looks=first["looks"])


def _idle(mine: Trials) -> str:
    """The first layer that did not act in some measurement, with the condition that it states; empty if all did."""
    missed = (one for served in mine.values() for one in served.evidence if not one.acted)
    first = next(missed, None)
    return f"{first.layer} did not act: {first.why}" if first else ""


def _notes(strategy: str, mine: Trials, failures: Sequence[str] = ()) -> list[str]:
    notes = [f"{strategy}: a measurement failed: {error}" for error in failures]
    lost = [request.error for served in mine.values() for request in served.requests if request.error]
    if lost:
        notes.append(f"{strategy}: {len(lost)} requests failed, such as: {lost[0]}")
    memory = next((served.memory for served in mine.values()), None)
    if memory and abs(memory.stored_bytes / memory.formula_bytes - 1) > FORMULA_SLACK:
        notes.append(
            f"{strategy}: {memory.stored_bytes:,} bytes are stored where the formula says {memory.formula_bytes:,}"
        )
    return notes


def _surprises(seen: _Seen, load: Mapping[str, Any], allocated: bool) -> list[str]:
    """Where memory is not what the layers' own formulas lead to expect. ``allocated``: the engine has a pool and tells what of
    it a token takes; what it holds is then no part of a peak."""
    if not seen.trials:
        return []
    full, mine = (arm[seen.trials[-1]] for arm in (seen.full, seen.mine))
    if allocated:
        ratio = full.memory.kv_bytes_per_token / mine.memory.kv_bytes_per_token
        formula = full.memory.formula_bytes / mine.memory.formula_bytes
        off = ratio / formula - 1
        says = f"{ratio:.3g} times as many tokens fit, and {formula:.3g} times by formula"
        return [says] if abs(off) > CAPACITY_SLACK else []
    if not full.memory.peak_bytes or not mine.memory.peak_bytes:
        return []
    share = min(load.get("in_flight") or len(mine.requests), len(mine.requests)) / len(mine.requests)
    expected = full.memory.peak_bytes + share * (mine.memory.stored_bytes - full.memory.stored_bytes)
    over = mine.memory.peak_bytes / expected - 1
    says = f"its peak is {abs(over):.0%} {'above' if over > 0 else 'below'} the baseline's with the store exchanged"
    return [says] if abs(over) > PEAK_SLACK else []


def _reused(full: Trials) -> list[str]:
    """Whether the baseline, which reuses nothing, found something to reuse."""
    share = metrics.cached_share([request for served in full.values() for request in served.requests])
    return (
        [f"the baseline reused {share:.0%} of its prompts: its prefix cache is on, so this is no gain of reuse"]
        if share
        else []
    )


def _loaded_notes(store: ResultStore, manifest: Mapping[str, Any]) -> list[str]:
    """What engines were found to be that a reader of ratios has to know."""
    arms = manifest["points"][0]["arms"]
    (_, whole), *others = ((arm["strategy"], store.load(arm["address"]).loaded()) for arm in arms)
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


def _facts(mine: Trials, slo: SLO, manifest: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """Geometric means of the measurements, latencies of all requests pooled, memory, price."""
    by_trial = [measured(served, slo) for served in mine.values()]
    values = {name: _mean([one[name] for one in by_trial]) for name in METRICS if not METRICS[name].curve}
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
        "cached_share": metrics.cached_share(requests),
        "memory": asdict(last.memory) if last else None,
        "roofline": _roofline(list(mine.values()), manifest, point["load"]),
        "usd_per_million_tokens": _price(values["throughput"], manifest["hardware"].get("price_hour")),
    }


def _roofline(mine: Sequence[Served], manifest: Mapping[str, Any], load: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The prefill that came nearest to the least that it can take, and the median decode step; empty where rates are not known.

    A step has every request that decodes at a time, each half way through its answer.
    """
    rates = [manifest["hardware"].get(name) for name in roofline.RATES]
    done = [request for served in mine for request in served.requests if not request.error]
    if not done or None in rates or manifest["size"] is None:
        return []
    size, memory = roofline.Size(**manifest["size"]), mine[-1].memory
    prompt, answer = (
        float(np.mean([getattr(request, tokens) for request in done])) for tokens in ("tokens_in", "tokens_out")
    )
    whole = size.kv_bytes * sum(request.tokens_in for request in mine[-1].requests)
    share = min(1.0, memory.stored_bytes / whole)  # later tokens are taken to be held like the prompt's
    held, rows = share * (prompt + answer / 2), _rows(mine, load)
    prefills = [
        _gap("prefill", roofline.prefill(size, n, share * size.kv_bytes * n), ttft, rates)
        for n, cached, ttft in {(one.tokens_in, one.cached_tokens, metrics.ttft_s(one)) for one in done}
        if ttft and not cached
    ]
    step = metrics.percentile([metrics.tpot_s(request) for request in done], 50)
    decode = roofline.decode(size, max(1, round(rows)), held, held * size.kv_bytes)
    return [
        *([min(prefills, key=lambda one: float(one["gap"]))] if prefills else []),
        *([_gap("decode", decode, step.value, rates)] if step else []),
    ]


def _rows(mine: Sequence[Served], load: Mapping[str, Any]) -> float:
    """Requests that decode at a time: as many as the load lets in, or as were there in the mean."""
    if load.get("in_flight") is not None:
        return float(min(load["in_flight"], len(mine[-1].requests)))
    span, decoding_s = metrics.span_s(mine[-1].requests), 0.0
    for request in mine[-1].requests:
        if request.first_token_s is not None and request.last_token_s is not None:
            decoding_s += request.last_token_s - request.first_token_s
    return decoding_s / span if span else 1.0


def _gap(what: str, work: roofline.Work, seconds: float, rates: Sequence[Any]) -> dict[str, Any]:
    least = roofline.limit(work, *rates)
    return {"what": what, **asdict(work), **asdict(least), "measured_s": seconds, "gap": seconds / least.seconds}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value]
    return float(np.exp(np.mean(np.log(known)))) if known else None


def _spread(times: Sequence[float | None]) -> dict[str, Any]:
    """Percentiles with 95 % limits, where the sample allows."""
    found = {f"p{percent}": metrics.percentile(times, percent) for percent in (50, 90, 99)}
    return {name: asdict(one) if one else None for name, one in found.items()}


def _price(tokens_s: float | None, price_hour: float | None) -> float | None:
    return price_hour / 3600 / tokens_s * 1e6 if tokens_s and price_hour else None


def quality(root: Path, manifest: Mapping[str, Any], stack: Mapping[str, Any]) -> dict[str, Any] | None:
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
                found.append((same, run["created"], _quality(run, verdict, entry)))
    return max(found, key=lambda one: one[:2])[2] if found else None


def _quality(run: Mapping[str, Any], verdict: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The decision on a setting, its worst difference of score, and how long its answers were where they ended by themselves."""
    cells = [cell for cell in verdict["cells"] if cell["strategy"] == entry["name"]]
    judged = [cell for cell in cells if cell.get("delta") is not None]
    worst = min(judged, key=lambda cell: float(cell["delta"]), default={"task": None, "delta": None})
    lengths = [(cell.get("output_tokens"), cell.get("output_tokens_baseline")) for cell in judged]
    mine, full = (sum(one or 0 for one in side) for side in zip(*lengths, strict=True)) if lengths else (0, 0)
    return {
        "decision": Decision(entry["decision"]).value,
        "run": run["name"],
        "engine": run["engine"]["name"],
        "task": worst["task"],
        "delta": worst["delta"],
        "answer_length": mine / full if mine and full else None,
    }
