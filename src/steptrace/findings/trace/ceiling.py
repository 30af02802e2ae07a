"""A finding's ceiling, capped by what the trace's dependencies say of its class of work.

A rule's own ceiling is what its cause takes. Were all work of that class gone, a step may yet be hardly shorter, since
something else takes as long: then nothing done about the cause can save more. What is saved counts over all steps
(`saved_ns` of `critical_path`): without a wait the host runs ahead of the GPU, into the next step.

Rules on a GPU that waits for the host are not capped by a class: the same instant may be the host's on one path and a
launch's latency on another, so that either alone gone saves less than both.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from steptrace.documents.finding import Finding
from steptrace.findings.trace.window import Window
from steptrace.format import duration

#: Below this share of a step nothing can be distinguished from noise (the default noise floor).
NOTHING_SHARE: Final = 0.01

#: The class of the critical path that a rule's remedy makes less of.
CLASS_OF: Final[Mapping[str, str]] = {
    "input_bound": "loader",
    "sync_bound": "sync",
    "syncs_together": "sync",
    "copy_bound": "memory",
    "pageable_copies": "memory",
    "tensor_cores_unused": "compute",
    "fp32_where_bf16_fits": "compute",
    "exposed_communication": "comm",
    "missing_overlap": "comm",
    "small_buckets": "comm",
    "redundant_all_reduce": "comm",
}
_IN_WORDS: Final[Mapping[str, str]] = {
    "loader": "any wait for the data loader",
    "sync": "any wait for the GPU",
    "memory": "any copy or set of memory",
    "compute": "any compute",
    "comm": "any communication",
}


def path_saves(window: Window, rule: str) -> float | None:
    """What a step of all would be shorter by without the class that a rule is about; None where nothing says."""
    name = CLASS_OF.get(rule)
    if rule == "input_bound" and window.entry.input.source == "section":
        return None  # the path knows PyTorch's loaders only
    path = window.entry.critical_path
    saved = [] if path is None else [row.saved_ns for row in path.classes if row.class_ == name]
    return float(saved[0]) if saved and saved[0] is not None else None


def cap_by_critical_path(finding: Finding, window: Window) -> Finding:
    """The finding with its ceiling at most what the step would be shorter by without its class, and why if less."""
    saves, share = path_saves(window, finding.rule), finding.cost_share
    if saves is None or share is None or saves >= share * window.step_ns:
        return finding
    without = _IN_WORDS[CLASS_OF[finding.rule]]
    nothing = window.share(saves) < NOTHING_SHARE
    whole = "a step" if window.steps else "the whole trace"
    says = f"by its critical path {whole} would be {duration(saves)} shorter without {without}"
    return replace(
        finding,
        severity="info" if nothing else finding.severity,
        claim=finding.claim + (f"; yet {whole} would hardly be shorter without {without} at all" if nothing else ""),
        cost_ns_per_step=None if finding.cost_ns_per_step is None else round(min(saves, finding.cost_ns_per_step)),
        cost_share=window.share(saves),
        evidence=(*finding.evidence, says),
    )
