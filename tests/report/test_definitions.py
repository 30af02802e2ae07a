"""Every column that a section names is declared, with a heading and a sentence on what it means."""

import re
from pathlib import Path

import pytest

from steptrace import report
from steptrace.report import diff, notebook, results  # noqa: F401  (with them all kinds of documents are there)
from steptrace.report.page.markup import definitions

_SECTIONS = "".join(
    path.read_text(encoding="utf-8")
    for path in Path(report.__file__).parent.rglob("*")
    if path.suffix in (".py", ".j2") and path.name != "definitions.py"
)
NAMES = sorted(set(re.findall(r'"([A-Z][a-zA-Z]+\.[a-z]\w+)"', _SECTIONS)))


def test_sections_name_columns() -> None:
    assert {"StepTimes.median", "IdleGap.cause", "RowChange.renamed_from"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_declared(name: str) -> None:
    (definition,) = definitions([name])
    assert definition.term
    assert definition.meaning.endswith(".")
