"""What ``kvgate bench`` measured of a strategy that a run judges: the other gate, beside its quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness import manifest as manifests
from harness.types import canonical

Benches = Sequence[tuple[Mapping[str, Any], ...]]
"""bench.json and payoff.json of each timed run."""


def of(benches: Benches, manifest: Mapping[str, Any], stack: Mapping[str, Any]) -> dict[str, Any] | None:
    """The newest measurement of the same layers on the same weights, the same engine's first; None if there is none."""
    found = (
        (bench, one)
        for bench, payoff in benches
        if "points" in bench
        # a timed run that goes on under an old name has an older one's figures beside it
        and bench["created"] == payoff["created"]
        and bench["model"]["weights_sha"] == manifest["model"]["weights_sha"]
        for one in payoff["candidates"]
        if one["strategy"] in _named(bench, stack)
    )
    best = manifests.nearest(found, manifest)
    return best and _told(*best)


def _named(bench: Mapping[str, Any], stack: Mapping[str, Any]) -> set[str]:
    """What the timed run calls these layers."""
    arms = bench["points"][0]["arms"]
    return {
        arm["strategy"] for arm in arms if arm["role"] == "candidate" and canonical(arm["stack"]) == canonical(stack)
    }


def _told(bench: Mapping[str, Any], candidate: Mapping[str, Any]) -> dict[str, Any]:
    """The decision, and by load the gains that were measured, with the limits of each."""
    return {
        "run": bench["name"],
        "engine": bench["engine"]["name"],
        "decision": candidate["decision"],
        "points": [
            {
                "label": point["label"] or point["describe"],
                "gains": {
                    name: {end: metric["gain"][end] for end in ("mean", "low", "high")}
                    for name, metric in at["metrics"].items()
                    if metric["gain"]["pairs"]
                },
            }
            for point, at in zip(bench["points"], candidate["points"], strict=True)
        ],
    }
