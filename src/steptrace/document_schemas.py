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

from steptrace.documents.column import Subject, columns_of, subjects_of
from steptrace.documents.compared import ComparedResults
from steptrace.documents.comparison import Comparison
from steptrace.documents.diff import Diff
from steptrace.documents.run import RunMemory, RunRecord, Status
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.documents.verdict import Verdict
from steptrace.findings import RANK_RULES, STUDY_RULES, TRACE_RULES, Rule
from steptrace.markdown import table

#: Each document by the name of its file.
DOCUMENTS: Final[dict[str, Any]] = {
    "summary": Summary,
    "comparison": Comparison,
    "diff": Diff,
    "compare": ComparedResults,
    "verdict": Verdict,
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


def subject_tables() -> str:
    """What a trace's page says, subject by subject, with the columns of its table, for docs/metrics.md."""
    return "\n".join(_of_subject(subject) for subject in subjects_of(TraceSummary))


def _of_subject(subject: Subject) -> str:
    row = " ".join((subject.kind.__doc__ or "").split())
    over_runs = {"none": "first run", "same": "if equal"}
    columns = [
        (
            c.heading or "–",
            f"`{c.name}`",
            c.unit or "–",
            "key" if c.is_key else over_runs.get(c.runs or "", "median" if c.is_number else "first run"),
            c.meaning,
        )
        for c in columns_of(subject.kind)
        if c.dtype is not None
    ]
    head = ("Column", "Key", "Unit", "Over runs", "Meaning")
    return f"### {subject.heading}: `{subject.name}`\n\n{row}\n\n{table(head, columns)}"


def rule_table() -> str:
    """The rules of findings as a table for docs/findings.md, those on the same cause in one row."""
    found: dict[str, tuple[Rule[Any], list[str]]] = {}
    for what, rules in (("trace", TRACE_RULES), ("ranks", RANK_RULES), ("study", STUDY_RULES)):
        for rule in rules:
            found.setdefault(rule.name, (rule, []))[1].append(what)
    head = ("Rule", "Looks at", "Fires when", "Source of the thresholds", "Advice", "Counter-check", "Study")
    return table(head, [_row(rule, where) for rule, where in found.values()])


def _row(rule: Rule[Any], where: list[str]) -> tuple[str, ...]:
    causes = ", ".join(f"`{cause}`" for cause in rule.explained_by)
    condition = rule.condition + (f"; left out where explained by {causes}" if causes else "")
    study = f"`{rule.study}`" if rule.study else "–"
    return f"`{rule.name}`", ", ".join(where), condition, rule.basis, rule.advice, rule.counter_check, study


#: By page and place what is made: from the comment `<!-- PLACE: made by ... -->` to the next `<!-- end -->`.
TABLES: Final[dict[tuple[str, str], Callable[[], str]]] = {
    ("metrics.md", "figures of a step"): figure_table,
    ("metrics.md", "subjects of a trace"): subject_tables,
    ("findings.md", "rules"): rule_table,
}


def with_table(text: str, place: str, made: str) -> str:
    """The text of a page with what stands at one place made anew."""
    before, begin, rest = text.partition(f"<!-- {place}: made by steptrace.document_schemas -->\n")
    _, end, after = rest.partition("<!-- end -->")
    return before + begin + made + end + after


def write(docs: Path) -> None:
    """Write every schema, and the tables."""
    folder = docs / "schemas"
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.schema.json").write_text(json.dumps(schema_of(name), indent=1) + "\n", encoding="utf-8")
    for (name, place), made in TABLES.items():
        page = docs / name
        page.write_text(with_table(page.read_text(encoding="utf-8"), place, made()), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
