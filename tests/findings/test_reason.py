"""Why a step takes as long as it does: the code and the figures of its largest part."""

import pytest

from documents import fill
from figures import figures_in
from steptrace.documents.reason import Reason
from steptrace.documents.summary import TraceSummary
from steptrace.findings.reason import reason_of
from steptrace.words.reason import reason_text

KINDS = ("kernels", "communication", "copies", "data", "syncs", "host", "gaps", "dependency", "host_part")


def reason(parts_ms, kind="gpu", **fields):
    """The reason for a step with these parts."""
    parts = {name: round(ms * 1e6) for name, ms in parts_ms.items()}
    window = sum(parts.values())
    overview = {"kind": kind, "steps": 1, "window_ns": window, "step_ns": window, "parts_ns": parts}
    found = reason_of(fill(TraceSummary, {"overview": overview, **fields}))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("compute", "kernels"),
        ("exposed_comm", "communication"),
        ("exposed_memory", "copies"),
        ("idle_loader", "data"),
        ("idle_host", "host"),
        ("idle_between_kernels", "gaps"),
        ("idle_dependency", "dependency"),
    ],
)
def test_the_largest_part_of_a_gpus_step_is_its_reason(part, kind):
    rest = "idle_host" if part == "compute" else "compute"
    found = reason({part: 6, rest: 4})
    assert (found.kind, found.share) == (kind, pytest.approx(0.6))


def test_idle_time_after_syncs_is_theirs_only_as_far_as_it_goes_with_them():
    parts = {"idle_sync": 6, "compute": 4}
    assert reason(parts, syncs={"ceiling_ns": 5_000_000}).kind == "syncs"
    cheap = reason(parts, syncs={"ceiling_ns": 1_000_000})
    # A page shows the idle time after syncs as a part of its own, with their cost: the sentence has the same figures.
    assert (cheap.kind, cheap.share, cheap.after_syncs, cheap.syncs_cost) == (
        "host",
        *map(pytest.approx, (0.6, 0.6, 0.1)),
    )
    assert figures_in(reason_text(cheap))[:3] == [60, 60, 10]
    free = reason(parts, syncs={"ceiling_ns": 0})
    assert figures_in(reason_text(free))[:2] == [60, 60]


def test_of_kernels_that_overlap_the_share_is_of_their_summed_time():
    kernels = [
        {"short_name": name, "class": "compute", "sum_ns": ns}
        for name, ns in (("gemm", 24_000_000), ("add", 8_000_000))
    ]
    found = reason({"compute": 8, "idle_host": 2}, kernels=kernels)
    assert (found.name, found.name_share, found.overlaps) == ("gemm", pytest.approx(0.75), True)


def test_the_costliest_site_of_a_sync_and_the_longest_kernel_are_named():
    sites = [
        {"op": "aten::item", "file": "a.py", "line": 3, "ceiling_ns": 5_000_000},
        {"op": "aten::nonzero", "file": "b.py", "line": 4, "ceiling_ns": 1_000},
    ]
    found = reason({"idle_sync": 6, "compute": 4}, syncs={"ceiling_ns": 5_000_000, "sites": sites})
    assert (found.name, found.file, found.line) == ("aten::item", "a.py", 3)
    kernels = [
        {"short_name": "copy", "class": "memory", "sum_ns": 9_000_000},
        {"short_name": "gemm", "class": "compute", "sum_ns": 5_000_000},
    ]
    found = reason({"compute": 8, "idle_host": 2}, kernels=kernels)
    assert (found.name, found.name_share, found.overlaps) == ("gemm", pytest.approx(0.5), False)


def test_without_a_gpu_the_longest_part_of_the_loop_is_named_and_time_of_no_part_never():
    found = reason({"forward": 2, "backward": 3, "other": 9}, "host")
    assert (found.kind, found.name) == ("host_part", "backward")


def test_a_trace_without_parts_has_no_reason():
    assert reason_of(fill(TraceSummary, {"overview": None})) is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_reason_has_one_sentence_with_its_share_and_what_it_names(kind):
    bare = reason_text(Reason(kind, 0.25, per_step=True))
    assert "25 %" in bare
    full = reason_text(
        Reason(
            kind,
            0.25,
            per_step=True,
            name="gemm",
            name_share=0.125,
            file="x/train.py",
            line=7,
            meanwhile="python",
            kernels=50.0,
            step_ns=8_000_000,
            busy_ns=2_000_000,
            wait_share=0.5,
        )
    )
    assert full.endswith(".")
    if kind in ("kernels", "syncs"):
        assert "train.py:7" in full
        assert "gemm" in full


def test_what_the_host_does_while_the_gpu_waits_and_how_little_work_there_is_are_told():
    gaps = {"gap_ns": 6_000_000, "op_ns": 1_000_000, "call_ns": 2_000_000, "long_call_ns": 0}
    found = reason({"idle_host": 6, "compute": 4}, host_gaps=gaps)
    assert (found.kind, found.meanwhile) == ("host", "outside_operators")
    assert (found.step_ns, found.busy_ns) == (10_000_000, 4_000_000)
    text = reason_text(found)
    assert "60 %" in text
    assert text.index("10.0 ms") < text.index("4.00 ms of GPU work")
