"""Which source line runs which operator: one more step, watched operator by operator.

A Kineto trace names the function around an operator, but only with the line of its `def`. Here one step runs under an
`OpLineRecorder`, which writes the line of the first frame that is neither PyTorch's nor the pipeline's own
(`schema.OP_LINES`). The step is slow and is never timed.
"""

from pathlib import Path

from steptrace.record import write_op_lines, write_sources
from steptrace.train.loop import Training, train_step
from steptrace.train.op_recorder import OpLineRecorder, why_incomplete


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
    write_op_lines(out, recorder.rows())
    write_sources(out, recorder.sources())
    return warnings
