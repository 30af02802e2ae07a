"""Which source line runs which operator: one more step, watched operator by operator.

A Kineto trace names the function around an operator, but only with the line of its `def`. Here one step runs under an
`OpLineRecorder`, which writes the line of the first frame that is neither PyTorch's nor the pipeline's own
(`schema.OP_LINES`). The step is slow and is never timed.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from steptrace.files import replace_atomically
from steptrace.record import write_sources
from steptrace.schema import OP_LINES, validate, write_table
from steptrace.train.loop import Training, train_step
from steptrace.train.op_recorder import OpLine, OpLineRecorder, trace_file_name, why_incomplete

LINES_FILE = "op_lines.parquet"


def record_op_lines(training: Training, out: Path) -> tuple[str, ...]:
    """Run one more step and write `op_lines.parquet` and `sources.json` (file -> text) into `out`.

    Returns warnings: a step that cannot be watched to its end leaves the lines seen so far.
    """
    recorder = OpLineRecorder()
    warnings: tuple[str, ...] = ()
    try:
        with recorder:
            train_step(training)
    except Exception as error:
        # Of any kind: not everything works under a dispatch mode, and a whole run's timings must not depend on it.
        warnings = (why_incomplete(error),)
    names = {line.site.path: trace_file_name(line.site.path) for line in recorder.lines if line.site}
    frame = op_lines_table(recorder.lines, names)
    replace_atomically(out / LINES_FILE, lambda temporary: write_table(frame, temporary))
    texts = {
        name: Path(path).read_text(encoding="utf-8") for path, name in sorted(names.items()) if Path(path).is_file()
    }
    write_sources(out, texts)
    return warnings


def op_lines_table(lines: list[OpLine], names: Mapping[str, str]) -> pd.DataFrame:
    """The `OP_LINES` table of `lines`, with the files called as `names` (absolute path -> name in the trace) says."""
    sites = [line.site for line in lines]
    frame = pd.DataFrame(
        {
            "order": range(len(lines)),
            "op": [line.op for line in lines],
            "label": [line.label for line in lines],
            "phase": [line.phase for line in lines],
            "file": [names[site.path] if site else None for site in sites],
            "line": pd.array([site.line if site else None for site in sites], dtype="Int64"),
            "function": [site.function if site else None for site in sites],
        }
    )
    return validate(frame, OP_LINES)
