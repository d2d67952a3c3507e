"""From stored measurements to payoff.json: pairs them by trial, counts the look, and asks ``payoff``. Reads files only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from harness.bench import facts, metrics, quality, roofline, trials
from harness.bench import notes as notes_of
from harness.bench.facts import Trials
from harness.bench.metrics import SLO
from harness.payoff import METRICS, MetricVerdict, Payoff, Series, judge_metric, judge_setting
from harness.store import ResultStore
from harness.types import Request, digest

SCHEMA = "kvgate.payoff/2"


@dataclass(frozen=True)
class _Seen:
    """What was measured of one setting under one load, beside the baseline and the baseline once more."""

    arm: Mapping[str, Any]
    full: Trials
    again: Trials
    mine: Trials
    addresses: tuple[str, str]  # of the baseline and of the setting
    failures: tuple[str, ...]
    baseline_failures: tuple[str, ...]

    @property
    def trials(self) -> list[str]:
        """Those in which all three were measured."""
        return [trial for trial in self.mine if trial in self.full and trial in self.again]


def judge(store: ResultStore, manifest: Mapping[str, Any], payoff: Payoff) -> dict[str, Any]:
    """The content of payoff.json."""
    points, notes = manifest["points"], list(manifest["notes"])
    seen = [_seen(store, point) for point in points]
    for at in seen:
        notes += notes_of.of_setting(points[0]["arms"][0]["strategy"], at[0].full, at[0].baseline_failures)
        notes += notes_of.of_reuse(at[0].full)
    settings = [[at[number] for at in seen] for number in range(len(points[0]["arms"]) - 2)]
    runs = list(store.runs("run.json", "verdict.json"))
    judged = [_candidate(store, runs, manifest, payoff, setting, notes) for setting in settings]
    notes += notes_of.of_engines(store, manifest)
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
                {
                    "allocated": _allocates(store, point["arms"][0]),
                    **facts.facts(alone, payoff.slo, manifest, point),
                }
                for alone, point in zip(baseline, points, strict=True)
            ],
        },
        "candidates": judged,
        "notes": list(dict.fromkeys(notes)),
    }


def _seen(store: ResultStore, point: Mapping[str, Any]) -> list[_Seen]:
    """By candidate, what was measured under one load."""
    read = [store.load(arm["address"]).read()[0] for arm in point["arms"]]
    full, again, *others = map(trials.served, read)
    lost, lost_again, *lost_others = (tuple(one.error for one in arm.values() if one.error) for arm in read)
    baseline, _, *candidates = point["arms"]
    return [
        _Seen(
            arm,
            full,
            again,
            mine,
            (baseline["address"], arm["address"]),
            failures,
            lost + lost_again,
        )
        for arm, mine, failures in zip(candidates, others, lost_others, strict=True)
    ]


def _candidate(
    store: ResultStore,
    runs: quality.Runs,
    manifest: Mapping[str, Any],
    payoff: Payoff,
    seen: Sequence[_Seen],
    notes: list[str],
) -> dict[str, Any]:
    """One setting under every load, beside the baseline of the same trials."""
    arm, points, planned = seen[0].arm, manifest["points"], manifest["pairs"]
    at, verdicts = [], list[MetricVerdict]()
    for one, point in zip(seen, points, strict=True):
        look, held = _look(store, [one], payoff, planned, notes)
        measured = _measured(one, payoff.slo)
        mine = [
            judge_metric(name, _series(name, measured), held, look, max(planned, len(one.trials)))
            for name, metric in METRICS.items()
            if not metric.curve
        ]
        decision, _ = judge_setting(mine, idle=_idle(one.mine))
        notes += notes_of.of_setting(arm["strategy"], one.mine, one.failures)
        allocated = _allocates(store, one.arm)
        for trial in one.trials[-1:]:
            told = notes_of.of_memory(one.full[trial], one.mine[trial], point["load"], allocated)
            notes += [f"{arm['strategy']}: {_at(point, words)}" for words in told]
        verdicts += [replace(verdict, reason=_at(point, verdict.reason)) for verdict in mine]
        at.append(
            {
                "address": one.arm["address"],
                "decision": decision.value,
                "pairs": len(one.trials),
                "look": look,
                "metrics": {verdict.metric: _metric_json(verdict) for verdict in mine},
                "allocated": allocated,
                **facts.facts(one.mine, payoff.slo, manifest, point),
            }
        )
    curve = []
    if len(points) > 1 and points[0]["weight"] is not None:
        look, held = _look(store, seen, payoff, planned, notes)
        curve = [judge_metric("rate", _rates(seen, points, payoff.slo), held, look, planned)]
    idle = next((_at(point, why) for one, point in zip(seen, points, strict=True) if (why := _idle(one.mine))), "")
    decision, reasons = judge_setting([*verdicts, *curve], idle=idle)
    return {
        "strategy": arm["strategy"],
        "describe": arm["describe"],
        "decision": decision.value,
        "reasons": reasons,
        "quality": quality.of(runs, manifest, arm["stack"]),
        "points": at,
        "curve": {verdict.metric: _metric_json(verdict) for verdict in curve},
    }


def _allocates(store: ResultStore, arm: Mapping[str, Any]) -> bool:
    """Whether its engine has told what it allocates for a token: else the bytes of a token are by formula."""
    return "kv_bytes_per_token" in store.load(arm["address"]).loaded()


def _at(point: Mapping[str, Any], words: str) -> str:
    return f"{words} ({point['label']})" if point["label"] else words


Values = Sequence[Mapping[str, float | None]]
"""Metrics by name, trial after trial."""


def _measured(seen: _Seen, slo: SLO) -> list[Values]:
    """Of the baseline, the baseline once more, and the setting."""
    return [[facts.measured(arm[trial], slo) for trial in seen.trials] for arm in (seen.full, seen.again, seen.mine)]


def _series(name: str, measured: Sequence[Values]) -> Series:
    return _paired(*([values[name] for values in arm] for arm in measured))


def _rates(seen: Sequence[_Seen], points: Sequence[Mapping[str, Any]], slo: SLO) -> Series:
    """By trial, the highest rate that meets the SLO. Loads that were measured on different days pair by the trials' numbers."""
    by_number = [{trials.number(trial): trial for trial in one.trials} for one in seen]
    whole = sorted(set.intersection(*map(set, by_number)))

    def sustained(number: int, arm: str) -> float | None:
        served = [getattr(one, arm)[named[number]].requests for one, named in zip(seen, by_number, strict=True)]
        rates = [_rate_of(point, requests) for point, requests in zip(points, served, strict=True)]
        if None in rates:
            return None
        met = [metrics.attainment(requests, slo) for requests in served]
        order = np.argsort([point["weight"] for point in points])
        return metrics.sustained_rate(((rates[at], met[at]) for at in order), slo.share)  # type: ignore[misc]

    return _paired(*([sustained(number, arm) for number in whole] for arm in ("full", "again", "mine")))


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
    promise: dict[str, Any] = {
        "wanted": dict(payoff.wanted),
        "alpha": payoff.alpha,
        "looks": payoff.looks,
        "slo": {**payoff.slo.limits, "share": payoff.slo.share},
    }
    pair = digest(["payoff", *(address for one in seen for address in one.addresses)], 24)
    tested, strategy = sorted(trial for one in seen for trial in one.trials), seen[0].arm["strategy"]
    look, first = store.look(pair, digest(tested), promise)
    for key in ("alpha", "looks"):
        if first[key] != promise[key]:
            why = f"as promised before the first look, not {promise[key]}"
            notes.append(f"{strategy}: gate.{key} stays {first[key]} {why}")
    if first["wanted"] != promise["wanted"]:
        then, now = _listed(first["wanted"]), _listed(payoff.wanted)
        notes.append(f"{strategy}: gate.payoff asked for {then} at the first look, now for {now}")
    if (slo := first.get("slo", promise["slo"])) != promise["slo"]:
        notes.append(
            f"{strategy}: gate.payoff.slo was {_listed(slo)} at the first look, and is now {_listed(promise['slo'])}"
        )
    return look, replace(payoff, alpha=first["alpha"], looks=first["looks"])


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items()) or "nothing"


def _idle(mine: Trials) -> str:
    """The first layer that did not act in some measurement, with the condition that it states; empty if all did."""
    missed = (one for served in mine.values() for one in served.evidence if not one.acted)
    first = next(missed, None)
    return f"{first.layer} did not act: {first.why}" if first else ""


def _metric_json(verdict: MetricVerdict) -> dict[str, Any]:
    return {**asdict(verdict), "decision": verdict.decision.value}
