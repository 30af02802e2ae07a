"""What of the docs is made from the types of the documents: `python -m steptrace.document_schemas docs`.

The JSON Schemas in `schemas/`, from the structs in `documents`; in `metrics.md` the table of the figures of a step, in
`findings.md` that of the rules.
"""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace.documents.comparison import Comparison
from steptrace.documents.diff import Diff
from steptrace.documents.kept import Baseline, History
from steptrace.documents.run import RunMemory, RunRecord, Status
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.documents.summary import Summary
from steptrace.documents.verdict import Verdict
from steptrace.findings import RANK_RULES, RULES, TRACE_RULES, Rule
from steptrace.markdown import table

#: Each document by the name of its file.
DOCUMENTS: Final[dict[str, Any]] = {
    "summary": Summary,
    "comparison": Comparison,
    "diff": Diff,
    "history": History,
    "verdict": Verdict,
    "baseline": Baseline,
    "run": RunRecord,
    "status": Status,
    "memory": RunMemory,
}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a document, by the name of its file without the ending."""
    schema = msgspec.json.schema(DOCUMENTS[name])
    for described in schema["$defs"].values():  # Python up to 3.12 keeps a docstring's indent
        described["description"] = inspect.cleandoc(described["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def figure_table() -> str:
    """The figures of a step as a table for docs/metrics.md."""
    rows = [
        (f.name, f"`{f.key}`", f.unit or "count", f.better or "–", "yes" if f.needs_gpu else "no", f.definition)
        for f in STEP_FIGURES
    ]
    return table(("Figure", "Key", "Unit", "Better", "Needs a GPU", "Definition"), rows)


def rule_table() -> str:
    """The rules of findings as a table for docs/findings.md, those on the same cause in one row."""
    found: dict[str, tuple[Rule[Any], list[str]]] = {}
    for what, rules in (("trace", TRACE_RULES), ("ranks", RANK_RULES), ("study", RULES)):
        for rule in rules:
            found.setdefault(rule.name, (rule, []))[1].append(what)
    head = ("Rule", "Looks at", "Fires when", "Source of the thresholds", "Advice", "Counter-check", "Study")
    return table(head, [_row(rule, where) for rule, where in found.values()])


def _row(rule: Rule[Any], where: list[str]) -> tuple[str, ...]:
    causes = ", ".join(f"`{cause}`" for cause in rule.explained_by)
    condition = rule.condition + (f"; left out where explained by {causes}" if causes else "")
    study = f"`{rule.study}`" if rule.study else "–"
    return f"`{rule.name}`", ", ".join(where), condition, rule.basis, rule.advice, rule.counter_check, study


#: The pages that hold a table, each behind a comment that says where it is made.
TABLES: Final[dict[str, Callable[[], str]]] = {"metrics.md": figure_table, "findings.md": rule_table}


def with_table(text: str, made: str) -> str:
    """The text of a page with its table made anew."""
    before, begin, rest = text.partition(" made by steptrace.document_schemas -->\n")
    _, end, after = rest.partition("<!-- end -->")
    return before + begin + made + end + after


def write(docs: Path) -> None:
    """Write every schema, and the tables."""
    folder = docs / "schemas"
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.schema.json").write_text(json.dumps(schema_of(name), indent=1) + "\n", encoding="utf-8")
    for name, made in TABLES.items():
        page = docs / name
        page.write_text(with_table(page.read_text(encoding="utf-8"), made()), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
