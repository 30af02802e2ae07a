"""What of the docs is made from the types of the documents: `python -m steptrace.document_schemas docs`.

The JSON Schemas in `schemas/`, from the structs in `documents`, and the table of the figures of a step in `metrics.md`.
"""

import inspect
import json
import sys
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
        f"| {one.name} | `{one.key}` | {one.unit or 'count'} | {one.better or '–'} "
        f"| {'yes' if one.needs_gpu else 'no'} | {one.definition} |"
        for one in STEP_FIGURES
    ]
    head = ["| Figure | Key | Unit | Better | Needs a GPU | Definition |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def with_figure_table(text: str) -> str:
    """The text of docs/metrics.md with its table of figures made anew."""
    before, begin, rest = text.partition("<!-- figures of a step: made by steptrace.document_schemas -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    return before + begin + figure_table() + end + after


def write(docs: Path) -> None:
    """Write every schema, and the table of figures."""
    folder = docs / "schemas"
    folder.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (folder / f"{name}.schema.json").write_text(json.dumps(schema_of(name), indent=1) + "\n", encoding="utf-8")
    metrics = docs / "metrics.md"
    metrics.write_text(with_figure_table(metrics.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
