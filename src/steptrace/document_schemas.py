"""What of the docs is made from the types of the documents: `python -m steptrace.document_schemas docs`.

The JSON Schemas in `schemas/`, from `documents`, `record` and `memory_record` (what a row of a table means, the table
says), and the table of the figures of a step in `metrics.md`.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace.analysis.common import tables_gpu, tables_launch
from steptrace.analysis.communication import tables as communication
from steptrace.analysis.input import tables as input_tables
from steptrace.analysis.memory import tables as memory
from steptrace.analysis.optimizer import tables as optimizer
from steptrace.documents import rows
from steptrace.documents.base import Document
from steptrace.documents.baseline import Baseline
from steptrace.documents.comparison import Comparison
from steptrace.documents.memory import RunMemory
from steptrace.documents.run import RunRecord, Status
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.documents.summary import Summary
from steptrace.documents.verdict import Verdict
from steptrace.schema import Table

#: Each document by the name of its file.
DOCUMENTS: Final[dict[str, Any]] = {
    "summary": Summary,
    "comparison": Comparison,
    "verdict": Verdict,
    "baseline": Baseline,
    "run": RunRecord,
    "status": Status,
    "memory": RunMemory,
}

#: The table that a row of summary.json comes from.
TABLE_OF: Final[dict[type[Document], Table]] = {
    rows.QualityCheck: tables_gpu.QUALITY_CHECKS,
    rows.TemporalRow: tables_gpu.TEMPORAL,
    rows.StreamIdle: tables_gpu.IDLE_BY_STREAM,
    rows.IdleEnding: tables_gpu.IDLE_ENDINGS,
    rows.IdleGap: tables_gpu.IDLE_GAPS,
    rows.KernelName: tables_gpu.KERNEL_NAMES,
    rows.KernelType: tables_gpu.KERNEL_TYPES,
    rows.KernelFormat: tables_gpu.KERNEL_FORMATS,
    rows.TopOperator: tables_gpu.TOP_OPERATORS,
    rows.LaunchCall: tables_launch.LAUNCH_CALLS,
    rows.Queue: tables_launch.QUEUES,
    rows.Copy: tables_launch.COPIES,
    rows.Label: tables_launch.ANNOTATION_TIMES,
    rows.OptimizerCall: optimizer.OPTIMIZER_CALLS,
    rows.InputWaitOfStep: input_tables.INPUT_WAITS,
    rows.AtPeak: memory.MEMORY_AT_PEAK,
    rows.RankWait: communication.RANK_WAITS,
    rows.RankKernel: communication.RANK_KERNELS,
}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a document, by the name of its file without the ending."""
    schema = msgspec.json.schema(DOCUMENTS[name])
    defined = schema["$defs"]
    for kind, table in TABLE_OF.items():
        for key, entry in defined.get(kind.__name__, {}).get("properties", {}).items():
            column = next(column for column in table.columns if column.name == key)
            entry["description"] = column.doc
            if column.unit is not None:
                entry["unit"] = column.unit
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
