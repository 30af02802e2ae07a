import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders import TraceBuilder
from documents import fill
from steptrace.documents.base import read, write
from steptrace.documents.comparison import Comparison, Partial
from steptrace.documents.run import Environment
from steptrace.documents.summary import Summary
from steptrace.errors import ConfigError, RecordError
from steptrace.evidence import collect as collecting
from steptrace.evidence.collect import MAX_BYTES, README_BYTES, collect, gpus_needed, machine_name, runnable

ROOT = Path(__file__).parents[1]

ENVIRONMENT = fill(Environment, {"gpu": "NVIDIA H200", "cpu": "a cpu", "torch": "2.11.0"})


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working directory after a study of one good variant and one that failed."""
    results = tmp_path / "results" / "study"
    (results / "good" / "run0").mkdir(parents=True)
    (results / "bad" / "run0").mkdir(parents=True)
    comparison = {
        "study": "study",
        "scale": "gpu",
        "environment": {"gpu": "NVIDIA H200", "cpu": "a cpu"},
        "variants": [
            {
                "name": "good",
                "step_ms": {"median": 12.0},
                "ratio": {"value": 1.5, "low": 1.4, "high": 1.6, "verdict": "faster"},
                "syncs": {"measured_per_step": 3, "predicted_per_step": 2},
                "gpu_busy_pct": 80.0,
                "equivalence": {"status": "same"},
            },
            {"name": "bad"},
        ],
    }
    write(results / "comparison.json", fill(Comparison, comparison))
    (results / "good" / "run0" / "run.json").write_text("{}")
    summary = {"traces": [{"rank": 0, "timeline": {"lanes": []}}], "trace_excerpt": {"file": "excerpt.json.gz"}}
    write(results / "good" / "run0" / "summary.json", fill(Summary, summary))
    trace = TraceBuilder()
    trace.step(0, 0, 100)
    trace.gpu("gemm", 5, 10, None)
    trace.write(results / "good" / "run0" / "trace.json.gz")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "study.html").write_text("<p>page</p>")
    (tmp_path / "reports" / "index.html").write_text("<p>index</p>")
    (tmp_path / "results" / "verdict.json").write_text("{}")
    (tmp_path / "results" / "evidence").mkdir()
    (tmp_path / "results" / "evidence" / "tests.txt").write_text(f"{tmp_path}/tests/a.py\n19 passed\n")
    return tmp_path


def test_the_small_results_stand_in_a_folder_named_by_the_gpu(work: Path) -> None:
    folder = collect(work, scale="gpu", out=work / "reference", origin="by `make gpu-evidence`")
    assert folder.name == "h200"
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == [
        "README.md",
        "environment.json",
        "index.html",
        "study.html",
        "study/comparison.json",
        "study/good.summary.json",
        "tests.txt",
        "traces/study.good.pt.trace.json.gz",
    ]
    (trace,) = read(folder / "study/good.summary.json", Summary).traces
    assert (trace.rank, trace.timeline) == (0, None)
    assert (folder / "tests.txt").read_text() == "tests/a.py\n19 passed\n"
    readme = (folder / "README.md").read_text()
    assert "make gpu-evidence" in readme
    assert "study/bad: run0 did not end well" in readme
    assert collect(work, scale="gpu", out=work / "reference", origin="again") == folder


def test_of_a_study_that_was_cut_off_there_is_what_it_got_to(work: Path) -> None:
    comparison = work / "results" / "study" / "comparison.json"
    partial = replace(read(comparison, Comparison), partial=Partial(runs=1, planned=6))
    write(comparison.with_name("comparison.partial.json"), partial)
    comparison.unlink()
    run = work / "results" / "study" / "good" / "run0"
    (run / "summary.json").rename(run / "summary.partial.json")
    folder = collect(work, scale="gpu", out=work / "reference", origin="make")
    assert read(folder / "study" / "comparison.json", Comparison) == partial
    assert (folder / "study" / "good.summary.json").is_file()
    assert "study: partial, 1 of 6 runs" in (folder / "README.md").read_text()


def test_a_variant_whose_files_cannot_be_read_takes_no_other_with_it(work: Path) -> None:
    study = work / "results" / "study"
    shutil.copytree(study / "good" / "run0", study / "bad" / "run0", dirs_exist_ok=True)
    (study / "good" / "run0" / "summary.json").write_text("{")
    folder = collect(work, scale="gpu", out=work / "reference", origin="make")
    assert "- study/good: incomplete, " in (folder / "README.md").read_text()
    assert [file.name for file in (folder / "traces").iterdir()] == ["study.bad.pt.trace.json.gz"]


def test_an_archive_that_cannot_be_written_leaves_the_earlier_one(work: Path) -> None:
    archive = work / "all.tar.gz"
    archive.write_text("earlier")
    for name in "abcd":  # each is below the limit of 50 KiB a file, their archive is not
        (work / "results" / "evidence" / f"{name}.json").write_bytes(random.Random(name).randbytes(30_000))
    script = ROOT / "workflow" / "scripts" / "evidence.py"
    command = [sys.executable, script, "collect", work, "--scale", "gpu", "--origin", "make", "--archive", archive]
    limited = [
        "bash",
        "-c",
        'ulimit -f 50 && exec "$@"',
        "bash",
        *command,
        "--out",
        work / "reference",
    ]
    ended = subprocess.run(limited, capture_output=True, check=False)
    assert (ended.returncode == 0, (work / "reference" / "h200").is_dir()) == (False, True), ended.stderr
    assert archive.read_text() == "earlier"


def test_excerpts_give_way_if_the_rest_needs_the_room(work: Path) -> None:
    folder = collect(work, scale="gpu", out=work / "reference", origin="make")
    sizes = {file.name: file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    room = MAX_BYTES - README_BYTES - (sum(sizes.values()) - sizes["README.md"])
    with (work / "reports" / "study.html").open("a") as page:
        page.write("x" * (room + 1))
    folder = collect(work, scale="gpu", out=work / "reference", origin="make")
    assert not list((folder / "traces").iterdir())
    assert "study.good.pt.trace.json.gz: left out" in (folder / "README.md").read_text()
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= MAX_BYTES


def test_a_call_that_was_cut_off_before_any_study_leaves_what_there_is(tmp_path: Path) -> None:
    logs = tmp_path / "results" / "evidence"
    logs.mkdir(parents=True)
    write(logs / "machine.json", ENVIRONMENT)
    (logs / "tests.txt").write_text("19 passed\n")
    (logs / "giou_large_float32.json").write_text('{"rows": []}')
    (logs / "left_out.txt").write_text("all_reduce: left out, it needs 2 GPUs, and there is one\n")
    folder = collect(tmp_path, scale="gpu", out=tmp_path / "reference", origin="make")
    assert folder.name == "h200"
    assert (folder / "bench" / "giou_large_float32.json").read_text() == '{"rows": []}'
    readme = (folder / "README.md").read_text()
    assert "- no study was compared at scale gpu\n- all_reduce: left out, it needs 2 GPUs, and there is one" in readme
    assert "Simulated" not in readme
    write(logs / "machine.json", replace(ENVIRONMENT, gpu="NVIDIA H100 (stand-in)"))
    stand_in = collect(tmp_path, scale="gpu", out=tmp_path / "reference", origin="make")
    assert "> **Simulated.** No GPU was there" in (stand_in / "README.md").read_text()


def test_an_excerpt_is_made_once_until_its_trace_is_another(work: Path) -> None:
    folder = collect(work, scale="gpu", out=work / "reference", origin="by `make gpu-evidence`")
    excerpt = folder / "traces" / "study.good.pt.trace.json.gz"
    kept = work / "results" / "evidence" / "excerpts" / excerpt.name
    right = excerpt.read_bytes()
    kept.write_bytes(b"earlier")
    collect(work, scale="gpu", out=work / "reference", origin="make")
    assert excerpt.read_bytes() == b"earlier"
    later = kept.stat().st_mtime + 1
    os.utime(work / "results" / "study" / "good" / "run0" / "trace.json.gz", (later, later))
    collect(work, scale="gpu", out=work / "reference", origin="make")
    assert excerpt.read_bytes() == right


def test_results_of_another_scale_are_none(work: Path) -> None:
    with pytest.raises(RecordError, match="no study was compared at scale cpu"):
        collect(work, scale="cpu", out=work / "reference", origin="")


def test_too_much_is_refused_and_the_earlier_folder_kept(work: Path) -> None:
    folder = collect(work, scale="gpu", out=work / "reference", origin="first")
    (work / "results" / "evidence" / "giou_large_float32.json").write_bytes(b"x" * 5_000_001)
    with pytest.raises(RecordError, match=r"giou_large_float32\.json"):
        collect(work, scale="gpu", out=work / "reference", origin="second")
    assert "first" in (folder / "README.md").read_text()


def test_what_the_other_studies_refer_to_gives_way_last(work: Path) -> None:
    results = work / "results"
    for name in ("masked_loss", "memory"):
        shutil.copytree(results / "study", results / name)
        comparison = read(results / "study" / "comparison.json", Comparison)
        write(results / name / "comparison.json", replace(comparison, study=name))
        (work / "reports" / f"{name}.html").write_text(name + "x" * 1_700_000)
    shutil.rmtree(results / "study")

    def kept(more: int) -> set[str]:
        (results / "evidence" / "giou_large_float32.json").write_bytes(b"x" * more)
        folder = collect(work, scale="gpu", out=work / "reference", origin="make")
        names = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
        return {name for name in names if name.startswith(("masked_loss", "memory", "traces/"))}

    def files(study: str) -> list[str]:
        return [f"traces/{study}.good.pt.trace.json.gz", f"{study}.html", f"{study}/good.summary.json"]

    compared = {"masked_loss/comparison.json", "memory/comparison.json"}
    everything = {*files("masked_loss"), *files("memory")} | compared
    assert kept(1_000) == everything
    # A page too many: the other study's excerpt has to go before its page, and its summary stays.
    assert kept(3_000_000) == everything - set(files("memory")[:2])
    # Another one too many: by then everything else of the other study is gone.
    assert kept(MAX_BYTES - README_BYTES - 1_000_000) == compared | {"masked_loss/good.summary.json"}


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        (None, "cpu"),
    ],
)
def test_machine_name(gpu: str | None, name: str) -> None:
    assert machine_name(replace(ENVIRONMENT, gpu=gpu)) == name


@pytest.fixture
def two_gpus_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, where the study `giou` needs two."""
    monkeypatch.setattr(collecting, "count_gpus", lambda: 1)
    monkeypatch.setattr(collecting, "gpus_needed", lambda *asked: 2 if asked[-1] == "giou" else 1)


@pytest.mark.usefixtures("two_gpus_needed")
def test_every_study_that_the_machine_can_run_the_main_ones_first(tmp_path: Path) -> None:
    chosen, left_out = runnable(ROOT, tmp_path, "gpu")
    others = {file.stem for file in (ROOT / "config" / "study").glob("*.yaml")} - {"masked_loss", "giou"}
    assert chosen == ["masked_loss:1", "masked_loss", *sorted(others)]
    assert left_out == ["giou: left out, it needs 2 GPUs; here: 1"]


@pytest.mark.usefixtures("two_gpus_needed")
def test_another_order_and_other_repeats(tmp_path: Path) -> None:
    assert runnable(ROOT, tmp_path, "cpu", ["giou:1", "masked_loss"]) == (["giou:1", "masked_loss"], [])
    chosen, left_out = runnable(ROOT, tmp_path, "gpu", ["memory,giou:2", "giou"])
    assert (chosen, len(left_out)) == (["memory:2"], 1)


@pytest.mark.parametrize(("entry", "message"), [("giuo", "did you mean 'giou'"), ("giou:x", "NAME,NAME:REPEATS")])
def test_what_is_no_study_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        runnable(ROOT, tmp_path, "cpu", [entry])


def test_a_training_in_one_process_needs_one_gpu(tmp_path: Path) -> None:
    assert gpus_needed(ROOT, tmp_path, "gpu", "masked_loss") == 1
