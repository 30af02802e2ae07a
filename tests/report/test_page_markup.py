"""A page runs its own script and nothing else, and every column that a section names is declared with its meaning."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from steptrace import report
from steptrace.report import diff, notebook, results  # noqa: F401  (with them all kinds of documents are there)
from steptrace.report.page.markup import definitions, page


def test_the_policy_names_the_script_that_is_there():
    html = page("x", "<p>body</p>", [])
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert f"default-src 'none'; script-src 'sha256-{digest}';" in policy[1]
    assert html.index("Content-Security-Policy") < html.index("<style>")


_SECTIONS = "".join(
    path.read_text(encoding="utf-8")
    for path in Path(report.__file__).parent.rglob("*")
    if path.suffix in (".py", ".j2")
)
NAMES = sorted(set(re.findall(r'"([A-Z][a-zA-Z]+\.[a-z]\w+)"', _SECTIONS)))


def test_sections_name_columns():
    assert {"StepTimes.median", "IdleGap.cause", "RowChange.renamed_from"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_declared(name):
    (definition,) = definitions([name])
    assert definition.term
    assert definition.meaning.endswith(".")
