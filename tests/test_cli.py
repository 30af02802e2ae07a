"""`steptrace analyze`: what it writes, and what it says of what it cannot read."""

import errno
import gzip
import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

import steptrace
from builders import TraceBuilder, training_step
from steptrace.cli import main
from steptrace.documents.base import version_of
from steptrace.documents.summary import Summary
from steptrace.trace.link import read_trace


def _two_steps(rank: int | None = None) -> TraceBuilder:
    builder = TraceBuilder(**({} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}))
    for index in range(2):
        training_step(builder, index, index * 1_100_000)
    return builder


def _analyze(out: Path, *traces: Path) -> dict[str, Any]:
    assert main(["analyze", *map(str, traces), "--out", str(out), "--no-report"]) == 0
    return dict(json.loads((out / "summary.json").read_text()))


def test_summary_of_one_trace(tmp_path: Path) -> None:
    path = _two_steps().write(tmp_path / "trace.json.gz")
    summary = _analyze(tmp_path / "new" / "out", path)
    assert summary["schema_version"] == version_of(Summary)
    (entry,) = summary["traces"]
    assert entry["path"] == str(path)
    assert len(entry["sha256"]) == 64
    assert (entry["rank"], entry["device"], entry["world_size"]) == (None, 0, None)
    quality = entry["quality"]
    assert (quality["steps"], quality["launch_coverage"], quality["warnings"]) == (2, 1.0, [])
    assert {check["check"]: check["wrong"] for check in quality["checks"]} == dict.fromkeys(
        ("steps_marked", "gpu_work", "linked_to_launch", "kernel_launches_with_work", "copies_with_work",
         "waiting_calls", "after_launch", "starts", "ends",
         "one_at_a_time", "one_gpu", "steps_in_turn",
         "step_numbers", "operators_within_steps", "steps_with_work"), 0,
    )  # fmt: skip
    gpu = entry["gpu"]
    assert gpu["activities"] == 10
    assert gpu["span_ns"] == gpu["compute_ns"] + gpu["exposed_memory_ns"] + gpu["idle_ns"]
    syncs = entry["syncs"]
    assert (syncs["count"], syncs["per_step"], syncs["by_step"], syncs["by_kind"]) == (2, 1.0, [1, 1], {"d2h_copy": 2})
    assert (syncs["blocked_ns"], syncs["outside_steps"]) == (44_000, 0)
    (site,) = syncs["sites"]
    assert (site["file"], site["line"], site["function"], site["count"]) == ("model.py", 10, "forward", 2)
    assert (entry["operators_per_step"], entry["kernels_per_step"]) == (4.0, 4.0)
    assert [step["index"] for step in entry["steps"]] == [0, 1]
    assert [label["label"] for label in entry["labels"]] == [
        "forward", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    ]  # fmt: skip
    causes = {"sync", "loader", "host", "dependency", "between_kernels", "unknown"}
    assert {name for name in entry["overview"]["parts_ns"] if "idle" in name} == {f"idle_{cause}" for cause in causes}
    tables = tmp_path / "new" / "out" / "tables" / "trace0"
    assert len(pd.read_parquet(tables / "kernels.parquet")) == 10
    for table in tables.iterdir():
        assert parquet.read_schema(table).metadata[b"steptrace.schema_version"] == b"1"
    assert pd.read_parquet(tables / "sync_sites.parquet")["count"].tolist() == [2]


def test_ranks_are_sorted_and_repeated_ones_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rank in (("a", 1), ("b", 0), ("c", 1)):
        _two_steps(rank).write(tmp_path / "in" / f"{name}.json")
    summary = _analyze(tmp_path / "out", tmp_path / "in")
    assert [(entry["rank"], Path(entry["path"]).name) for entry in summary["traces"]] == [
        (0, "b.json"), (1, "a.json"), (1, "c.json"),
    ]  # fmt: skip
    for entry in summary["traces"]:
        assert len(entry["quality"]["warnings"]) == 1
    (note,) = summary["notes"]
    assert note == {"code": "ranks_repeated", "figures": {"ranks": [{"rank": 1, "traces": 2}]}}
    (warning,) = summary["warnings"]
    assert capsys.readouterr().err.count(warning) == 1
    assert summary["ranks"] is None
    assert not (tmp_path / "out" / "tables" / "ranks").exists()


def test_the_page_is_named_and_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _two_steps().write(tmp_path / "trace.json")
    assert main(["analyze", str(path), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("GPU busy ")
    assert [line.partition(":")[0] for line in lines[1:3]] == ["Why", "First"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert b64encode((tmp_path / "out" / "step.json.gz").read_bytes()).decode() in page
    assert lines[-2:] == [str(tmp_path / "out" / name) for name in ("report.html", "summary.json")]


def test_what_an_earlier_call_made_is_replaced_as_a_whole(tmp_path: Path) -> None:
    inputs = [_two_steps(rank).write(tmp_path / "in" / f"{rank}.json") for rank in (0, 1)]
    out = tmp_path / "out"
    assert main(["analyze", *map(str, inputs), "--out", str(out), "--counters"]) == 0
    (out / "notes.txt").write_text("mine")
    assert main(["analyze", str(inputs[0]), "--out", str(out), "--no-report"]) == 0
    left = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    others = {name for name in left if not name.startswith("tables/trace0/")}
    assert others == {"summary.json", "notes.txt", ".steptrace.json"}


def _reducing(rank: int) -> TraceBuilder:
    builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2})
    for index in range(2):
        at = index * 1_100_000
        training_step(builder, index, at)
        sent = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 2**20, "Out msg nelems": 2**20}
        builder.kernel(at + 1000, at + 2000, 5000, "ncclDevKernel_AllReduce(x)", stream=20, **sent)
    return builder


def test_a_named_bandwidth_says_what_all_reduces_should_take_on_each_rank_and_over_all(tmp_path: Path) -> None:
    inputs = [_reducing(rank).write(tmp_path / "in" / f"{rank}.json") for rank in (0, 1)]
    out = tmp_path / "out"
    assert main(["analyze", *map(str, inputs), "--out", str(out), "--bandwidth", "25"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    each_ns = 1e9 * 4 * 2**20 / 25e9  # of two ranks each sends the message once
    assert [round(one["all_reduce"]["expected_ns"]) for one in summary["traces"]] == [round(2 * each_ns)] * 2
    of_ranks = summary["ranks"]["all_reduce"]
    assert (of_ranks["link_ns_per_step"], of_ranks["link_by"]) == (pytest.approx(each_ns, abs=1), "given")
    assert main(["analyze", *map(str, inputs), "--out", str(out), "--no-report"]) == 0  # a GPU without a name
    assert json.loads((out / "summary.json").read_text())["ranks"]["all_reduce"]["link_ns_per_step"] is None


@pytest.mark.parametrize("text", ["0", "-1", "fast", "nan", "inf", "450000000000"])
def test_a_bandwidth_that_is_none_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["analyze", "trace.json", "--out", "out", "--bandwidth", text])
    assert end.value.code == 2
    assert "--bandwidth" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="a file that cannot be read is found in /proc")
def test_a_trace_that_cannot_be_read_is_what_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "/proc/self/mem", "--out", str(tmp_path / "out.json.gz")]) == 2
    error = capsys.readouterr().err
    assert [named for named in ("/proc/self/mem", os.strerror(errno.EIO)) if named not in error] == []


def test_a_trace_of_a_cpu_run_measures_no_gpu(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.label("loss", 100, 500)
    builder.op("aten::mm", 110, 100)
    (entry,) = _analyze(tmp_path / "out", builder.write(tmp_path / "trace.json"))["traces"]
    assert {key: value for key, value in entry["gpu"].items() if value is not None} == {"activities": 0}
    assert (entry["device"], entry["gpu_busy_pct"], entry["sm_weighted_pct"], entry["kernels_per_step"]) == (None,) * 4
    assert entry["idle"] == {"by_stream": [], "gaps": None, "ended_by": [], "longest": []}
    assert entry["kernels"] == entry["kernel_types"] == []
    syncs = entry["syncs"]
    assert (syncs["count"], syncs["per_step"], syncs["exposed_idle_ns"], syncs["sites"]) == (0, None, None, [])
    (label,) = entry["labels"]
    assert (label["label"], label["count"], label["host_ns"], label["device_ns"]) == ("loss", 1, 500, None)
    assert entry["steps"][0]["idle_ns"] is None
    assert entry["operators_per_step"] == 1
    assert entry["quality"]["launch_coverage"] is None
    assert [check["check"] for check in entry["quality"]["checks"] if check["warns"]] == ["gpu_work"]


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (lambda b: [b.events.remove(e) for e in b.events[:] if "Step" in e["name"]], "no step label"),
        (lambda b: [b.gpu("lost", 10**7 + k, 1, None) for k in range(3)],
         "3 of 13 GPU activities have no launch in the trace; what follows from launches was not measured; call torch"),
        (lambda b: b.gpu("gemm", 10**7, 1, b.call("cudaLaunchKernel", 9, 1), device=1), "GPU work on 2 devices"),
        (lambda b: training_step(b, 5, 10**7), "not numbered one after the other: 0, 1, 5"),
        (lambda b: b.step(2, 10**7, 1000), "1 of 3 steps launched no GPU work; means per step include them"),
        (lambda b: b.op("aten::odd", 10, -5), "with an impossible time, size or device"),
        (lambda b: b.kernel(10**7, 10**7 - 5_000, 10), "start before the call that launched them, by up to 5 µs: the"),
        (lambda b: [b.call("cudaLaunchKernel", 10**7 + k, 1) for k in range(3)],
         "records at the end are missing; call torch.cuda.synchronize() before the profiler stops"),
        (lambda b: b.call("hipLaunchKernel", 9, 1), "1 of 9 kernel launches have no GPU activity in the trace"),
        (lambda b: [b.gpu("gemm", 10**7, 9_000, b.call("cudaLaunchKernel", 9, 1)) for _ in range(2)],
         "1 of 12 GPU activities start while an earlier one of their stream still runs"),
        (lambda b: [b.events.remove(e) for e in b.events[:] if e["cat"] in ("kernel", "gpu_memcpy")][:0] or
         b.gpu("gemm", 10**6, 1, None), "one GPU activity only: gaps were not measured"),
    ],
)  # fmt: skip
def test_quality_warnings_are_in_the_summary_and_on_stderr(
    tmp_path: Path, change: Any, warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = _two_steps()
    change(builder)
    (entry,) = _analyze(tmp_path / "out", builder.write(tmp_path / "trace.json"))["traces"]
    assert [w for w in entry["quality"]["warnings"] if warning in w]
    assert warning in capsys.readouterr().err


_BAD = {
    "empty.json": b"",
    "cut.json": _two_steps().text()[:-100],
    "cut.json.gz": gzip.compress(_two_steps().text())[:-30],
    "prose.json": b"once upon a time",
    "other.json": b'{"a": 1}',
    "list.json": b"[1, 2]",
    "none.json": None,
    "none_folder/": None,
    "folder/": b"",
}


@pytest.mark.parametrize("name", sorted(_BAD))
def test_bad_input_is_one_message_and_exit_code_2(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    text = _BAD[name]
    if text is not None:
        path.mkdir() if name.endswith("/") else path.write_bytes(text)
    assert main(["analyze", str(path), "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"steptrace: error: {path}: ")
    assert captured.err.count("error") == 1
    assert not (tmp_path / "out").exists()


_FOREIGN = [{"ph": "X", "cat": "other", "name": f"e{k}", "ts": k, "dur": 1, "pid": 1} for k in range(50)]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (_FOREIGN, "not a trace of PyTorch's profiler"),
        ([_FOREIGN[0] | {"cat": "Trace"}], "profiler's schedule"),
        ([], "profiler's schedule"),
    ],
)
def test_what_is_no_trace_of_pytorch_is_called_what_it_is(
    tmp_path: Path, events: list[dict[str, Any]], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert main(["analyze", str(path), "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_an_excerpt_holds_one_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = _two_steps().write(tmp_path / "trace.json")
    excerpt = tmp_path / "step.json.gz"
    arguments = ["analyze", str(trace), "--out", str(tmp_path / "out"), "--no-report"]
    assert main([*arguments, "--excerpt", str(excerpt), "--step", "1"]) == 0
    assert "step.json.gz: step 1, " in capsys.readouterr().out
    assert read_trace(excerpt).steps["index"].tolist() == [1]


def test_a_step_is_chosen_for_an_excerpt_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "a.json", "--step", "1", "--out", str(tmp_path / "out")]) == 2
    assert "next: add --excerpt" in capsys.readouterr().err


def test_an_excerpt_of_traces_whose_clocks_cannot_be_aligned_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = [str(_two_steps().write(tmp_path / f"{name}.json")) for name in "ab"]
    excerpt = tmp_path / "step.json.gz"
    assert main(["analyze", *traces, "--out", str(tmp_path / "out"), "--excerpt", str(excerpt)]) == 2
    assert "a.json" in capsys.readouterr().err
    assert not excerpt.exists()


def test_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["analyze"], ["diff", "x.json"], ["run"], ["no-such"]):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
    assert "usage: steptrace" in capsys.readouterr().err


def _python(*arguments: str, without: Sequence[str] = ()) -> str:
    """What an interpreter prints that lacks these modules and ends well."""
    if without:
        absent = f"import sys; sys.modules.update(dict.fromkeys({without}))\n"
        arguments = ("-c", absent + arguments[0])
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_analysis_imports_without_torch(tmp_path: Path) -> None:
    path = _two_steps().write(tmp_path / "trace.json")
    arguments = ["analyze", str(path), "--out", str(tmp_path / "out"), "--no-report"]
    code = f"from steptrace.cli import main; sys.exit(main({arguments}))"
    _python(code, without=["torch", "scipy", "jinja2"])
    assert (tmp_path / "out" / "summary.json").is_file()


def test_the_package_can_be_run_as_a_module() -> None:
    assert _python("-m", "steptrace", "--version") == f"steptrace {steptrace.__version__}\n"


@pytest.mark.parametrize(
    ("asked", "missing", "shown"),
    [
        (["--help"], ["numpy", "pandas", "scipy", "msgspec", "yaml", "torch"], "predict"),
        (["predict", "--help"], ["numpy", "pandas", "scipy", "pyarrow", "torch"], "--budget"),
    ],
)
def test_help_needs_no_heavy_library(asked: list[str], missing: list[str], shown: str) -> None:
    assert shown in _python(f"from steptrace.cli import main; main({asked})", without=missing)


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_reader_that_has_seen_enough_is_no_error(closed: str) -> None:
    reader, output = os.pipe()
    os.close(reader)
    script = (
        "import sys\n"
        "from steptrace import cli\n"
        "from steptrace.commands import doctor\n"
        f"doctor.run = lambda arguments: print('text' * 9999, file=sys.{closed})\n"
        "sys.exit(cli.main(['doctor']))\n"
    )
    others = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {closed: output}
    done = subprocess.run([sys.executable, "-c", script], **others, check=False)  # type: ignore[call-overload]
    os.close(output)
    assert (done.returncode, done.stdout or b"", done.stderr or b"") == (141, b"", b"")


def test_everything_but_training_imports_without_torch() -> None:
    script = (
        "import pkgutil, importlib\n"
        "import steptrace\n"
        "launch = ('hooks', 'install', 'memory_history', 'modes', 'predict', 'probe')\n"
        "engine = ('clock', 'compilations', 'condition_values', 'frames', 'measure', 'memory', 'nvml',\n"
        "    'process_facts', 'step_conditions', 'step_counters', 'step_recorders')\n"
        "with_torch = (*('steptrace.engine.' + name for name in engine),\n"
        "    'steptrace.equivalence.main', 'steptrace.equivalence.outputs', 'steptrace.equivalence.reference',\n"
        "    'steptrace.lab', 'steptrace.workloads', 'steptrace.predict', 'steptrace.ext', 'steptrace.callbacks',\n"
        "    'steptrace.inductor',\n"
        "    *('steptrace.launch.' + name for name in launch))\n"
        "for module in pkgutil.walk_packages(steptrace.__path__, 'steptrace.', onerror=lambda name: None):\n"
        "    if not module.name.startswith(with_torch):\n"
        "        importlib.import_module(module.name)\n"
        "        print(module.name)\n"
    )
    assert "steptrace.analysis" in _python(script, without=["torch"]).split()
