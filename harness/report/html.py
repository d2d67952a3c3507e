"""The report as one HTML file: style, script and pictures inside, nothing fetched, all text escaped.

The policy in its head lets a browser run the one script of this folder, known by its hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from harness.report.packed import pack
from harness.report.page import Page, badge
from harness.report.plots import Plot
from harness.report.tables import DECISION


def render(page: Page, pictures: Sequence[Plot]) -> str:
    """The page with its pictures embedded."""
    style, script = (files("harness.report").joinpath(name).read_text("utf-8") for name in ("style.css", "report.js"))
    policy = f"default-src 'none'; img-src data:; style-src {_known(style)}; script-src {_known(script)}"
    return template("template.html.j2").render(
        page=page,
        pictures=pictures,
        samples=pack(page.cells),
        decision_column=DECISION,
        policy=f"{policy}; base-uri 'none'; form-action 'none'",
        style=Markup(style),
        script=Markup(script),
    )


def _known(text: str) -> str:
    """How a policy names an inline text that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


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
    return environment.get_template(name)
