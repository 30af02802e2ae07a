"""The rows of the tables that a run writes."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import key


class StepOfRun(Document, frozen=True):
    """One training step of a run, in the order they ran (steps.parquet)."""

    phase: Annotated[str, field("`warmup`, `timed` (unprofiled, the only source of step times) or `profiled`.")]
    step: Annotated[int, key("", "Index of the step within the run, from 0.")]
    step_ns: Annotated[int, field("Time of the step: CUDA events on a GPU, the monotonic clock on a CPU.")]
    loader_wait_ns: Annotated[
        int | None, field("Host time in the loader's `__next__` for this step; null without a DataLoader.")
    ]
    loss: Annotated[float | None, field("Loss of the step, read after the phase ended.")]


class SectionOfRun(Document, frozen=True):
    """One section of one step in a pass of its own, with a sync around each (sections.parquet)."""

    step: Annotated[int, key("", "Index of the step within the pass, from 0.")]
    section: Annotated[str, key("", "`copy data`, `forward`, `calc loss`, `backward` or `optimizer`.")]
    section_ns: Annotated[int, field("Host time from sync to sync.")]


class InputOfRun(Document, frozen=True):
    """What loading one batch was made of, in a pass of its own (input.parquet). The times are taken where the work is
    done: with workers, those of several batches overlap, and only the wait holds a step up."""

    batch: Annotated[int, key("", "Index of the batch within the pass, from 0.")]
    worker: Annotated[int | None, field("Worker process that loaded it; null for the main process.")]
    wait_ns: Annotated[int, field("Host time spent in the loader's `__next__` for it.")]
    fetch_ns: Annotated[int, field("Time in the data set, for all samples of the batch.")]
    collate_ns: Annotated[int, field("Time in the collate function.")]
    pin_ns: Annotated[int | None, field("Time to copy it to pinned memory; null if the loader does not pin.")]
    copy_ns: Annotated[int | None, field("Time to copy it to the device, from sync to sync; null on a CPU.")]


class OpLine(Document, frozen=True):
    """One operator of a watched training step, or a call that waits, with the source line that called it.

    The rows of op_lines.parquet.
    """

    step: Annotated[int, key("", "Number of the watched step, from 0.")]
    order: Annotated[int, key("", "Position of the operator within the step, from 0.")]
    op: Annotated[
        str,
        field("Name of the operator without its overload, or of the call that waits, as in a trace: `aten::index`."),
    ]
    label: Annotated[str | None, field("Innermost `record_function` label around the call.")]
    phase: Annotated[
        str | None, field("`backward` in autograd's engine, else the outermost label if a part of the step.")
    ]
    file: Annotated[
        str | None,
        field("File of the first frame outside PyTorch and steptrace, of backward work the forward operator's."),
    ]
    line: Annotated[int | None, field("Line of the call in `file`, from 1.")]
    function: Annotated[str | None, field("Name of the function that the line stands in.")]
    program_file: Annotated[str | None, field("Of a line in a library: file of the program's line that leads there.")]
    program_line: Annotated[int | None, field("That line.")]
