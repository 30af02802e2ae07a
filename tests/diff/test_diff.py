"""Two sides against each other: what is added, removed, slower, faster; renamed kernels; the spread; the real pair."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from builders import TraceBuilder, training_step
from recorded import TRACES, needs_traces, recorded
from steptrace.cli import main
from steptrace.diff import Side, diff, in_words, read_sides, side, sides
from steptrace.diff.compare import EXACT, KERNEL_LEVELS, normalised, pair
from steptrace.documents.base import read
from steptrace.documents.diff import Diff, LaunchedBy, SyncTotal, SyncTotals
from steptrace.report.diff import page_html

REAL = (TRACES / "diff_control.json.gz", TRACES / "diff_test.json.gz")

MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, Array<char*, {0}>>(int)"


def _steps(lengths: list[int], *, kernel: str = "gemm", op: str = "aten::mm", extra: str | None = None) -> TraceBuilder:
    """One step per length, with one operator that launches one kernel of that many us."""
    builder = TraceBuilder()
    for index, length in enumerate(lengths):
        ts = index * 1_000_000
        builder.step(index, ts, 900_000)
        builder.frame("model.py(10): forward", ts, 300_000)
        builder.op(op, ts + 10_000, 50_000)
        builder.op("aten::empty", ts + 12_000, 5_000)
        builder.kernel(ts + 20_000, ts + 30_000, length * 1000, kernel)
        if extra is not None:
            builder.kernel(ts + 80_000, ts + 700_000, 4_000, extra)
    return builder


def _side(*builders: TraceBuilder) -> Side:
    traces = [(Path(f"/nowhere/{i}.json"), builder.trace()) for i, builder in enumerate(builders)]
    return side._side(traces, whole=any(len(trace.steps) == 0 for _, trace in traces))


_STEADY = [100, 101, 99, 100, 102, 98]


def test_a_trace_does_not_differ_from_itself() -> None:
    builder = TraceBuilder()
    for index in range(3):
        training_step(builder, index, index * 1_100_000, sync=index != 1)
    found = diff(_side(builder), _side(builder))
    assert found.is_empty
    assert all(total.delta == 0 for total in found.totals.values())
    assert "no operator, kernel, sync or line differs per step" in in_words(found)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=5), st.booleans())
def test_any_made_trace_does_not_differ_from_itself(lengths: list[int], extra: bool) -> None:  # noqa: FBT001
    one = _side(_steps(lengths, extra="relu" if extra else None))
    assert diff(one, one).is_empty


def test_slower_is_more_than_the_spread() -> None:
    a = _side(_steps(_STEADY))
    (row,) = diff(a, _side(_steps([t + 50 for t in _STEADY]))).kernels
    assert (row.status, row.name) == ("slower", "gemm")
    assert row.device_ns.delta == 50_000
    assert (row.count.a, row.count.b) == (1, 1)
    assert row.launched_by == (LaunchedBy("aten::mm", "model.py", "forward", 100_000, 150_000),)
    (back,) = diff(_side(_steps([t + 50 for t in _STEADY])), a).kernels
    assert back.status == "faster"
    # A shift of 1 us, where the steps themselves lie 4 us apart, is no difference; nor is one of less than 1 %.
    assert diff(a, _side(_steps([t + 1 for t in _STEADY]))).kernels == ()
    assert diff(_side(_steps([400] * 6)), _side(_steps([403] * 6))).kernels == ()


def test_the_gpu_time_stands_at_the_operator_and_the_line_too() -> None:
    found = diff(_side(_steps(_STEADY)), _side(_steps([t + 50 for t in _STEADY])))
    (operator,) = found.operators
    assert (operator.name, operator.status) == ("aten::mm", "slower")
    assert operator.device_ns.delta == 50_000
    assert operator.host_ns.a == 50_000
    assert operator.host_self_ns.a == 45_000  # without the operator inside
    (line,) = found.lines
    assert (line.file, line.function, line.device_ns.b) == ("model.py", "forward", 150_000)


def test_added_and_removed() -> None:
    a, b = _side(_steps(_STEADY)), _side(_steps(_STEADY, extra="relu"))
    assert [(r.name, r.status) for r in diff(a, b).kernels] == [("relu", "added")]
    assert [(r.name, r.status) for r in diff(b, a).kernels] == [("relu", "removed")]


def test_a_kernel_keeps_its_place_under_a_new_name() -> None:
    a, b = _side(_steps(_STEADY, kernel=MUL.format("2"))), _side(_steps(_STEADY, kernel=MUL.format("(int)3")))
    assert diff(a, b).kernels == ()
    slower = _side(_steps([t + 50 for t in _STEADY], kernel=MUL.format("(int)3")))
    (row,) = diff(a, slower).kernels
    assert (row.status, row.name, row.renamed_from) == ("slower", MUL.format("(int)3"), (MUL.format("2"),))


@pytest.mark.parametrize(
    ("one", "other", "level"),
    [
        ("ncclKernel_AllReduce(ncclWorkElem)", "ncclKernel_AllReduce(ncclDevComm*, unsigned long, ncclWork*)", 1),
        ("void f<float, 2ul>(int)", "void f<float, 5ul>(int, bool)", 1),
        ("void (anonymous namespace)::f<(int)4>(int)", "void f<4>(int)", 1),
        ("void at::native::f<float>(int)", "void at::cuda::f<double>(int)", 2),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_12", 3),
        ("ampere_sgemm_128x64_nn", "volta_sgemm_128x64_nn", None),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)", None),
    ],
)
def test_what_counts_as_one_kernel(one: str, other: str, level: int | None) -> None:
    a, b = ("compute", one), ("compute", other)
    for number in range(len(KERNEL_LEVELS)):
        same = pair([a], [b], KERNEL_LEVELS[: number + 1]) == [((a,), (b,))]
        assert same == (level is not None and number >= level)
    assert normalised(one) != one or "(" not in one or one.startswith("Memcpy")


@given(st.lists(st.sampled_from("abcABC")), st.lists(st.sampled_from("abcABC")))
def test_each_key_is_paired_once(ours: list[str], theirs: list[str]) -> None:
    levels = (*EXACT, lambda key: (str(key[0]).lower(),))
    pairs = pair([(k,) for k in ours], [(k,) for k in theirs], levels)
    assert sorted(k for keys, _ in pairs for (k,) in keys) == sorted(set(ours))
    assert sorted(k for _, keys in pairs for (k,) in keys) == sorted(set(theirs))
    for key in set(ours) & set(theirs):
        assert (((key,),), ((key,),)) in pairs


def test_syncs_of_a_site() -> None:
    made = []
    for wait in (20_000, 90_000):
        builder = TraceBuilder()
        for index in range(4):
            builder.step(index, index * 1_000_000, 900_000)
            builder.op("aten::item", index * 1_000_000 + 1_000, 200_000)
            builder.item(index * 1_000_000 + 2_000, wait, index * 1_000_000 + 3_000)
        made.append(_side(builder))
    found = diff(*made)
    (row,) = found.syncs
    assert (row.status, row.op, row.kind, row.blocked_ns.delta) == (
        "slower",
        "aten::item",
        "d2h_copy",
        70_000,
    )
    assert found.sync_totals == SyncTotals(SyncTotal(4, 88_000), SyncTotal(4, 368_000))
    said = in_words(found)
    assert "d2h_copy in aten::item  (1 call)" in said
    assert "d2h_copy  (1 call)" in in_words(replace(found, syncs=(replace(row, op=None),)))
    assert "syncs: 1 with other counts\n" in in_words(replace(found, syncs=(replace(row, status="calls"),)))


def test_sets_of_ranks_are_compared_by_all_their_steps() -> None:
    a = _side(_steps(_STEADY[:3]), _steps(_STEADY[3:]))
    assert a.units == 6
    found = diff(a, _side(_steps([t + 50 for t in _STEADY])))
    assert found.a.units == 6
    assert [row.status for row in found.kernels] == ["slower"]


def test_traces_without_steps_are_compared_whole() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10_000)
    builder.kernel(1_000, 20_000, 30_000)
    path = Path("/nowhere.json")
    found = diff(*sides([(path, builder.trace())], [(path, _steps(_STEADY).trace())]))
    assert found.unit == "trace"
    (row,) = found.kernels
    assert (row.count.a, row.count.b) == (1, 6)
    assert "no spread" in in_words(found)


def test_a_trace_without_gpu_has_no_gpu_totals() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 100, 500)
    found = diff(_side(builder), _side(_steps(_STEADY)))
    assert found.totals["busy_ns"] is None
    assert found.totals["step_ns"] is not None
    assert found.not_measured == {"kernels": ("a",), "syncs": ("a",), "lines": ("a",)}
    assert found.kernels == ()
    assert all(row.device_ns is None for row in found.operators)


def test_what_no_trace_could_show_is_not_measured_instead_of_0() -> None:
    def made(length: int) -> Side:
        builder = TraceBuilder()
        for index in range(3):
            builder.step(index, index * 1_000_000, 900_000)
            builder.op("aten::mm", index * 1_000_000, length)
        return _side(builder)

    found = diff(made(100_000), made(200_000))
    assert found.sync_totals == SyncTotals(None, None)
    assert (found.totals["syncs"], found.totals["blocked_ns"]) == (None, None)
    said, page = in_words(found), page_html(found)
    assert "syncs: not measured: neither trace holds a call into a GPU's runtime" in said
    assert "kernels: not measured: neither trace holds GPU work" in said
    assert "0 ns" not in said
    assert "0 ns" not in page
    assert "GPU time" not in page.split('id="operators"')[1].split("</section>")[0]
    same = diff(made(100_000), made(100_000))
    assert "no operator differs per step" in in_words(same)
    assert "No operator differs per step." in page_html(same)


def test_work_that_runs_on_into_the_next_step_counts_once() -> None:
    def made(gpu: int) -> Side:
        builder = TraceBuilder()
        for index in range(4):
            builder.step(index, index * 1_000_000, 900_000)
            builder.op("aten::mm", index * 1_000_000, 50_000)
            builder.kernel(index * 1_000_000 + 10_000, index * gpu + 20_000, gpu)
        return _side(builder)

    slow = made(1_500_000)  # each step's kernel ends half a step later than the one before
    steps, compute = (slow.totals[name].to_list() for name in ("step_ns", "compute_ns"))
    assert steps[:3] == [1_000_000] * 3
    assert sum(compute) == 4 * 1_500_000
    found = diff(made(500_000), slow)
    (note,) = found.notes
    assert "runs on into the next step's time in B" in note
    assert note in page_html(found).replace("&#39;", "'")


def test_other_machines_and_other_programs_are_said() -> None:
    a100, v100 = _steps(_STEADY), _steps(_STEADY)
    a100.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100"}]
    v100.metadata["deviceProperties"] = [{"id": 0, "name": "Tesla V100"}]
    found = diff(_side(a100), _side(v100))
    assert found.notes == (
        "A ran on NVIDIA A100, B on Tesla V100: what differs is of the machine and of the program together.",
    )
    assert "NVIDIA A100" in page_html(found)
    other = diff(_side(_steps(_STEADY)), _side(_steps(_STEADY, kernel="relu"), _steps(_STEADY, kernel="relu")))
    assert [note.split(":")[0] for note in other.notes] == [
        "A is one trace, B 2 traces",
        "Kernels of the same name make up 0 % of the GPU's time",
    ]


def _captured(folder: Path, builder: TraceBuilder, unprofiled: dict[str, Any] | None) -> Path:
    """A capture's folder, as the training leaves it."""
    folder.mkdir()
    builder.write(folder / "trace.json.gz")
    (folder / "capture.json").write_text(json.dumps({"state": "recorded", "unprofiled": unprofiled}))
    return folder


def _before(step_ms: float, load: float = 1.0) -> dict[str, Any]:
    times = [round(step_ms * 1e6)] * 9
    return {"step_ns": times, "median_ns": times[0], "load_average": load, "cpus": 4}


def test_captures_are_compared_by_their_unprofiled_steps(tmp_path: Path) -> None:
    """One training, captured while the machine was idle and while it was not."""
    a = _captured(tmp_path / "a", _two_steps(1_000_000), _before(10))
    b = _captured(tmp_path / "b", _two_steps(2_400_000), _before(10.2))
    found = diff(*read_sides([a], [b]))
    assert found.totals["step_ns"].ratio == pytest.approx(2.4)
    assert found.unprofiled_step_ns.ratio == pytest.approx(1.02)
    assert found.notes[0] == (
        "Unprofiled steps just before the captures: 10 ms -> 10.2 ms (1.02x). Go by these: that the steps in the "
        "traces differ by 2.40x is not the training's doing."
    )
    assert found.notes[0] in in_words(found)
    assert "Read with care" in page_html(found)
    assert not any("equally busy" in note for note in found.notes)
    # Where both agree there is nothing to warn of.
    c = _captured(tmp_path / "c", _two_steps(2_400_000), _before(24))
    assert diff(*read_sides([a], [c])).notes[0].endswith("10 ms -> 24 ms (2.40x).")


def test_another_load_and_a_missing_time_are_said(tmp_path: Path) -> None:
    a = _captured(tmp_path / "a", _two_steps(1_000_000), _before(10))
    b = _captured(tmp_path / "b", _two_steps(1_000_000), _before(24, load=3.0))
    assert any("0.25 per CPU in A, 0.75 in B" in note for note in diff(*read_sides([a], [b])).notes)
    c = _captured(tmp_path / "c", _two_steps(2_400_000), None)
    found = diff(*read_sides([a], [c]))
    assert found.unprofiled_step_ns is None
    assert found.notes[0].startswith("No unprofiled steps were timed before capture B.")
    # A trace that no capture has left says nothing of this.
    (c / "capture.json").write_text("{")
    assert not any("nprofiled" in note for note in diff(*read_sides([a], [c])).notes)


def _two_steps(length: int) -> TraceBuilder:
    builder = TraceBuilder()
    for index in range(2):
        builder.step(index, index * 10_000_000, length)
        builder.op("aten::mm", index * 10_000_000 + 10_000, 50_000)
    return builder


@needs_traces
def test_the_real_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *map(str, REAL), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "60 -> 60, blocked 75.9 ms -> 321 ms (4.23x)" in said
    found = json.loads((tmp_path / "out" / "diff.json").read_text())
    totals = found["sync_totals"]
    assert (totals["a"]["count"], totals["b"]["count"]) == (60, 60)
    assert totals["b"]["blocked_ns"] / totals["a"]["blocked_ns"] == pytest.approx(320_752 / 75_858)
    assert {row["status"] for row in found["syncs"]} == {"slower"}
    copy = found["kernels"][0]
    assert (copy["name"], copy["count"]["a"], copy["count"]["b"]) == ("Memcpy DtoD (Device -> Device)", 3, 768)
    assert copy["launched_by"][0]["operator"] == "aten::copy_"
    renamed = [row for row in found["kernels"] if row["renamed_from"]]
    assert any("split_embedding" in row["name"] for row in renamed)
    page = (tmp_path / "out" / "diff.html").read_text()
    assert "75.9 ms" in page
    assert not re.search(r"https?:", page.replace("http://www.w3.org", ""))


@needs_traces
def test_a_step_equals_hta() -> None:
    """Counts and microseconds of Holistic Trace Analysis's TraceDiff for step 1011 of both."""
    hta: dict[str, tuple[int, int, int, int]] = {
        "aten::mm": (182, 6489, 46, 3104),
        "aten::copy_": (74, 8088, 872, 55760),
        "aten::addmm": (99, 4848, 30, 2285),
        "Memcpy DtoD (Device -> Device)": (3, 457, 768, 14745),
        "Memcpy DtoH (Device -> Pageable)": (10, 21, 10, 22),
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": (3, 6474, 3, 13487),
        "volta_sgemm_128x32_nt": (0, 0, 34, 4519),
    }
    both = read_sides([REAL[0]], [REAL[1]])
    for name, expected in hta.items():
        got: list[int] = []
        for one in both:
            is_op = name.startswith("aten")
            table = one.tables["operators" if is_op else "kernels"]
            rows = table[(table["unit"] == 2) & (table["name"] == name)]
            got += [int(rows["count"].sum()), int(rows["host_ns" if is_op else "device_ns"].sum()) // 1000]
        assert tuple(got) == expected, name


@needs_traces
def test_the_real_trace_does_not_differ_from_itself_packed_or_not(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(REAL[0].read_bytes()))
    assert diff(*read_sides([REAL[0]], [plain])).is_empty


_ODD = ["mi250", "cuda_graphs_vllm", "cpu_only", "triton", "event_sync", "rank_non_gpu", "h100_bert_small"]


@needs_traces
@pytest.mark.parametrize("name", _ODD)
def test_odd_traces_differ_from_others_only(name: str) -> None:
    """AMD, graphs, no GPU, no steps, one kernel: all can be compared, with themselves and with another."""
    path = recorded(name)
    assert diff(*read_sides([path], [path])).is_empty
    found = diff(*read_sides([path], [recorded("two_ranks_0")]))
    assert not found.is_empty
    assert in_words(found)
    assert "<html" in page_html(found)


def test_diff_json_is_what_was_found(tmp_path: Path) -> None:
    for name, lengths in (("a", _STEADY), ("b", [t + 50 for t in _STEADY])):
        _steps(lengths).write(tmp_path / f"{name}.json")
    a, b, out = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "out"
    assert main(["diff", str(a), str(b), "--out", str(out), "--no-report"]) == 0
    assert read(out / "diff.json", Diff) == diff(*read_sides([a], [b]))
    (row,) = json.loads((out / "diff.json").read_text())["kernels"]
    assert (row["class"], row["status"]) == ("compute", "slower")


@pytest.mark.parametrize("missing", [0, 1])
def test_bad_input_is_one_message(tmp_path: Path, missing: int, capsys: pytest.CaptureFixture[str]) -> None:
    good = _steps(_STEADY).write(tmp_path / "good.json")
    paths: list[Any] = [good, good]
    paths[missing] = tmp_path / "none.json"
    assert main(["diff", *map(str, paths), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"steptrace: error: {tmp_path / 'none.json'}: ")
    assert not (tmp_path / "out").exists()
