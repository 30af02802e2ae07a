"""Two sides joined: what changed, renamed kernels, the cause, what is not measured, the real pair."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from builders import TraceBuilder, training_step
from figures import figures_in
from findings.fixtures.straggler import two_ranks
from recorded import TRACES, needs_traces
from shown import with_plain_spaces
from steptrace import format as fmt
from steptrace.analysis.common.labels import MOST_LABELS
from steptrace.analysis.program import MOST_LINES
from steptrace.cli import main
from steptrace.diff import diff, read_sides
from steptrace.documents.base import read
from steptrace.documents.diff import Diff, Pair
from steptrace.errors import TraceError
from steptrace.report.diff import _pair, in_words, page_html, totals
from steptrace.trace.excerpt import write_excerpt
from steptrace.words.lines import SCREEN

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


_STEADY = [100, 101, 99, 100, 102, 98]
Compared = Callable[[TraceBuilder, TraceBuilder], Diff]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """The diff of two made traces."""

    def of(a: TraceBuilder, b: TraceBuilder) -> Diff:
        files = [builder.write(tmp_path / f"{name}.json") for name, builder in (("a", a), ("b", b))]
        return diff(*read_sides([files[0]], [files[1]]))

    return of


def test_a_trace_does_not_differ_from_itself(compared: Compared) -> None:
    builder = TraceBuilder()
    for index in range(3):
        training_step(builder, index, index * 1_100_000, sync=index != 1)
    same = compared(builder, builder)
    assert (same.kernels, same.operators, same.syncs, same.lines) == ((), (), (), ())
    assert "no difference" in same.cause
    assert "kernels, per step: 0 changes" in in_words(same)


def test_a_longer_kernel_stands_at_its_operator_too(compared: Compared) -> None:
    document = compared(_steps(_STEADY), _steps([t + 50 for t in _STEADY]))
    (row,) = document.kernels
    assert row.figures["sum_ns"] == Pair(a=100_000, b=150_000)
    assert (row.in_a, row.in_b) == (True, True)
    assert "aten::mm" in [row.name for row in document.operators]
    assert "gemm" in page_html(document)
    words = in_words(document)
    (line,) = (line for line in words.splitlines() if line.startswith("kernels"))
    assert figures_in(line) == [1]
    assert not any(word in words for word in ("better", "worse", "slower"))  # figures, no verdict
    names = [name for name, _ in totals(document)]
    assert len(names) == len(set(names))  # no figure stands there twice


def test_syncs_are_per_step_as_all_else(compared: Compared) -> None:
    one, two = TraceBuilder(), TraceBuilder()
    for index in range(4):
        training_step(one, index, index * 1_100_000, sync=True)
        training_step(two, index, index * 1_100_000, sync=index % 2 == 0)
    document = compared(one, two)
    (row,) = document.syncs
    assert row.figures["count"] == Pair(a=1, b=0.5)


def test_what_only_one_side_has_is_listed(compared: Compared) -> None:
    document = compared(_steps(_STEADY), _steps(_STEADY, extra="relu"))
    (row,) = document.kernels
    assert (row.name, row.in_a, row.in_b) == ("relu", False, True)
    assert "only in B" in in_words(document)


def test_the_text_is_at_most_a_screen_and_each_topic_has_its_largest_change(compared: Compared) -> None:
    builders = _steps([]), _steps([])
    for number, builder in enumerate(builders):
        for index in range(3):
            builder.step(index, index * 1_000_000, 900_000)
            for n in range(15):
                ts = index * 1_000_000 + n * 40_000
                builder.frame(f"model.py({n + 1}): layer_{n}", ts, 30_000)
                builder.op(f"aten::op{n}_", ts, 20_000 + number * 100 * n)
                builder.kernel(ts + 5_000, ts + 12_000, 10_000 + number * 100 * n, f"kernel_{n}")
    lines = in_words(compared(*builders)).split("\n")
    assert len(lines) < SCREEN  # the command adds the page's name
    (kernels,) = (line for line in lines if line.startswith("kernels"))
    assert figures_in(kernels)[0] == 13
    assert any(line.startswith("  kernel_14") for line in lines)
    assert any(line.startswith("  aten::op14_") for line in lines)
    assert any(line.startswith("  layer_14") for line in lines)
    assert "diff.json" in lines[-1]


def test_tables_of_other_subjects_are_joined_by_their_keys(compared: Compared) -> None:
    one, two = _steps(_STEADY), _steps(_STEADY)
    for index in range(len(_STEADY)):
        one.kernel(index * 1_000_000 + 85_000, index * 1_000_000 + 600_000, 2_000, "relu", stream=9)
        two.kernel(index * 1_000_000 + 85_000, index * 1_000_000 + 600_000, 3_000, "relu", stream=9)
    assert compared(one, one).tables == {}
    document = compared(one, two)
    (row,) = document.tables["streams"]
    assert (row.name, row.figures["busy_ns"]) == ("9", Pair(a=2_000, b=3_000))
    assert "2.00 µs → 3.00 µs" in with_plain_spaces(page_html(document))
    assert "streams, per step" not in in_words(document)  # a terminal has the topics of every diff alone


def test_labels_are_compared_on_a_cpu_too(compared: Compared) -> None:
    sides = TraceBuilder(), TraceBuilder()
    for builder, length in zip(sides, (100_000, 200_000), strict=True):
        for index in range(2):
            builder.step(index, index * 1_000_000, 900_000)
            builder.label("loss", index * 1_000_000 + 5_000, length)
            for number in range(MOST_LABELS):  # longer ones, which alone stand in summary.json
                builder.label(f"part {number}", index * 1_000_000 + 300_000 + number, 500_000 - 2 * number)
    document = compared(*sides)
    (row,) = document.tables["labels"]
    assert (row.name, row.in_a, row.in_b) == ("loss", True, True)
    assert row.figures["host_ns"] == Pair(a=100_000, b=200_000)
    assert "100 µs → 200 µs (2.00×)" in with_plain_spaces(page_html(document))


def test_a_line_is_compared_however_many_take_longer(compared: Compared) -> None:
    """summary.json lists `MOST_LINES` alone: a line that drops behind them is still on both sides."""
    sides = TraceBuilder(), TraceBuilder()
    for builder, length in zip(sides, (9_000, 1_000), strict=True):
        builder.step(0, 0, 900_000)
        for number in range(MOST_LINES + 1):
            ts = 20_000 * number
            builder.frame(f"model_{number}.py({number + 1}): part_{number}", ts, 10_000)
            builder.op("aten::mm", ts + 1_000, 5_000)
            builder.kernel(ts + 2_000, ts + 8_000, 5_000 if number else length)
    (row,) = compared(*sides).lines
    assert (row.place, row.in_a, row.in_b) == ("model_0.py: part_0", True, True)
    assert row.figures["device_ns"] == Pair(a=9_000, b=1_000)


def test_lines_of_traces_without_python_frames_are_not_measured(compared: Compared) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 900_000)
    builder.kernel(10_000, 20_000, 30_000)
    without = compared(builder, _steps(_STEADY))
    assert without.not_measured == ("lines",)
    assert "lines: not measured" in in_words(without)
    assert compared(_steps(_STEADY), _steps(_STEADY)).not_measured == ()


def test_of_syncs_without_a_line_the_label_tells_which(compared: Compared) -> None:
    builders = TraceBuilder(), TraceBuilder()
    for builder, wait in zip(builders, (100_000, 200_000), strict=True):
        builder.step(0, 0, 900_000)
        builder.label("read the mask", 5_000, 400_000)
        builder.kernel(10_000, 20_000, 30_000)
        builder.item(60_000, wait, 70_000)
    (row,) = compared(*builders).syncs
    assert row.place == "read the mask"


def test_a_kernel_keeps_its_place_under_a_new_name(compared: Compared) -> None:
    old, new = MUL.format("2"), MUL.format("(int)3")
    assert compared(_steps(_STEADY, kernel=old), _steps(_STEADY, kernel=new)).kernels == ()
    (row,) = compared(_steps(_STEADY, kernel=old), _steps([t + 50 for t in _STEADY], kernel=new)).kernels
    assert (row.name, row.renamed_from, row.in_a) == (new, (old,), True)


def test_a_trace_without_gpu_has_no_kernels_to_compare(compared: Compared) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 100, 500)
    document = compared(builder, _steps(_STEADY))
    assert document.not_measured == ("kernels", "syncs", "lines")
    assert document.figures["gpu_busy_pct"] == Pair(a=None, b=document.figures["gpu_busy_pct"].b)
    assert "kernels: not measured" in in_words(document)
    assert page_html(document).count("Not measured: ") == len(document.not_measured)


def _slow_step(kernel_us: int, *, with_calls: bool) -> TraceBuilder:
    """Steps that are longer by what their kernel takes, each with a sync."""
    builder = TraceBuilder()
    length = (600 + kernel_us) * 1000
    for step in range(4):
        at = step * length
        builder.step(step, at, length)
        builder.frame("model.py(10): forward", at, 300_000)
        builder.op("aten::mm", at + 10_000, 50_000)
        builder.kernel(at + 20_000, at + 30_000, kernel_us * 1000)
        builder.call("cudaStreamSynchronize", at + 40_000, kernel_us * 1000)
    if not with_calls:
        builder.events = [event for event in builder.events if event["cat"] != "cuda_runtime"]
    return builder


@pytest.mark.parametrize("lacking", ["a", "b"])
def test_what_one_side_cannot_tell_is_neither_compared_nor_the_cause(lacking: str, compared: Compared) -> None:
    document = compared(
        _slow_step(100, with_calls=lacking != "a"),
        _slow_step(300, with_calls=lacking != "b"),
    )
    assert document.not_measured == ("syncs", "lines")
    assert (document.syncs, document.lines, "queues" in document.tables) == ((), (), False)
    assert None in (document.parts_ns["idle_sync"].a, document.parts_ns["idle_sync"].b)
    assert document.cause_figures.part == "compute"
    assert page_html(document).count("Not measured: ") == len(document.not_measured)
    assert "syncs: not measured" in in_words(document)


def test_what_both_sides_can_tell_is_compared(compared: Compared) -> None:
    document = compared(_slow_step(100, with_calls=True), _slow_step(300, with_calls=True))
    assert (document.not_measured, "queues" in document.tables, len(document.lines)) == ((), True, 1)


def test_traces_without_steps_are_compared_whole(compared: Compared) -> None:
    sides = TraceBuilder(), TraceBuilder()
    for builder, length in zip(sides, (100, 200), strict=True):
        for index in range(3):
            builder.kernel(index * 1_000, index * 1_000 + 100, length, "gemm")
    document = compared(*sides)
    assert (document.a.steps, document.b.steps) == (0, 0)
    assert document.kernels[0].figures["sum_ns"] == Pair(a=300, b=600)
    assert any("fewer than two steps" in note for note in document.notes)


def test_sides_of_several_ranks_count_all_their_steps(tmp_path: Path) -> None:
    for side in "ab":
        (tmp_path / side).mkdir()
        for rank in range(2):
            _steps(_STEADY).write(tmp_path / side / f"rank{rank}.json")
    document = diff(*read_sides([tmp_path / "a"], [tmp_path / "b"]))
    assert (document.a.steps, document.kernels) == (12, ())


def test_waiting_for_other_ranks_and_transfer_are_compared_apart(tmp_path: Path) -> None:
    """Both all-reduces end at the same instant; on A's second rank one begins 100 us later."""
    for side, late in (("a", 100_000), ("b", 0)):
        two_ranks(tmp_path / side, late)
    document = diff(*read_sides([tmp_path / "a"], [tmp_path / "b"]))
    waits = document.parts_ns["exposed_wait"]
    assert waits.a == pytest.approx(50_000, abs=5_000)  # a mean of two ranks, of which one waits 100 us
    assert waits.b == 0
    transfer = document.parts_ns["exposed_transfer"]
    assert (transfer.a, transfer.b) == (pytest.approx(150_000, abs=5_000), pytest.approx(250_000, abs=5_000))
    assert "exposed_comm" not in document.parts_ns
    one = diff(*read_sides([tmp_path / "a" / "rank0.json"], [tmp_path / "b" / "rank0.json"]))
    assert "exposed_comm" in one.parts_ns
    for compared_sides in (document, one):
        assert sum(pair.a or 0 for pair in compared_sides.parts_ns.values()) == pytest.approx(compared_sides.step_ns.a)


@needs_traces
def test_the_real_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts of Holistic Trace Analysis's TraceDiff a step, and its copies of three to 768."""
    assert main(["diff", *map(str, REAL), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert all(figure in printed for figure in ("77.5 ms in A", "124 ms in B", "compute, +44.4 ms"))
    document = read(tmp_path / "out" / "diff.json", Diff)
    calls = {row.name: row.figures["calls"] for row in document.operators if "calls" in row.figures}
    assert calls["aten::copy_"] == Pair(a=74, b=872)
    assert calls["aten::mm"] == Pair(a=182, b=46)
    assert document.kernels[0].name == "Memcpy DtoD (Device -> Device)"
    assert any("split_embedding" in row.name for row in document.kernels if row.renamed_from)
    assert any("A100" in note and "V100" in note for note in document.notes)


@pytest.mark.parametrize("missing", [0, 1])
def test_bad_input_is_one_message(tmp_path: Path, missing: int, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(_steps(_STEADY).write(tmp_path / f"{k}.json")) for k in range(2)]
    files[missing] = str(tmp_path / "gone.json")
    assert main(["diff", *files, "--out", str(tmp_path / "out")]) == 2
    assert "gone.json" in capsys.readouterr().err
    assert not (tmp_path / "out" / "diff.json").exists()


def test_diff_json_is_what_was_compared(tmp_path: Path) -> None:
    files = [str(_steps(times).write(tmp_path / f"{k}.json")) for k, times in enumerate((_STEADY, [200] * 6))]
    assert main(["diff", *files, "--out", str(tmp_path / "out")]) == 0
    (row,) = json.loads((tmp_path / "out" / "diff.json").read_text())["kernels"]
    assert row["figures"]["sum_ns"] == {"a": 100_000, "b": 200_000}
    assert (tmp_path / "out" / "diff.html").exists()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (6_490_000, 3_100_000, "6.49 ms → 3.10 ms (0.48×)"),
        (1_140_000, 500, "1.14 ms → 500 ns"),
        (0, 17_500, "0 ns → 17.5 µs"),
    ],
)
def test_a_ratio_is_given_only_where_it_says_more_than_the_figures(before: float, after: float, words: str) -> None:
    assert _pair(Pair(before, after), "ns") == words


def test_the_page_leads_with_a_waterfall_from_one_step_to_the_other_and_with_what_is_only_on_one_side(
    compared: Compared,
) -> None:
    document = compared(_steps(_STEADY, extra="gelu"), _steps([t + 50 for t in _STEADY], extra="relu"))
    page = page_html(document)
    rows = re.findall(r"<li[^>]*><span>(.*?)</span>.*?<b>(.*?)</b></li>", page, re.DOTALL)
    assert document.step_ns.a is not None
    assert document.step_ns.b is not None
    assert (rows[0][1], rows[-1][1]) == (fmt.duration_ns(document.step_ns.a), fmt.duration_ns(document.step_ns.b))
    assert "compute" in [name for name, _ in rows]
    place = {name: page.index(name) for name in ('class="way"', 'id="one-sided"', 'id="totals"', 'id="kernels"')}
    assert sorted(place, key=place.__getitem__) == list(place)
    alone = page[place['id="one-sided"'] : place['id="totals"']]
    assert [alone.count(name) for name in ("gelu", "relu", "gemm")] == [1, 1, 0]
    assert 'id="one-sided"' not in page_html(compared(_steps(_STEADY), _steps([t + 50 for t in _STEADY])))


@pytest.mark.parametrize("damaged", ["a", "b"])
def test_a_damaged_rank_of_a_folder_costs_that_rank_alone(tmp_path: Path, damaged: str) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for rank in range(2):
            _steps(_STEADY).write(tmp_path / name / f"trace_rank{rank}.json")
    (tmp_path / damaged / "trace_rank1.json").write_text('{"traceEvents": [{"ph"')
    changes = diff(*read_sides([tmp_path / "a"], [tmp_path / "b"]))
    (note,) = (remark for remark in changes.remarks if remark.code == "trace_not_read")
    assert (note.figures["side"], Path(note.figures["file"]).name) == (damaged.upper(), "trace_rank1.json")
    assert {len(changes.a.paths), len(changes.b.paths)} == {1, 2}
    with pytest.raises(TraceError):
        read_sides([tmp_path / damaged / "trace_rank1.json"], [tmp_path / "a"])


def test_an_excerpt_is_said_to_be_one(tmp_path: Path) -> None:
    whole, out = _steps(_STEADY).write(tmp_path / "whole.json"), tmp_path / "step.json.gz"
    write_excerpt(whole, out)
    remarks = diff(*read_sides([whole], [out])).remarks
    assert [remark.figures["side"] for remark in remarks if remark.figures.get("code") == "excerpt"] == ["B"]


def test_warnings_of_the_traces_are_said_by_side_each_kind_once(tmp_path: Path) -> None:
    """Rank 1 and 2 of one side have lost records by the profiler's log."""
    for name, dropped in (("a", (0, 0, 0)), ("b", (0, 12, 3))):
        (tmp_path / name).mkdir()
        for rank, number in enumerate(dropped):
            builder = _steps(_STEADY)
            builder.metadata |= {"WARNING": [f"Dropped {number} activity records"]} if number else {}
            builder.write(tmp_path / name / f"trace_rank{rank}.json")
    remarks = diff(*read_sides([tmp_path / "a"], [tmp_path / "b"])).remarks
    (found,) = (remark for remark in remarks if remark.figures.get("code") == "profiler_lost_records")
    figures = found.figures
    assert (figures["side"], figures["traces"], figures["of"]) == ("B", 2, 3)
    assert (Path(figures["file"]).name, figures["figures"]["dropped"]) == ("trace_rank1.json", 12)


def _of_maker(runtime: str) -> TraceBuilder:
    """A step that reads a value and waits for the device, as the GPUs of one maker write it."""
    builder = TraceBuilder()
    for index in range(2):
        begin = index * 1_000_000
        builder.step(index, begin, 900_000)
        builder.frame("train.py(1): step", begin, 890_000)
        builder.kernel(begin + 10_000, begin + 20_000, 300_000)
        builder.op("aten::_local_scalar_dense", begin + 400_000, 50_000)
        if runtime == "cuda":
            builder.item(begin + 401_000, 20_000, begin + 402_000)
        else:
            copy = builder.call("hipMemcpyWithStream", begin + 401_000, 22_000)
            builder.gpu("Memcpy DtoH (Device -> Pinned)", begin + 402_000, 1_000, copy)
        builder.call(f"{runtime}DeviceSynchronize", begin + 500_000, 30_000)
    for event in builder.events:
        event["name"] = event["name"].replace("cudaLaunchKernel", f"{runtime}LaunchKernel")
    return builder


def test_syncs_of_gpus_of_two_makers_are_the_same_ones(compared: Compared) -> None:
    assert compared(_of_maker("cuda"), _of_maker("hip")).syncs == ()
    slower = _of_maker("hip")
    for event in slower.events:
        if event["name"] == "hipDeviceSynchronize":
            event["dur"] *= 2
    (row,) = compared(_of_maker("cuda"), slower).syncs
    assert (row.in_a, row.in_b, row.figures["blocked_ns"].a, row.figures["blocked_ns"].b) == (
        True,
        True,
        30_000,
        60_000,
    )


def test_kinds_of_syncs_of_one_maker_stay_apart(compared: Compared) -> None:
    other = _of_maker("cuda")
    for event in other.events:
        if event["name"] == "cudaDeviceSynchronize":
            event["name"] = "cudaEventSynchronize"
    assert {(row.in_a, row.in_b) for row in compared(_of_maker("cuda"), other).syncs} == {(True, False), (False, True)}


def _analyzed(folder: Path, kernel_ns: int, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder that `steptrace analyze` wrote beside its trace."""
    builder = TraceBuilder()
    for index in range(3):
        builder.step(index, 100_000 * index, 90_000)
        builder.kernel(100_000 * index + 1_000, 100_000 * index + 20_000, kernel_ns + 1_000 * index)
    folder.mkdir()
    trace = builder.write(folder / "trace.json")
    assert main(["analyze", str(trace), "--out", str(folder / "out")]) == 0
    capsys.readouterr()
    return folder / "out"


def test_folders_of_analyze_stand_for_the_whole_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (_analyzed(tmp_path / name, ns, capsys) for name, ns in (("a", 10_000), ("b", 20_000)))
    first, second = read_sides([a], [b])
    assert (first.steps, second.steps) == (3, 3)
    (a.parent / "trace.json").rename(tmp_path / "moved")
    assert read_sides([a], [b])[0].steps == 1  # the excerpt of one step


def test_a_trace_that_changed_since_it_was_analyzed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (_analyzed(tmp_path / name, ns, capsys) for name, ns in (("a", 10_000), ("b", 20_000)))
    (a.parent / "trace.json").write_bytes((b.parent / "trace.json").read_bytes())
    with pytest.raises(TraceError, match="changed"):
        read_sides([a], [b])
