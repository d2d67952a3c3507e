"""verdict.json keeps to its JSON Schema: of whole runs, of any pairs, and of runs in which little or nothing was judged."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.compare import Comparison
from harness.groups import read_run
from harness.judge import judge
from harness.parts import Part
from harness.pass_at_k import PassAtK
from harness.store import ResultStore
from harness.types import Evidence, Gate, Pair, State
from harness.verdict import CellInput, CellVerdict, judge_cell
from tests import planted
from tests.schema import SCHEMA, check


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return judged(tmp_path_factory.mktemp("schema"))


def judged(results: Path, **changes: Any) -> dict[str, Any]:
    """The verdict of the planted run with some of its groups, cells or samples left out."""
    folder = planted.plant(results)
    manifest = {**json.loads((folder / "run.json").read_text()), **changes}
    found: dict[str, Any] = json.loads(json.dumps(judge(read_run(ResultStore(results), manifest), Gate(margin=0.1))))
    return found


def test_the_schema_is_one_and_has_no_address() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == SCHEMA["properties"]["schema"]["const"] == "kvgate.verdict/1"


@pytest.mark.parametrize(
    "part, kind",
    [
        ("cell", CellVerdict),
        ("comparison", Comparison),
        ("part", Part),
        ("pass_at_k", PassAtK),
        ("evidence", Evidence),
    ],
)
def test_every_field_that_is_written_is_in_the_schema(part: str, kind: type) -> None:
    named = set(SCHEMA["$defs"][part]["required"])
    assert {field.name for field in fields(kind)} <= named == set(SCHEMA["$defs"][part]["properties"])


def test_a_run_with_every_decision(verdict: dict[str, Any]) -> None:
    check(verdict)
    assert {cell["decision"] for cell in verdict["cells"]} == set(SCHEMA["$defs"]["decision"]["enum"])


def test_fidelity_alone_and_a_run_without_groups_or_answers(tmp_path: Path) -> None:
    folder = planted.plant(tmp_path / "planted")
    groups = json.loads((folder / "run.json").read_text())["groups"]
    check(judged(tmp_path / "fidelity", groups=groups[1:]))
    unanswered = [
        {**group, "cells": [{**cell, "address": f"none{i}"} for i, cell in enumerate(group["cells"])]}
        for group in groups
    ]
    nothing = judged(tmp_path / "nothing", groups=unanswered)
    check(nothing)
    assert not any(cell["n"] for cell in nothing["cells"])
    alone = [{**group, "cells": [c for c in group["cells"] if c["role"] == "baseline"]} for group in groups]
    baseline = judged(tmp_path / "baseline", groups=alone)
    check(baseline)
    assert baseline["strategies"] == []


SCORES = st.sampled_from([(None, State.TRUNCATED), (None, State.FAILED), (0.0, State.SCORED), (1.0, State.SCORED)])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Pair, ...]:
    graded = draw(st.booleans())
    known = st.tuples(st.floats(0, 1), st.just(State.SCORED)) if graded else SCORES
    shared = draw(st.booleans())
    made = draw(st.lists(st.tuples(known, known, st.booleans()), max_size=25))
    return tuple(
        Pair(f"s{i}", f"c{i // 2}" if shared else "", a, b, a_state, b_state, acted=acted)
        for i, ((a, a_state), (b, b_state), acted) in enumerate(made)
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(pairs(), st.booleans(), st.floats(0.01, 1), st.sampled_from(["absolute", "relative"]))
def test_any_cell_that_is_judged(found: tuple[Pair, ...], fidelity: bool, margin: float, kind: Any) -> None:
    graded = any(score not in (None, 0.0, 1.0) for pair in found for score in (pair.baseline, pair.candidate))
    measures = {"kl_mean": 0.1} if fidelity else {}
    cell = CellInput("fp8", "t", "prompt", found, (), (), len(found), 1, 0.0, graded, fidelity, measures)
    facts = asdict(judge_cell(cell, Gate(margin=margin, margin_kind=kind), ("t",)))
    names = {field.name for field in fields(CellVerdict)}
    whole = SCHEMA["$defs"]["cell"]
    judged_alone = {
        **whole,
        "properties": {name: rule for name, rule in whole["properties"].items() if name in names},
        "required": sorted(names),
        "$defs": SCHEMA["$defs"],
    }
    jsonschema.Draft202012Validator(judged_alone).validate(json.loads(json.dumps(facts)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda verdict: verdict["cells"][0].update(score=1.5),
        lambda verdict: verdict["cells"][0].update(decision="MAYBE"),
        lambda verdict: verdict["cells"][0].pop("ci_low"),
        lambda verdict: verdict["cells"][0].update(ci_low=None),  # GO without an interval
        lambda verdict: verdict["cells"][0].update(extra=1),
        lambda verdict: verdict.update(schema="kvgate.verdict/2"),
        lambda verdict: verdict["strategies"][0].update(reasons="a"),
    ],
)
def test_what_is_no_verdict_is_refused(verdict: dict[str, Any], damage: Any) -> None:
    copied = json.loads(json.dumps(verdict))
    assert copied["cells"][0]["decision"] == "GO"
    damage(copied)
    with pytest.raises(jsonschema.ValidationError):
        check(copied)
