"""How long pages are, in a real browser: at most eight screens of a phone and four sheets of A4."""

import re
from pathlib import Path
from typing import Any

import pytest

from steptrace.findings import with_trace_findings
from steptrace.report.trace import page as trace_page

pytestmark = pytest.mark.browser

PHONE = (390, 844)
SCREENS, SHEETS = 8, 4


def screens(visit: Any, page: Path) -> float:
    """The length of a page on a phone, nothing unfolded, in screens."""
    tab, *_ = visit(page, PHONE[0])
    assert tab.evaluate("document.querySelectorAll('details').length")
    return float(tab.evaluate("document.documentElement.scrollHeight")) / PHONE[1]


def sheets(visit: Any, page: Path) -> int:
    """The number of A4 sheets that it prints on."""
    tab, *_ = visit(page, 1280)
    return len(re.findall(rb"/Type\s*/Page\b", tab.pdf(format="A4")))


@pytest.mark.parametrize("name", ["study", "gpu", "cpu", "trace"])
def test_a_page_is_short(visit, pages, name):
    assert screens(visit, pages[name]) <= SCREENS
    assert 1 <= sheets(visit, pages[name]) <= SHEETS


def test_the_page_of_a_recorded_trace_is_short(visit, recorded_summary, tmp_path):
    trace_page.write(with_trace_findings(recorded_summary("nccl")), tmp_path / "page.html")
    assert screens(visit, tmp_path / "page.html") <= SCREENS
    assert sheets(visit, tmp_path / "page.html") <= SHEETS
