"""Every kind of page under axe-core, in a real browser: nothing that it calls moderate, serious or critical."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

LOOKS = [(1440, "light"), (390, "dark")]
#: Each kind of page on a laptop or a phone, in light or dark; those whose look varies most on both.
PAGES = [
    ("gpu", 1440, "dark"), ("gpu", 390, "light"), ("trace", 1440, "light"), ("cpu_trace", 390, "dark"),
    ("study", 1440, "light"), ("matrix", 390, "dark"), ("index", 1440, "dark"),
    ("results", 390, "dark"), ("diff", 1440, "light"),
]  # fmt: skip
DOCS = Path(__file__).parents[2] / "build" / "docs" / "index.html"


def violations(tab: Any) -> list[str]:
    """What axe-core finds with every folded block open: rule, impact, and the first element that breaks it."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    tab.evaluate("document.querySelectorAll('details').forEach((block) => { block.open = true; })")
    tab.evaluate((files(axe) / "axe.min.js").read_text(encoding="utf-8"))
    broken = tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [f"{v['id']} ({v['impact']}): {v['nodes'][0]['html']}" for v in broken if v["impact"] != "minor"]


@pytest.mark.parametrize(("name", "width", "scheme"), PAGES)
def test_nothing_stands_in_the_way(visit, pages, name, width, scheme):
    tab, *_ = visit(pages[name], width, scheme, bypass_csp=True)
    assert violations(tab) == []


def test_what_breaks_a_rule_is_found(visit, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text('<!DOCTYPE html><html lang="en"><title>x</title><main><h1>x</h1><img src="data:,"></main></html>')
    tab, *_ = visit(page, 1440, bypass_csp=True)
    assert [text.split()[0] for text in violations(tab)] == ["image-alt"]


@pytest.mark.skipif(not DOCS.is_file(), reason="the docs are not built: make docs")
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("name", ["index", "findings", "tutorial"])  # with tables and code that scroll
def test_nothing_serious_in_the_docs(visit, name, width, scheme):
    tab, *_ = visit(DOCS.with_name(f"{name}.html"), width, scheme, bypass_csp=True)
    assert [text for text in violations(tab) if "(moderate)" not in text] == []
