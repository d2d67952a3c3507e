"""The verdict as JUnit XML, which CI systems show as tests: a suite for each strategy, a case for each task and mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from harness.report import sentences
from harness.report.format import missing, visible
from harness.report.outlook import Cell, Outlook
from harness.types import Decision

NUMBERS = ("n", "baseline", "score", "delta", "ci_low", "ci_high", "margin", "alpha", "p_value", "n_needed", "look")
NUMBERS += ("flip_rate", "noise_flip_rate", "control_delta")


def render(verdict: Mapping[str, Any]) -> bytes:
    """Cases that are GO pass, NO-GO on a gating task fails, all others are skipped with their decision as the message.

    Times are left out: a verdict has none. Numbers are those of verdict.json, digit by digit; what is null has no property.
    """
    outlook = Outlook(verdict)
    root = ElementTree.Element("testsuites", name=visible(str(verdict.get("name") or "kvgate")))
    for strategy in outlook.strategies:
        _suite(root, outlook, strategy)
    _count(root)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _suite(root: ElementTree.Element, outlook: Outlook, strategy: Mapping[str, Any]) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=visible(strategy["name"]))
    gate = outlook.gate
    _properties(
        suite,
        {
            "decision": strategy["decision"],
            "stack": strategy.get("stack"),
            "model": outlook.model.get("id"),
            "seed": outlook.verdict.get("seed"),
            **{f"gate.{name}": gate.get(name) for name in ("margin", "margin_kind", "alpha", "looks")},
        },
    )
    for cell in outlook.of(strategy["name"]):
        _case(suite, cell)
    _count(suite)


def _case(suite: ElementTree.Element, cell: Cell) -> None:
    name = visible(f"{cell['task']} [{cell['mode']}]")
    case = ElementTree.SubElement(suite, "testcase", classname=visible(cell["strategy"]), name=name)
    facts = {name: cell.get(name) for name in NUMBERS}
    _properties(case, {"decision": cell["decision"], "gating": cell.get("gating"), **facts, **(cell["fidelity"] or {})})
    decision = Decision(cell["decision"])
    if decision is Decision.GO:
        return
    reasons = visible("\n".join(cell.get("reasons") or ()) or sentences.MEANING[decision])
    if decision is Decision.NO_GO and cell.get("gating"):
        ElementTree.SubElement(case, "failure", type=decision, message=decision).text = reasons
    else:
        aside = "" if cell.get("gating") or decision is Decision.MEASURED else ", not gating"
        ElementTree.SubElement(case, "skipped", message=f"{decision}{aside}: {reasons}")


def _properties(parent: ElementTree.Element, facts: Mapping[str, Any]) -> None:
    known = {name: value for name, value in facts.items() if not missing(value)}
    within = ElementTree.SubElement(parent, "properties")
    for name, value in known.items():
        text = value if isinstance(value, str) else json.dumps(value)
        ElementTree.SubElement(within, "property", name=visible(name), value=visible(text))


def _count(parent: ElementTree.Element) -> None:
    """How many cases there are, failed and were skipped, as JUnit wants them told."""
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        parent.set(name, str(sum(1 for _ in parent.iter(tag))))
    parent.set("errors", "0")
