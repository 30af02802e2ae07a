"""Columns declared once: reduced over runs, joined by their keys, and read by tables and pages."""

import subprocess
import sys
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from msgspec.structs import replace

from documents import fill, plain
from recorded import needs_traces, trace_of
from steptrace.analysis import summarize_trace
from steptrace.documents.base import Document, by_key, columns_of, field, is_described, keys_of, shown_columns
from steptrace.documents.kernels import KernelName
from steptrace.documents.overview import TopOperator
from steptrace.documents.program import LineTime
from steptrace.documents.ranks import Ranks, RankWait
from steptrace.documents.run import Communication, RunMemory
from steptrace.documents.runs import counts_runs, over_runs
from steptrace.documents.sides import SideRows, join
from steptrace.documents.streams import Queue
from steptrace.documents.subject import Absence, subjects_of
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import SyncSite
from steptrace.documents.variant import VariantResult
from steptrace.words.codes import ABSENCES


def queue(stream: int, **figures: float | None) -> Queue:
    return fill(Queue, {"device": 0, "stream": stream, "activities": 10, **figures})


def site(line: int, **figures: object) -> SyncSite:
    return fill(
        SyncSite, {"file": "a.py", "line": line, "kind": "d2h_copy", "count": 4, "blocked_ns": 4_000, **figures}
    )


def test_a_column_says_what_it_is() -> None:
    columns = {one.name: one for one in columns_of(Queue)}
    assert [one.name for one in keys_of(Queue)] == ["device", "stream"]
    assert columns["device"].local
    assert (columns["mean"].dtype, columns["mean"].nullable) == ("float64", True)
    assert (columns["empty_ns"].unit, columns["empty_ns"].kind) == ("ns", "total")
    assert "code" not in {one.name for one in shown_columns(SyncSite)}
    assert all(one.meaning.endswith(".") for one in columns.values())


def test_every_subject_has_a_heading_and_says_why_it_is_absent_if_that_is_a_loss() -> None:
    subjects = subjects_of(TraceSummary)
    assert {"syncs", "queues"} <= {one.name for one in subjects}
    assert len({one.heading for one in subjects}) == len(subjects)
    # No loss: steps that are alike, and programs without compiled code, callbacks, annotated CUDA graphs, stages of a
    # pipeline or experts.
    no_loss = {"step_kinds", "compiled_functions", "graph_breaks", "recompilations"}
    no_loss |= {"callbacks", "graph_annotations", "pipeline", "expert_loads"}
    assert {one.name for one in subjects if not one.absent} == no_loss
    assert set(ABSENCES) == set(get_args(Absence))
    assert not any(words.endswith(".") for words in ABSENCES.values())


def reduced_kinds() -> dict[type[Document], None]:
    """Every kind of document whose figures are reduced over runs, or compared by `steptrace diff`."""
    kinds: dict[type[Document], None] = {}

    def add(hint: Any) -> None:
        if isinstance(hint, type) and issubclass(hint, Document):
            if hint in kinds:
                return
            kinds[hint] = None
            first = {column.name for column in columns_of(hint) if column.kind == "first"}
            for name, inner in get_type_hints(hint).items():
                if name not in first | {"findings"}:  # findings are made anew
                    add(inner)
        for inner in get_args(hint):
            add(inner)

    for kind in (TraceSummary, Ranks, RunMemory, Communication, TopOperator, LineTime):
        add(kind)
    return kinds


def test_every_kind_of_row_is_described() -> None:
    rows = [kind for kind in reduced_kinds() if keys_of(kind)]
    assert {Queue, LineTime} <= {*rows}
    assert [kind.__name__ for kind in rows if not is_described(kind)] == []


def test_every_numeric_column_says_what_its_numbers_are() -> None:
    kinds = reduced_kinds()
    assert {KernelName, SyncSite, RankWait, TopOperator, LineTime} <= {*kinds}
    silent = [
        f"{kind.__name__}.{column.name}"
        for kind in kinds
        for column in columns_of(kind)
        if column.is_number and not column.is_key and column.kind is None
    ]
    assert silent == []


def test_numbers_by_name_say_what_they_are_too() -> None:
    by_name = {
        f"{kind.__name__}.{name}": next(c for c in columns_of(kind) if c.name == name).kind
        for kind in reduced_kinds()
        for name, hint in get_type_hints(kind).items()
        if get_origin(hint) is dict
    }
    assert by_name["Overview.parts_ns"] == "total"
    assert None not in by_name.values()


def test_a_number_without_a_kind_is_refused() -> None:
    class Silent(Document, frozen=True):
        length_ns: Annotated[int, field("Length.")]

    with pytest.raises(TypeError, match=r"Silent\.length_ns"):
        over_runs([Silent(1), Silent(2)])


def test_facts_may_be_null_where_runs_disagree() -> None:
    facts = [c for kind in reduced_kinds() for c in columns_of(kind) if c.kind == "fact"]
    assert facts
    assert all(column.nullable for column in facts)


def test_every_row_that_runs_can_lack_says_in_how_many_it_was() -> None:
    rows = [kind for kind in reduced_kinds() if keys_of(kind) and kind not in (TopOperator, LineTime)]
    assert Queue in rows
    assert [kind.__name__ for kind in rows if not counts_runs(kind)] == []
    assert counts_runs(TraceSummary)  # of how many runs there are
    assert "runs" not in {column.name for kind in rows for column in columns_of(kind)}  # no column of a Parquet file


def queues(*figures: dict[str, Any]) -> TraceSummary:
    return fill(TraceSummary, {"queues": figures})


def test_rows_of_runs_are_matched_by_their_keys() -> None:
    runs = [queues({"stream": 7, "activities": n, "mean": mean}) for n, mean in ((10, 1.0), (13, 2.0), (20, None))]
    (row,) = over_runs(runs).queues
    assert (row.stream, row.activities, row.runs) == (7, 13, 3)
    assert row.mean == 1.5  # of the two runs that measured it


@pytest.mark.parametrize("runs", [2, 3, 5])
@pytest.mark.parametrize("first", [True, False])
def test_a_run_without_a_row_counts_0_for_totals_alone(runs: int, first: bool) -> None:  # noqa: FBT001
    """A run that lacks a kernel lowers its total; it says nothing of the kernel's length, nor of its share."""
    kernel = {
        "name": "gemm", "class": "compute", "count": 4, "sum_ns": 33_260, "mean_ns": 8_315.0, "median_ns": 8_300.0,
        "min_ns": 8_000, "max_ns": 9_000, "std_ns": 12.0, "share": 0.326,
    }  # fmt: skip
    having = fill(TraceSummary, {"kernels": [kernel]})
    lacking = fill(TraceSummary, {})
    without = [lacking] * (runs // 2)
    several = [having] * (runs - len(without))
    (row,) = over_runs([*without, *several] if first else [*several, *without]).kernels
    assert (row.mean_ns, row.median_ns, row.min_ns, row.max_ns, row.std_ns) == (8_315, 8_300, 8_000, 9_000, 12)
    assert (row.share, row.runs) == (0.326, len(several))
    assert (row.count, row.sum_ns) == ((2, 16_630) if runs == 2 else (4, 33_260))  # the median of all runs


def test_an_extreme_is_that_of_all_runs() -> None:
    rows = [fill(KernelName, {"name": "gemm", "min_ns": low, "max_ns": high}) for low, high in ((5, 9), (2, 7), (4, 8))]
    runs = [replace(fill(TraceSummary, {}), kernels=(row,)) for row in rows]
    (row,) = over_runs(runs).kernels
    assert (row.min_ns, row.max_ns) == (2, 9)


def test_a_row_that_most_runs_lack_stays_and_says_so() -> None:
    (row,) = over_runs([queues({"stream": 9, "activities": 5, "max": 3}), queues(), queues()]).queues
    assert (row.activities, row.max, row.runs) == (0, 3, 1)


def test_a_total_that_one_run_could_not_measure_is_null() -> None:
    runs = [fill(TraceSummary, {"labels": [{"label": "loss", "host_ns": 10, "device_ns": ns}]}) for ns in (10, None)]
    (row,) = over_runs(runs).labels
    assert (row.host_ns, row.device_ns) == (10, None)


def test_parts_by_name_add_up_and_one_that_a_run_lacks_counts_0() -> None:
    parts = ({"compute": 10, "idle_sync": 4}, {"compute": 20})
    runs = [fill(TraceSummary, {"overview": {"window_ns": sum(of.values()), "parts_ns": of}}) for of in parts]
    overview = over_runs(runs).overview
    assert overview is not None
    assert overview.parts_ns == {"compute": 15, "idle_sync": 2}
    assert sum(overview.parts_ns.values()) == overview.window_ns


def test_the_memory_of_runs_is_that_of_the_run_with_the_highest_peak() -> None:
    rows = [
        {"device_type": "cuda", "device": 0, "peak_allocated_bytes": peak, "by_category": {"inputs": peak}}
        for peak in (10, 30, 20)
    ]
    reduced = over_runs([fill(TraceSummary, {"memory": [row]}) for row in rows]).memory
    assert reduced is not None
    assert (reduced[0].peak_allocated_bytes, reduced[0].by_category, reduced[0].runs) == (30, {"inputs": 30}, 3)


def test_fields_that_are_no_figure_are_the_first_runs_or_null() -> None:
    runs = [fill(TraceSummary, {"path": path, "device": device}) for path, device in (("a", 0), ("b", 1))]
    assert (over_runs(runs).path, over_runs(runs).device) == ("a", None)


@needs_traces
@pytest.mark.parametrize("name", ["alexnet_cuda_sync.json.gz", "cpu_only.json.gz", "h100_vit.json.gz"])
def test_equal_runs_give_back_every_field(name: str) -> None:
    summary = summarize_trace(trace_of(name))
    reduced = over_runs([summary] * 3)
    assert reduced.runs == 3
    assert plain(reduced) == with_runs(plain(summary), plain(reduced))


def with_runs(value: Any, reduced: Any) -> Any:
    """JSON data of one run with `runs` where the reduced one has it."""
    if isinstance(value, list):
        return [with_runs(item, other) for item, other in zip(value, reduced, strict=True)]
    if not isinstance(value, dict):
        return value
    counted = {"runs": 3} if "runs" in reduced else {}
    return {**{name: with_runs(item, reduced[name]) for name, item in value.items()}, **counted}


def test_sides_are_joined_by_keys_that_both_traces_can_share() -> None:
    a = SideRows([site(7), site(30, kind="stream", blocked_ns=100)], steps=2)
    b = SideRows([site(9, count=2, blocked_ns=1_000)], steps=1)
    first, second = join(a, b)
    assert first.figures["blocked_ns"] == (2_000, 1_000)  # line 7 is line 9 now: code moves
    assert first.figures["count"] == (2, 2)
    assert second.b is None
    assert second.figures["blocked_ns"] == (50, 0)
    assert first.differs
    assert join(a, SideRows([], steps=0))[0].figures["blocked_ns"] == (2_000, 0)
    assert join(SideRows([], 0), SideRows([], 0)) == []


def test_a_trace_does_not_differ_from_itself_and_what_is_not_measured_is_not_compared() -> None:
    side = SideRows([queue(7, mean=None)], steps=3)
    (change,) = join(side, side)
    assert not change.differs
    assert (
        "exposed_idle_ns" not in join(SideRows([site(7, exposed_idle_ns=None)], 1), SideRows([site(7)], 1))[0].figures
    )


def test_a_side_without_a_row_counts_0_for_totals_alone() -> None:
    kernel = fill(KernelName, {"name": "gemm", "count": 4, "sum_ns": 33_260, "mean_ns": 8_315.0, "share": 0.326})
    (change,) = join(SideRows([kernel], 2), SideRows([], 2))
    assert change.figures["sum_ns"] == (16_630, 0)
    assert change.figures["mean_ns"] == (8_315, None)
    assert change.figures["share"] == (0.326, None)
    assert change.differs


def test_of_several_rows_of_a_side_only_totals_and_extremes_are_known() -> None:
    ranks = [fill(KernelName, {"name": "gemm", "sum_ns": ns, "max_ns": ns, "mean_ns": float(ns)}) for ns in (10, 30)]
    (change,) = join(SideRows(ranks, 2), SideRows(ranks[:1], 1))
    assert (change.figures["sum_ns"], change.figures["max_ns"]) == ((20, 10), (30, 10))
    assert change.figures["mean_ns"] == (None, 10)


def test_rows_are_found_by_their_keys() -> None:
    rows = [queue(7), queue(9)]
    assert by_key(rows) == {(0, 7): rows[0], (0, 9): rows[1]}
    assert replace(rows[0], stream=9) == rows[1]


def test_reading_documents_takes_neither_pandas_nor_numpy() -> None:
    code = (
        "import sys, steptrace.documents.summary, steptrace.documents.runs; print({'pandas', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_syncs_per_step_over_all_runs_are_not_rounded() -> None:
    """Two runs of four steps, of which one lacks the site: 359 syncs are 89.75 a step there, 44.875 over both."""
    site = {"file": "train.py", "line": 3, "function": "step", "op": None, "label": None, "phase": None, "code": None,
            "kind": "d2h_copy", "count": 359, "count_per_step": 89.75, "blocked_ns": 1, "exposed_idle_ns": None,
            "ceiling_ns": None, "per_step_of_all_runs": 89.75}  # fmt: skip
    having, lacking = (
        fill(TraceSummary, {"syncs": {"sites": sites}, "quality": {"steps": 4}}) for sites in ([site], [])
    )
    (row,) = over_runs([having, lacking]).syncs.sites
    assert (row.count, row.count_per_step, row.runs) == (180, 89.75, 1)
    assert row.per_step_of_all_runs == 44.875
    variant = fill(VariantResult, {"name": "lbfgs", "trace": {}})
    variant = replace(
        variant,
        trace=over_runs([having, lacking]),
        syncs=replace(variant.syncs, measured_per_step=44.875),
    )
    assert sum(site.count_per_step or 0 for site in variant.sync_sites_over_runs) == 44.875
