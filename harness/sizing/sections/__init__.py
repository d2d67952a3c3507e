"""The parts of a plan, in the order in which they are told: a question each, a table and one sentence of advice.

A new part is one module with ``section(case)``, and one line here. It returns None where it has nothing to say of this case.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.sizing.case import Case
from harness.sizing.section import Section
from harness.sizing.sections import (
    capacity,
    coding,
    cxl,
    decode,
    disaggregation,
    layers,
    near_storage,
    object_store,
    overlap,
    paging,
    prefill,
    reload,
    reuse,
    sites,
    small,
    staged,
    tiers,
    walk,
)

SECTIONS: dict[str, Callable[[Case], Section | None]] = {
    "layers": layers.section,
    "capacity": capacity.section,
    "paging": paging.section,
    "decode": decode.section,
    "prefill": prefill.section,
    "reuse": reuse.section,
    "tiers": tiers.section,
    "reload": reload.section,
    "coding": coding.section,
    "overlap": overlap.section,
    "small": small.section,
    "staged": staged.section,
    "near_storage": near_storage.section,
    "object_store": object_store.section,
    "cxl": cxl.section,
    "sites": sites.section,
    "disaggregation": disaggregation.section,
    "walk": walk.section,
}
