"""The report in a real browser: what a reader does with it, by mouse and by keyboard, on a desk, a phone and paper."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness import commands
from harness.places import write_atomic
from harness.report import html
from harness.report.page import build
from harness.types import well_formed
from tests import planted

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need playwright: pip install -e '.[dev]'"
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LOOKS = [(size, scheme) for size in (DESK, PHONE) for scheme in ("light", "dark")]
ATTACK = (
    "</script></title><script>window.hit=1</script><img src=x onerror='window.hit=1'><svg onload=window.hit=1>"
    "\"' onfocus=window.hit=1 autofocus x=' \x1b[31mred\x00\x07 \ud800 {{7*7}} ${window.hit=1} javascript:window.hit=1"
)
NAMES = (
    "name",
    "strategy",
    "task",
    "mode",
    "a",
    "b",
)  # by which parts of a verdict find each other: UTF-8 can hold them
KEPT = (
    "decision",
    "state",
    "baseline_state",
    "role",
    "finding",
    "schema",
    "created",
    "margin_kind",
    "test",
)  # no free texts

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("the browser tests need Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Open]:
    """Opens a report; at the end nothing may have gone wrong in it, been fetched by it, or run in it that is not its own."""
    faults: list[str] = []
    contexts = []

    def show(path: Path, size: dict[str, int] = DESK, scheme: str = "light", scripts: bool = True) -> Any:
        context = chromium.new_context(viewport=size, color_scheme=scheme, java_script_enabled=scripts)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        address = path.as_uri()
        page.on("request", lambda asked: None if asked.url.split("#")[0] == address else _note(faults, asked.url))
        page.goto(address)
        return page

    yield show
    hits = [page.evaluate("window.hit") for context in contexts for page in context.pages]
    for context in contexts:
        context.close()
    assert not faults and not any(hits), (faults, hits)


def _note(faults: list[str], url: str) -> None:
    if not url.startswith("data:image/"):
        faults.append(f"fetched {url[:200]}")


@pytest.fixture(scope="module")
def made_page(written: Any) -> Path:
    return Path(written.folder / "report.html")


def planted_page(results: Path, **asked: Any) -> Path:
    """The report of a run in a store, as ``kvgate report`` makes it."""
    folder = planted.plant(results)
    known = {"format": "json", "by": "task", "compare": [], "rescore": False, "privacy": None, "gate": {}}
    commands.report({**known, "run": "planted", "results_dir": str(results), **asked})
    return folder / "report.html"


def rendered(folder: Path, verdict: dict[str, Any], samples: pd.DataFrame) -> Path:
    """A page without pictures."""
    return Path(write_atomic(folder / "report.html", html.render(build(verdict, samples), ())))


def flips_of(page: Any, strategy: str) -> None:
    """From the matrix into the first cell of a strategy, and from there to its samples."""
    page.locator(".matrix tr", has=page.get_by_role("rowheader", name=strategy, exact=True)).locator(
        "a.square"
    ).first.click()
    page.locator("dialog[open] a[href='#samples']").click()
    page.wait_for_selector("#rows article")


def choose(page: Any, **values: str) -> None:
    for name, value in values.items():
        page.locator(f"select[name={name}]").select_option(value)


def found(page: Any) -> int:
    return int(page.locator("#found").inner_text().split()[0].replace(",", ""))


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_from_the_matrix_to_a_cell_to_a_flipped_sample(opened: Open, made_page: Path, size: Any, scheme: str) -> None:
    page = opened(made_page, size, scheme)
    page.locator("a.square").nth(9).click()
    dialog = page.locator("dialog[open]")
    assert dialog.count() == 1 and page.url.endswith("#" + dialog.get_attribute("id"))
    page.keyboard.press("Escape")
    page.wait_for_url(made_page.as_uri())
    assert page.locator("dialog[open]").count() == 0
    flips_of(page, "streaming-12")
    assert page.locator("dialog[open]").count() == 0
    assert page.locator("#rows article").count() == 20 < found(page)
    card = page.locator("#rows article").first
    assert "▼ lost" in card.inner_text() and "expected" in card.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_a_page_that_was_opened_has_read_no_sample(opened: Open, made_page: Path) -> None:
    page = opened(made_page)
    assert page.locator("#rows").inner_html() == ""
    chunks = page.locator("script.chunk")
    assert chunks.count() > 10 and page.locator("script.chunk[data-unpacked]").count() == 0
    flips_of(page, "h2o-12")
    assert page.locator("script.chunk[data-unpacked]").count() == 1


def test_the_keyboard_is_enough_and_the_focus_comes_back(opened: Open, made_page: Path) -> None:
    page = opened(made_page)
    square = page.locator("a.square").nth(5)
    square.focus()
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    assert dialog.get_attribute("id") == square.get_attribute("href")[1:]
    assert page.evaluate("document.querySelector('dialog[open]').contains(document.activeElement)")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('href')") == square.get_attribute("href")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Close").press("Enter")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate("document.activeElement.getAttribute('href')") == square.get_attribute("href")


def test_a_link_to_a_cell_opens_it(opened: Open, made_page: Path) -> None:
    page = opened(made_page)
    page.evaluate("location.hash = 'cell-2-1'")
    page.wait_for_selector("dialog#cell-2-1[open]")


def test_filters_leave_what_was_asked_for(opened: Open, made_page: Path) -> None:
    page = opened(made_page)
    page.get_by_role("button", name="Show samples").click()
    page.wait_for_selector("#rows article")
    everything = found(page)
    choose(page, strategy="streaming-12")
    choose(page, task="niah_multikey")
    page.wait_for_function("document.querySelector('#found').innerText.split(' ')[0] < 48")
    of_cell = found(page)
    choose(page, state="truncated")
    choose(page, length="8,192")
    page.wait_for_function("document.querySelector('#found').innerText.startsWith('3 ')")
    assert everything > of_cell > found(page) == 3  # i % 16 == 3 of 48, all of them of that length
    assert all("state truncated" in text for text in page.locator("#rows article").all_inner_texts())
    choose(page, depth="80 % to 100 %")
    choose(page, kind="lost")
    page.wait_for_function("!document.querySelector('#found').innerText.startsWith('3 ')")
    assert found(page) < 3


def test_many_samples_are_paged(opened: Open, made_page: Path) -> None:
    page = opened(made_page)
    page.get_by_role("button", name="Show samples").click()
    page.wait_for_selector("#rows article")
    first = page.locator("#rows h3").all_inner_texts()
    assert page.get_by_role("button", name="Previous").is_disabled()
    page.get_by_role("button", name="Next").click()
    assert "21 to 40 shown" in page.locator("#found").inner_text()
    assert set(page.locator("#rows h3").all_inner_texts()) != set(first)
    page.get_by_role("button", name="Previous").click()
    assert page.locator("#rows h3").all_inner_texts() == first


def test_what_differs_is_marked_on_either_side(opened: Open, tmp_path: Path) -> None:
    known = {"task": "t", "mode": "m", "state": "scored", "baseline_state": "scored", "expected": "4711"}
    known["excerpt"] = "so the key is 4711, she said"
    right, wrong = {"score": 1.0, "text": "the key is 4711 here"}, {"score": 0.0, "text": "the key was lost here"}
    rows = [
        {"strategy": "full", "role": "baseline", "sample_id": "fell", "baseline_score": 1.0, **right},
        {"strategy": "full", "role": "baseline", "sample_id": "rose", "baseline_score": 0.0, **wrong},
        {"strategy": "s", "role": "candidate", "sample_id": "fell", "baseline_score": 1.0, **wrong},
        {"strategy": "s", "role": "candidate", "sample_id": "rose", "baseline_score": 0.0, **right},
    ]
    cell = {"strategy": "s", "task": "t", "mode": "m", "decision": "NO-GO", "gating": True}
    verdict = {"strategies": [{"name": "s", "decision": "NO-GO"}], "cells": [cell]}
    page = opened(rendered(tmp_path, verdict, pd.DataFrame([{**known, **row} for row in rows])))
    flips_of(page, "s")
    cards = page.locator("#rows article").all()
    assert [card.locator("h3").inner_text() for card in cards] == ["▼ lost fell", "▲ gained rose"]
    marks = [[card.locator(tag).all_inner_texts() for tag in ("del", "ins", "mark")] for card in cards]
    assert marks == [[["is", "4711"], ["was", "lost"], ["4711"]], [["was", "lost"], ["is", "4711"], ["4711"]]]
    assert cards[0].locator(".sides h4").all_inner_texts() == ["Full cache", "Strategy"]
    line = "(tag) => getComputedStyle(document.querySelector(tag)).textDecorationLine"
    assert [page.evaluate(line, tag) for tag in ("#rows del", "#rows ins")] == [
        "line-through",
        "underline",
    ]  # not colour alone


def test_without_scripts_every_cell_stands_on_the_page(opened: Open, made_page: Path) -> None:
    page = opened(made_page, scripts=False)
    cells = page.locator("dialog.cell")
    assert cells.count() > 40 and all(cell.is_visible() for cell in cells.all()[:5])
    assert not page.get_by_role("button", name="Show samples").is_visible()
    assert page.locator("noscript").first.is_visible()


def test_a_printed_page_has_every_cell(opened: Open, made_page: Path) -> None:
    page = opened(made_page)
    page.locator("a.square").first.click()
    assert page.pdf().startswith(b"%PDF")
    page.keyboard.press("Escape")
    page.emulate_media(media="print")
    heights = page.evaluate(
        "[...document.querySelectorAll('dialog.cell')].map((cell) => cell.getBoundingClientRect().height)"
    )
    assert len(heights) > 40 and min(heights) > 100


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_nothing_stands_in_a_reader_s_way(opened: Open, made_page: Path, size: Any, scheme: str) -> None:
    """axe-core finds no serious fault: on the page, in a cell, and among the samples."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(made_page, size, scheme)

    def check(where: str) -> None:
        faults = [one for one in axe.run(page).response["violations"] if one["impact"] in ("serious", "critical")]
        told = [
            f"{one['id']}: {node['html'][:150]} {node['failureSummary']}" for one in faults for node in one["nodes"][:3]
        ]
        assert not faults, "\n".join([where, *told])
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], where

    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    check("the page")
    page.locator("a.square").nth(4).click()
    check("a cell")
    page.keyboard.press("Escape")
    flips_of(page, "streaming-12")
    check("samples")


def poisoned(value: Any, key: str = "") -> Any:
    """``value`` with an attack in every free text."""
    if isinstance(value, dict):
        return {name: poisoned(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, key) for item in value]
    if not isinstance(value, str) or key in KEPT:
        return value
    return well_formed(value + ATTACK) if key in NAMES else value + ATTACK


def test_hostile_texts_are_shown_and_nothing_of_them_runs(opened: Open, made: Any, tmp_path: Path) -> None:
    verdict, samples = poisoned(made.verdict()), made.samples()
    verdict["strategies"][0]["payoff"] = None
    for column in samples.select_dtypes(["object", "str"]).columns:
        if column not in KEPT:
            samples[column] = [
                well_formed(poisoned(text)) if isinstance(text, str) else text for text in samples[column]
            ]
    samples.loc[samples["sample_id"].str.startswith("niah_multikey-0003"), "text"] = "a" * 1_000_000 + ATTACK[:30]
    samples["error"], samples["excerpt"] = f"error {well_formed(ATTACK)}", f"excerpt {well_formed(ATTACK)}"
    page = opened(rendered(tmp_path, verdict, samples))
    assert page.locator("script:not(.chunk)").count() == 1 and page.locator("img[src=x], svg").count() == 0
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.locator("a.square").first.click()
    assert "<img src=x onerror=" in page.locator("dialog[open]").inner_text()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Show samples").click()
    page.wait_for_selector("#rows article")
    shown = page.locator("#rows").inner_text()
    assert all(
        text in shown for text in ("<script>window.hit=1</script>", "\\x1b[31mred", "\\ud800", "error", "excerpt")
    )
    choose(page, state="truncated")
    page.wait_for_function("document.querySelector('#rows').innerText.includes('characters …]')")
    assert max(len(text) for text in page.locator("#rows pre").all_inner_texts()) < 6000
    assert page.evaluate("document.querySelectorAll('#rows script, #rows img, #rows svg').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= DESK["width"]


def test_a_redacted_page_holds_no_text(opened: Open, tmp_path: Path) -> None:
    page = opened(planted_page(tmp_path, privacy="redact"))
    page.get_by_role("button", name="Show samples").click()
    page.wait_for_selector("#rows article")
    text = page.evaluate("document.documentElement.textContent")
    assert not [secret for secret in planted.SECRETS.values() if secret in text]
    assert "characters)" in page.locator("#rows code").first.inner_text()


def test_the_place_of_an_answer_in_its_context_is_shown(opened: Open, tmp_path: Path) -> None:
    page = opened(planted_page(tmp_path))
    flips_of(page, "unsure")
    context = page.locator("#rows article", has_text="needle_single-10").first.locator("dd pre")
    assert context.inner_text() == f"{planted.SECRETS['context']}: {planted.SECRETS['answers']} 10"
    assert context.locator("mark").inner_text() == f"{planted.SECRETS['answers']} 10"


@pytest.mark.slow
def test_the_page_of_a_run_that_was_just_made(opened: Open, kvgate: Any) -> None:
    assert kvgate.run("-m", "strategy=fp8,window").code == 0
    page = opened(kvgate.results / "runs" / "r" / "report.html", PHONE, "dark")
    assert page.locator("h1").inner_text().startswith("None of 2 strategies is GO on needle_single at a 2-point margin")
    page.locator("a.square").nth(1).click()
    told = page.locator("dialog[open]").inner_text()
    assert "How to get this cell again" in told and "name=r-" in told and "materialised" in told
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
