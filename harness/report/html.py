"""The report as one HTML file: styles and pictures inside, nothing fetched, no script, all text escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from harness.report.page import Page, badge
from harness.report.plots import Plot
from harness.report.tables import DECISION


def render(page: Page, pictures: Sequence[Plot]) -> str:
    """The page with its pictures embedded."""
    return template("template.html.j2").render(page=page, pictures=pictures, decision_column=DECISION)


def template(name: str) -> Template:
    """A page of this folder; whatever it shows is escaped."""
    environment = Environment(
        loader=PackageLoader("harness.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["badge"] = badge
    environment.filters["slug"] = lambda decision: decision.lower()
    environment.filters["data_uri"] = lambda png: "data:image/png;base64," + base64.b64encode(png).decode()
    return environment.get_template(name)
