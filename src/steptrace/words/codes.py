"""The words for codes: in tables on pages, and within sentences."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from steptrace.words.quality import TITLES

if TYPE_CHECKING:
    from steptrace.documents.communication import ExpectedBy
    from steptrace.documents.idle import HostActivity
    from steptrace.documents.roofline import SlowCause
    from steptrace.documents.subject import Absence

#: Likely causes of slow calls.
SLOW_CAUSES: Final[Mapping["SlowCause", str]] = {
    "misaligned_sizes": "sizes that are not multiples of 8",
    "strided_inputs": "strided inputs",
    "small_calls": "too little work per call",
    "few_blocks": "few blocks",
}
#: What shares are of in a trace that marks no steps: the time from the first GPU work to the last.
GPU_SPAN: Final = "the GPU's span"
#: What the host does while the GPU is idle.
HOST_ACTIVITIES: Final[Mapping["HostActivity", str]] = {
    "outside_operators": "outside operators",
    "python": "in Python between operators",
    "operators": "in operators",
    "runtime_calls": "in calls into the GPU's runtime",
}
#: The basis of the expected time of all-reduces.
EXPECTED_BY: Final[Mapping["ExpectedBy", str]] = {
    "given": "at the bandwidth that was named",
    "published": "by NCCL's published times on this GPU, within one machine",
    "nvlink": "by NCCL's published times on another GPU, scaled to the links between GPUs of this kind",
    "pcie": "by NCCL's published times on another GPU, scaled to this one's PCIe",
}
#: What a trace lacks, so that there is nothing to say of a subject, and how it is recorded.
ABSENCES: Final[Mapping["Absence", str]] = {
    "no_gpu_work": "the trace holds no GPU activity",
    "gpu_records_lost": "too many of the GPU's records are missing",
    "neither_gpu_work_nor_labelled_steps": "the trace holds neither GPU activity nor labelled steps",
    "fewer_than_two_gpu_activities": "the trace holds fewer than two GPU activities",
    "no_runtime_calls": "the trace holds no call into a GPU's runtime",
    "launches_lost": "too many of the host's calls that launched the GPU's work are missing",
    "waits_lost": "calls that wait for the GPU are missing",
    "unknown_runtime": "nobody knows which calls of this GPU's runtime wait for it",
    "no_loader_label": "the trace holds no label of a data loader",
    "no_collective": "the trace holds no collective",
    "no_python_frames": "the trace holds no Python frames; the profiler records them with `with_stack=True`",
    "no_module_frames": "the trace holds no frames of modules; the profiler records them with `with_stack=True`",
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
#: The words for the codes of a column, by the type of its rows and its name.
_OF_COLUMNS: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("QualityCheck", "check"): {str(code): title for code, title in TITLES.items()},
    ("OperatorRoofline", "because"): {str(code): cause for code, cause in SLOW_CAUSES.items()},
}


def words_of_column(row_type: str, column: str) -> Mapping[str, str]:
    """The words for the codes of a column; empty for a column without codes.

    Args:
        row_type: the name of the type of the rows.
        column: the column's name.
    """
    return _OF_COLUMNS.get((row_type, column), {})


def absence_text(absence: "Absence | None", device_name: str | None) -> str:
    """What a trace lacks, in words; empty without a code.

    Args:
        absence: the code.
        device_name: the name of the trace's GPU.
    """
    return "" if absence is None else ABSENCES[absence].format(device_name=device_name)
