"""The folded sections of a study's page: a table with a row for every variant."""

import re
from typing import Any

import pytest
from markupsafe import Markup

from report.conftest import traced
from steptrace.report import study as sections

Json = dict[str, Any]
MIB = 2**20
MS = 10**6


def rows(page: object, number: int = 0) -> list[list[str]]:
    """The texts of a section's table, row by row."""
    table = re.findall(r"<table.*?</table>", str(page), re.DOTALL)[number]
    cells = (re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL))
    return [[" ".join(Markup(cell).striptags().split()) for cell in row] for row in cells]


def section(builder: Any, name: str, *variants: Json) -> Any:
    """A section of a study whose variants `a`, `b`, ... have these keys."""
    for letter, fields in zip("abc", variants, strict=False):
        builder.add(letter, [20.0, 20.0], **fields)
    study = builder.study()
    return sections.subject_section(study, name)


def with_input(share: float | None, **changes: Any) -> Json:
    wait_ms = None if share is None else share * 40
    verdict = None if share is None else "high" if share >= 0.2 else "moderate" if share >= 0.05 else "none"
    parts = {"fetch": 14.0, "collate": 0.5, "pin": None, "copy": None}
    times = {"wait_ms": wait_ms, "counted_ms": wait_ms, "step_ms": 40.0, "idle_part": None, "share": share}
    return {"input": times | {"verdict": verdict, "breakdown_ms": parts} | changes}


def with_memory(**changes: Any) -> Json:
    entry = {
        "device_type": "cuda", "peak_allocated_bytes": 180 * MIB, "peak_reserved_bytes": 200 * MIB, "complete": True,
        "capacity_bytes": 1000 * MIB, "headroom_bytes": 800 * MIB, "fragmentation": 0.25,
        "by_category": {"parameters": 10 * MIB, "activations": 170 * MIB, "unknown": 0},
    } | changes  # fmt: skip
    record = {"device": entry["device_type"], "batch_size": 16, "capacity_bytes": 1000 * MIB}
    return {"memory": record, "trace": {"memory": [entry]}}


COMMUNICATION: Json = {
    "communication": {
        "world_size": 2, "backend": "gloo", "parameters": 1_000_000, "parameter_bytes": 4_000_000,
        "bucket_bytes": [1_000_000] * 4, "expected_ns": 4 * MS, "simplified_ns": 4 * MS,
        "bus_bytes_per_s": 1e9,
    },
    "ranks": {"count": 2, "all_reduce": {"measured_ns_per_step": 5e6, "overlap": 0.8, "count_per_step": 4}},
}  # fmt: skip


PRECISION: Json = {
    "kernel_ns": {"bits8": 0, "bits16": 62, "bits32": 30, "bits64": 0, "integer": 1, "unknown": 7},
    "tensor_core_eligible_ns": 100, "tensor_core_ns": 91,
}  # fmt: skip
ON_GPU = traced(1, {"compute": 60.0, "idle_sync": 8.0}) | {"precision": PRECISION}
SECTIONS = {"copy data": 0.05, "calc loss": 6.2}


def test_parts_that_no_variant_has_have_no_column(study_builder):
    parts = {"compute": 60.0, "idle_sync": 8.0, "idle_loader": 0.0, "idle_host": 0.0}
    some = {"trace": traced(1, parts)}, {"trace": traced(1, parts | {"idle_host": 2.0})}
    (head, first, _) = rows(section(study_builder, "overview", *some))
    assert head[1:] == ["Compute", "Idle after a sync", "Idle because nothing was launched"]
    assert first[1:] == ["60.0 ms", "8.00 ms", "0 ns"]


def test_a_variant_whose_trace_records_no_memory_has_the_peak_of_its_run(study_builder):
    record = {"device": "cuda", "batch_size": 16, "capacity_bytes": 1000 * MIB}
    page = section(study_builder, "memory", {"memory": record, "peak_allocated_bytes": 175 * MIB}, with_memory())
    by_variant = {row[0]: dict(zip(rows(page)[0], row, strict=True)) for row in rows(page)[1:]}
    assert (by_variant["a"]["Peak allocated"], by_variant["a"]["Peak of the run"]) == ("not measured", "175 MiB")
    assert (by_variant["b"]["Peak allocated"], by_variant["b"]["Peak of the run"]) == ("180 MiB", "not measured")
    assert [row[0] for row in rows(page, 1)] == ["Variant", "b"]  # live at the peak


@pytest.mark.parametrize(
    ("name", "variants", "head", "first"),
    [
        ("overview", [{"trace": ON_GPU}], ["Compute", "Idle after a sync"], ["60.0 ms", "8.00 ms"]),
        ("input", [with_input(0.4)], ["Wait", "Waiting for data", "Share of the step", "Input-bound", "Fetch per batch",
         "Collate per batch"], ["16.0 ms", "16.0 ms", "40 %", "high", "14.0 ms", "500 µs"]),
        ("input", [with_input(0.1, idle_part=0.25, breakdown_ms=None)], ["Wait", "Waiting for data",
         "Of it with the GPU idle", "Share of the step", "Input-bound"],
         ["4.00 ms", "4.00 ms", "25 %", "10 %", "moderate"]),
        ("memory", [with_memory()], ["Peak allocated", "Peak reserved", "Capacity", "Headroom",
         "Fragmentation"], ["180 MiB", "200 MiB", "1000 MiB", "800 MiB", "25 %"]),
        ("collectives", [COMMUNICATION], ["Ranks", "Backend", "Parameters", "Gradients", "Bus bandwidth", "Expected",
         "Simpler formula", "All-reduces", "Measured", "Hidden"],
         ["2", "gloo", "1,000,000", "3.81 MiB", "1.00 GB/s", "4.00 ms", "4.00 ms", "4", "5.00 ms", "80 %"]),
        ("overview", [{"synced_sections_ms": SECTIONS}], ["Copy data", "Calc loss"], ["50.0 µs", "6.20 ms"]),
    ],
)  # fmt: skip
def test_the_figures_of_a_variant_stand_in_a_row_and_columns_without_any_are_left_out(
    study_builder, name, variants, head, first
):
    shown, row = rows(section(study_builder, name, *variants))
    assert shown == ["Variant", *head]
    assert [row[0], *(have if want is not None else None for have, want in zip(row[1:], first, strict=True))] == [
        "a",
        *first,
    ]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("overview", {}),
        ("input", {}),
        ("input", with_input(0.01, breakdown_ms=None)),
        ("memory", {}),
        ("memory", with_memory(device_type="cpu", peak_allocated_bytes=MIB) | {"batch_bytes": {"inputs": 2**18}}),
        ("collectives", {}),
        *((name, {"trace": {"quality": {}}}) for name in ("launches", "queues", "quality", "program", "timeline")),
    ],
)
def test_a_section_without_figures_is_left_out(study_builder, name, fields):
    assert section(study_builder, name, fields, {}) is None


def test_a_variant_without_a_figure_says_so_beside_one_that_has_it(study_builder):
    _, _, other = rows(section(study_builder, "memory", with_memory(), with_memory(headroom_bytes=None)))
    assert other == ["b", "180 MiB", "200 MiB", "1000 MiB", "not measured", "25 %"]


def test_a_straggler_may_be_rank_0(study_builder):
    ranks = COMMUNICATION["ranks"] | {"straggler": {"rank": 0, "share": 0.9}}
    head, first = rows(section(study_builder, "collectives", COMMUNICATION | {"ranks": ranks}))
    assert dict(zip(head, first, strict=True))["Rank of the straggler"] == "0"


def test_what_one_batch_copies_is_a_table_of_its_own(study_builder):
    page = section(study_builder, "memory", with_memory() | {"batch_bytes": {"inputs": 2**18, "targets": 500}})
    assert rows(page, 2) == [["Variant", "Inputs", "Targets"], ["a", "256 KiB", "500 B"]]


def test_number_formats_follow_the_parts_of_a_step(study_builder):
    page = section(study_builder, "overview", {"trace": ON_GPU})
    assert rows(page, 1)[1] == ["a", "62 %", "30 %", "1.0 %", "7.0 %", "91 %"]


def with_kernels(steps: int, **sum_ns: int) -> Json:
    row = {"class": "compute", "count": 4}
    rows = [{"name": f"void {name}()", "short_name": name, "sum_ns": ns, **row} for name, ns in sum_ns.items()]
    return {"trace": {"kernels": rows, "quality": {"steps": steps}}}


def test_a_subject_that_only_columns_declare_has_a_table_of_all_variants(study_builder):
    stream = {"work": "compute", "busy_ns": 4 * MS, "alone_ns": 3 * MS, "hidden": 0.25}
    both = [{"stream": 7, **stream}, {"stream": 20, **stream, "work": "comm"}]
    page = section(
        study_builder,
        "streams",
        {"trace": {"streams": both, "quality": {"steps": 2}}},
        {"trace": {"streams": both[:1], "quality": {"steps": 1}}},  # its run profiled another number of steps
    )
    assert rows(page) == [
        ["Variant", "Stream", "Mostly", "Busy per step", "Alone per step", "Hidden"],
        ["a", "7", "compute", "2.00 ms", "1.50 ms", "25 %"],
        ["b", "7", "compute", "4.00 ms", "3.00 ms", "25 %"],
        ["a", "20", "comm", "2.00 ms", "1.50 ms", "25 %"],
    ]
    assert "<dt>Alone</dt>" in page or "<dt>Alone per step</dt>" in page  # the meaning of a column


def test_figures_that_are_no_list_are_a_row_of_each_variant(study_builder):
    launched = {"trace": {"launches": {"count": 8, "activities": 12, "unlinked": 3}, "quality": {"steps": 2}}}
    page = section(study_builder, "launches", launched, launched)
    assert rows(page)[0][-1] == "Activities without launch"  # a fault of the trace, and no figure of a step
    assert rows(page)[1:] == [[name, "4", "6", "3"] for name in "ab"]


def test_subjects_that_the_page_says_elsewhere_or_of_one_run_alone_have_no_table():
    assert {"syncs", "gpu", "sequences"}.isdisjoint(subject.name for subject in sections.subjects())


def test_a_category_of_memory_that_holds_nothing_at_the_peak_is_measured(study_builder):
    held = with_memory(by_category={"parameters": MIB, "gradients": MIB}), with_memory(by_category={"parameters": MIB})
    assert [row[-1] for row in rows(section(study_builder, "memory", *held), 1)] == ["Gradients", "1.00 MiB", "none"]


def test_of_many_rows_those_are_shown_in_which_variants_differ_most(study_builder):
    same = {f"kernel_{n}": 1000 * MS - n for n in range(50)}
    page = section(
        study_builder,
        "kernels",
        with_kernels(1, **same, slower=5 * MS, gone=2 * MS),
        with_kernels(2, **{name: 2 * ns for name, ns in same.items()}, slower=2 * MS),
    )
    shown = rows(page)
    assert len(shown) == 1 + 10 * 2 - 1  # one of the ten kernels is in `a` alone
    assert [row[:2] for row in shown[-3:]] == [["a", "slower"], ["b", "slower"], ["a", "gone"]]
    assert re.search(r"\b42\b", page)  # so many rows are left out


def test_a_variant_of_which_nothing_was_recorded_makes_no_row_differ(study_builder):
    same = {f"kernel_{n}": 1000 * MS - n for n in range(50)}
    both = with_kernels(1, **same, slower=5 * MS), with_kernels(1, **same, slower=2 * MS)
    page = section(study_builder, "kernels", *both, with_kernels(1))
    assert [row[:2] for row in rows(page)[-2:]] == [["a", "slower"], ["b", "slower"]]


def test_the_kernels_that_the_fastest_variant_does_without_are_named(study_builder):
    study_builder.comparison["baseline"] = "slow"
    study_builder.add("slow", [20.0, 20.0], **with_kernels(2, conv=9 * MS, mask=6 * MS, sort=2 * MS))
    study_builder.add("fast", [10.0, 10.0], **with_kernels(2, conv=9 * MS))
    text = sections.subject_section(study_builder.study(), "kernels")
    (lead,) = re.findall(r"<p[^>]*>(Of the .*?)</p>", text)
    assert re.findall(r"<code>(\w+)</code>", lead) == ["slow", "fast", "mask", "sort"]
    assert [figure for figure in ("3 kernels", " 2,", "4.00\N{NO-BREAK SPACE}ms") if figure not in lead] == []


@pytest.mark.parametrize(("linked", "heads"), [(4, ["Calls per step", "Sum per step"]), (3, [])])
def test_no_figure_per_step_counts_work_of_an_unknown_step(study_builder, linked, heads):
    fields = with_kernels(2, conv=9 * MS, mask=6 * MS)
    fields["trace"] |= {"launches": {"activities": 2 * linked}}  # of 8
    fields["trace"]["kernels"][0]["mean_ns"] = MS
    study_builder.comparison["baseline"] = "a"
    page = section(study_builder, "kernels", fields, with_kernels(2, conv=9 * MS) | {"step_ms": None})
    assert [head for head in rows(page)[0] if "per step" in head] == heads
    assert ("<p" in page.split("<table")[0]) != bool(heads)  # a sentence says why


def test_a_row_that_some_runs_lack_says_in_how_many_it_was(study_builder):
    queues = [
        {"stream": 7, "activities": 10, "max": 3, "runs": 1},
        {"stream": 9, "activities": 20, "max": 5, "runs": 2},
    ]
    (head, rare, common) = rows(section(study_builder, "queues", {"trace": {"queues": queues, "runs": 2}}))
    assert (rare[head.index("In runs")], common[head.index("In runs")]) == ("1 of 2", "all")


def test_rows_that_all_runs_have_need_no_such_column(study_builder):
    queues = [{"stream": 7, "activities": 10, "max": 3, "runs": 2}]
    assert "In runs" not in rows(section(study_builder, "queues", {"trace": {"queues": queues, "runs": 2}}))[0]


def test_a_sync_that_some_runs_lack_says_in_how_many_it_was(study_builder):
    sites = [{"file": "a.py", "line": n, "kind": "d2h_copy", "count": 4, "runs": runs} for n, runs in ((1, 2), (2, 1))]
    trace = {"syncs": {"sites": sites}, "gpu": {"activities": 5}, "runs": 2}
    study_builder.add("a", [20.0, 20.0], trace=trace, syncs={"measured_per_step": 2})
    page = str(sections.syncs(study_builder.study()))
    assert "1 of 2" in page
    assert "2 of 2" not in page
