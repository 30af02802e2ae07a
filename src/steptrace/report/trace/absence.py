"""Why a trace has nothing to say of a subject, in words."""

from collections.abc import Mapping
from typing import Final

from steptrace.documents.subject import Absence, Subject
from steptrace.documents.summary import TraceSummary

#: By code what the trace lacks, and how it is recorded.
WORDS: Final[Mapping[Absence, str]] = {
    "no_gpu_work": "the trace holds no GPU activity",
    "gpu_records_lost": "too many of the GPU's records are missing",
    "neither_gpu_work_nor_labelled_steps": "the trace holds neither GPU activity nor labelled steps",
    "fewer_than_two_gpu_activities": "the trace holds fewer than two GPU activities",
    "no_runtime_calls": "the trace holds no call into a GPU's runtime",
    "no_loader_label": "the trace holds no label of a data loader",
    "no_collective": "the trace holds no collective",
    "no_python_frames": "the trace holds no Python frames; the profiler records them with `with_stack=True`",
    "no_input_sizes": "the trace holds no sizes of inputs; the profiler records them with `record_shapes=True`",
    "no_data_sheet": "steptrace has no data sheet of {device_name}",
    "no_gpu_name": "the trace does not name its GPU",
    "no_operators_labels_or_gpu_work": "the trace holds no operators, labels or GPU work",
    "no_host_event": "the trace holds no host event",
    "no_label": "the trace holds no label",
    "no_repeated_sequence": "no operator or label launched the same row of two or more kernels more than once",
    "no_linked_launch": "no GPU activity has its launch in the trace",
    "one_stream": "all GPU work ran on one stream",
    "no_copy": "the trace holds no copy and no memory set",
    "no_allocations": "the trace holds no allocations; the profiler records them with `profile_memory=True`",
    "nothing_checked": "nothing was checked",
    "no_steps_with_operators": "the trace marks no steps with operators in them",
}


def why_absent(trace: TraceSummary, subject: Subject) -> Absence | None:
    """Why there is nothing to show of a subject; None where that is no loss."""
    if subject.needs_gpu and not trace.gpu_measured:
        return "gpu_records_lost" if trace.quality.lost else "no_gpu_work"
    return trace.absent.get(subject.name, subject.absent)


def in_words(absence: Absence | None, trace: TraceSummary) -> str:
    """A reason in words; empty without one."""
    return "" if absence is None else WORDS[absence].format(device_name=trace.device_name)
