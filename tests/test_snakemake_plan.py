"""What the rules ask of the plan and the machine, without running Snakemake."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from documents import fill
from steptrace.config.plan import make_plan
from steptrace.documents.base import version_of
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import Status
from steptrace.jobs import supervise
from steptrace.run_folder import write_document
from steptrace.tasks import write_tasks
from steptrace.workflow import snakemake_plan as asked
from steptrace.workflow.made import write_record
from steptrace.workflow.snakemake_plan import ALL_CORES, CHECKS, ENDING, SnakemakePlan, before_the_first_job, names

ROOT = Path(__file__).parents[1]
EXTENSION = "results/prepared/extension"


@dataclass(frozen=True)
class Wildcards:
    study: str = ""
    variant: str = ""
    repeat: str = "0"


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder, where configurations are kept once they are composed."""
    return tmp_path_factory.mktemp("composed")


@pytest.fixture
def rules_on(tmp_path: Path, composed: Path, monkeypatch: pytest.MonkeyPatch):
    """A function from a scale and a machine to the rules of masked_loss and giou, with the working directory empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPTRACE_FOLDER", str(composed))
    monkeypatch.setattr("os.cpu_count", lambda: 16)

    def make(scale: str, *, gpus: int = 0, **settings: object) -> SnakemakePlan:
        monkeypatch.setattr(asked, "visible_gpus", lambda: [*map(str, range(gpus))])
        overrides = {"studies": ["masked_loss", "giou"], "scale": scale, "repeats": 2, **settings}
        return SnakemakePlan(make_plan(ROOT, tmp_path, overrides))

    return make


def test_files_of_every_run(rules_on) -> None:
    rules = rules_on("cpu")
    assert len(rules.runs("status.json")) == 2 * len(rules.plan.variants)
    chosen = rules.runs("summary.json", "giou")
    assert "results/giou/loop/run1/summary.json" in chosen
    assert all(file.startswith("results/giou/") for file in chosen)


def test_only_a_variant_that_calls_the_operators_waits_for_them(rules_on) -> None:
    rules = rules_on("cpu")
    built = ["results/prepared/extension/status.json"]
    assert rules.prepared(Wildcards("giou", "fused")) == built
    assert rules.prepared(Wildcards("giou", "loop")) == []
    assert rules.prepared(Wildcards("giou")) == built  # a check of all variants
    assert rules.prepared(Wildcards("masked_loss", "where")) == []
    assert rules.prepared() == built
    assert rules_on("cpu", studies=["masked_loss"]).prepared() == []


@pytest.mark.parametrize(
    ("scale", "gpus", "expected"),
    [
        ("cpu", 0, (0, ALL_CORES, "--cpu")),
        ("gpu", 1, (1, 16, "--gpus 1")),
        ("gpu", 4, (1, 4, "--gpus 1")),  # a share of the cores
    ],
)
def test_what_a_training_takes_of_the_machine(rules_on, scale, gpus, expected) -> None:
    rules = rules_on(scale, gpus=gpus)
    training = Wildcards("masked_loss", "where")
    assert (rules.gpus(training), rules.threads(training), rules.takes(training)) == expected


def test_a_scale_for_gpus_without_one_is_refused(rules_on) -> None:
    assert rules_on("gpu").lacks_gpu()
    assert not rules_on("gpu", gpus=1).lacks_gpu()
    assert not rules_on("cpu").lacks_gpu()


def test_studies_come_in_order_and_their_rounds_before_their_checks(rules_on) -> None:
    rules = rules_on("cpu")
    order = [rules.priority(study, stage) for study in ("masked_loss", "giou") for stage in (0, 1, CHECKS, CHECKS + 1)]
    assert order == sorted(set(order), reverse=True)
    assert order[0] < ENDING


def test_a_check_depends_on_each_variant_s_digests(rules_on) -> None:
    rules = rules_on("cpu")
    tasks = {check: rules.tasks[f"results/masked_loss/{check}"] for check in ("prediction", "equivalence")}
    variants = [variant.name for variant in rules.plan.studies["masked_loss"].variants]
    assert list(tasks["prediction"].parts) == variants
    assert len(set(tasks["prediction"].parts.values())) == len(variants)
    assert tasks["prediction"].parts != tasks["equivalence"].parts
    assert len({tasks[check].key for check in tasks}) == 2


def test_each_output_of_the_workflow_is_one_task_s(rules_on) -> None:
    rules = rules_on("cpu")
    outputs = [output for task in rules.tasks.values() for output in task.outputs]
    assert len(outputs) == len(set(outputs))
    assert {*rules.runs("status.json"), *rules.runs("summary.json"), *rules.runs("tables")} < {*outputs}


RUN, EQUIVALENCE, PREDICTION = (f"results/giou/loop/{name}" for name in ("run0", "equivalence", "prediction"))


@pytest.mark.parametrize(
    ("folder", "ending", "left", "task", "reason"),
    [
        (RUN, ("ok", 0), f"{RUN}/run.json", RUN, None),
        (RUN, ("ok", 0), None, RUN, "damaged"),  # removed by hand
        (RUN, ("killed", None), None, RUN, "failed"),
        (RUN, ("out of memory", 1), None, RUN, "failed"),
        (RUN, None, f"{RUN}/run.json", RUN, "damaged"),  # of another version, or damaged
        (EQUIVALENCE, ("failed", 2), None, "results/giou/equivalence", "failed"),
        (EQUIVALENCE, ("ok", 0), None, "results/giou/equivalence", "damaged"),
        (EQUIVALENCE, ("ok", 0), f"{EQUIVALENCE}/equivalence.json", "results/giou/equivalence", None),
        (PREDICTION, ("failed", 1), None, "results/giou/prediction", "failed"),
        (PREDICTION, ("failed", 2), f"{RUN}/run.json", "results/giou/prediction", None),  # and never can be
        (PREDICTION, ("failed", 2), None, "results/giou/prediction", "failed"),  # nor does it train: for want of data?
        (EXTENSION, ("failed", 1), None, EXTENSION, "failed"),
        (EXTENSION, ("ok", 0), f"{EXTENSION}/build.json", EXTENSION, None),
    ],
)
def test_what_failed_or_lost_its_result_is_a_new_attempt(
    rules_on, folder: str, ending, left: str | None, task: str, reason: str | None
) -> None:
    rules = rules_on("cpu")
    for check in ("equivalence", "prediction"):
        planned = next(each for each in rules._tasks() if each.name == f"results/giou/{check}")
        for variant, key in planned.parts.items():
            status = fill(Status, {"status": "ok", "exit_code": 0, "key": key})
            write_document(Path("results", "giou", variant, check), status)
        write_record(planned)
    for _, variant in [pair for pair in rules.plan.variants if pair[0] == "giou"]:
        Path("results", "giou", variant, "equivalence", "equivalence.json").touch()
        Path("results", "giou", variant, "prediction.json").touch()
    Path(EQUIVALENCE, "equivalence.json").unlink()
    keys = {each.name: each.key for each in rules._tasks()}
    keys |= {PREDICTION: rules.plan.key("prediction", "giou", "loop")}
    keys |= {EQUIVALENCE: rules.plan.key("equivalence", "giou", "loop")}
    write_document(Path(RUN), fill(Status, {"status": "ok", "exit_code": 0, "key": keys[RUN]}))
    Path(folder).mkdir(parents=True, exist_ok=True)
    if folder != EQUIVALENCE:
        Path(EQUIVALENCE, "equivalence.json").touch()
    if ending is None:
        Path(folder, "status.json").write_text("{")
    else:
        ended = {"status": ending[0], "exit_code": ending[1], "key": keys[folder]}
        write_document(Path(folder), fill(Status, ended))
    if left is not None:
        Path(left).touch()
    before = {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()}
    state = rules.state(rules.tasks[task])
    assert state.reason == reason
    assert rules.tasks[task].attempt == state.attempt
    assert (state.attempt > 1) == (reason is not None)
    assert {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file()} == before


def test_the_next_call_finds_the_attempt_that_the_last_one_planned(rules_on) -> None:
    """Also where the job plans for itself on another machine, when Snakemake has already removed the status."""
    rules = rules_on("cpu")
    wildcards = {"study": "giou", "variant": "loop", "repeat": "0"}
    name = "results/{study}/{variant}/run{repeat}"
    assert rules.attempt(name)(wildcards) == "attempt 1"
    write_document(Path(RUN), fill(Status, {"status": "failed", "exit_code": 1, "attempt": 1}))
    again = rules_on("cpu")
    planned = again.attempt(name)(wildcards)
    assert planned == "attempt 2"
    write_tasks(again.tasks)
    Path(RUN, "status.json").unlink()
    assert rules_on("cpu").attempt(name)(wildcards) == "attempt 1"
    code = f"open({RUN + '/run.json'!r}, 'w').close()"
    assert supervise.main(["--out", RUN, "--planned", "--", sys.executable, "-c", code]) == 0
    after = rules_on("cpu")
    assert after.state(after.tasks[RUN]).reason is None
    assert after.attempt(name)(wildcards) == planned


def test_a_run_of_another_configuration_or_code_is_not_current(rules_on) -> None:
    rules = rules_on("cpu")
    write_document(Path(RUN), fill(Status, {"status": "ok", "exit_code": 0, "key": "of another loss"}))
    Path(RUN, "run.json").touch()
    assert rules.state(rules.tasks[RUN]).reason == "changed"
    assert f"{RUN}/status.json" in rules.to_force()  # Snakemake has no record here, so no params to compare


def test_results_that_cannot_be_written_are_named(rules_on, monkeypatch, capsys) -> None:
    rules = rules_on("cpu")
    Path("results").mkdir()
    Path("results/.cache").write_text("a file, in the way as another user's folder is")
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit, match="2"):
        before_the_first_job(rules, gpus_here=False)
    assert "results/.cache: " in capsys.readouterr().err


def test_the_index_keeps_the_studies_that_do_not_run_now(rules_on) -> None:
    rules = rules_on("cpu")
    Path("reports").mkdir()
    version = version_of(Comparison)
    studies = (("memory", True, version), ("precision", False, version), ("giou", True, version), ("old", True, 1))
    for study, page, version in studies:
        folder = Path("results", study)
        folder.mkdir(parents=True)
        (folder / "comparison.json").write_text(f'{{"schema_version": {version}}}')
        if page:
            Path("reports", f"{study}.html").write_text("")
    assert rules.other_studies() == ["results/memory/comparison.json"]


def test_names_match_themselves_alone() -> None:
    assert names(["a+b", 1]) == r"a\+b|1"
    assert names([]) == "(?!)"


def test_an_earlier_result_that_a_gate_names_is_an_input_if_it_is_there(rules_on) -> None:
    limits = {"at_most_ratio": 1.1, "baseline": "kept.json"}
    rules = rules_on("cpu", gates={"giou": {"*": {"step_ms.median": limits}}})
    assert rules.baselines == []
    Path("kept.json").touch()
    assert rules.baselines == ["kept.json"]
