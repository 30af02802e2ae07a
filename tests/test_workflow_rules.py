"""What the rules ask of the plan and the machine, without running Snakemake."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from documents import fill
from steptrace.config.digest import extension_digests
from steptrace.config.plan import key_of_run, make_plan
from steptrace.documents.base import write
from steptrace.documents.verdict import Verdict
from steptrace.standing import comparisons_with_pages
from steptrace.workflow.rules import CHECKS, ENDING, Machine, Rules, names, of_study

pytestmark = pytest.mark.usefixtures("forked_programs")

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Wildcards:
    study: str = ""
    variant: str = ""
    repeat: str = "0"
    trace: str = ""


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where configurations are kept once they are composed and checked."""
    return tmp_path_factory.mktemp("composed")


@pytest.fixture
def rules_on(tmp_path: Path, composed: Path, monkeypatch: pytest.MonkeyPatch):
    """A function from a scale and a machine to the rules of masked_loss and giou, with the working directory empty."""
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path("results", ".cache").symlink_to(composed)

    def make(scale: str, *, gpus: int = 0, local: bool = True, **settings: object) -> Rules:
        overrides = {"studies": ["masked_loss", "giou"], "scale": scale, "repeats": 2, **settings}
        plan = make_plan(ROOT, tmp_path, overrides, write=False)
        return Rules(plan, Machine(local=local, cores=16, gpus=gpus))

    return make


def test_files_of_every_run_and_variant(rules_on) -> None:
    rules = rules_on("cpu")
    assert len(rules.run_files("status.json")) == 2 * len(rules.variant_files("prediction/status.json"))
    assert len(rules.status_files) == 4 * len(rules.plan.pairs)
    chosen = of_study(rules.run_files("summary.json"))(Wildcards("giou", "loop"))
    assert "results/giou/loop/run1/summary.json" in chosen
    assert all(file.startswith("results/giou/") for file in chosen)


def test_only_a_variant_that_calls_the_operators_waits_for_them(rules_on) -> None:
    rules = rules_on("cpu")
    assert rules.extension(Wildcards("giou", "fused")) == "results/extension/status.json"
    assert rules.extension(Wildcards("masked_loss", "where")) == []


@pytest.mark.parametrize(
    ("scale", "gpus", "local", "expected"),
    [
        ("cpu", 0, True, (0, 16, 0)),
        ("gpu", 1, True, (1, 16, 0)),
        ("gpu", 4, True, (1, 4, 1)),  # a share of the cores, and of what keeps other work away
        ("gpu", 0, True, (1, 16, 0)),  # started all the same: it fails, saying so
        ("gpu", 0, False, (1, 2, 0)),  # a cluster's node: the loader has no workers in this study
    ],
)
def test_what_a_training_takes_of_the_machine(rules_on, scale, gpus, local, expected) -> None:
    rules, training = rules_on(scale, gpus=gpus, local=local), Wildcards("masked_loss", "where")
    assert (
        rules.gpus_of_training(training),
        rules.threads_of_training(training),
        rules.quiet_of_training(training),
    ) == expected
    assert rules.threads_of_check(training) == (4 if local else 1)  # of four variants


def test_a_scale_for_gpus_without_one_is_told_before_anything_is_touched(rules_on) -> None:
    assert rules_on("gpu").no_gpu_for_any()
    assert not rules_on("gpu", gpus=1).no_gpu_for_any()
    assert not rules_on("gpu", local=False).no_gpu_for_any()
    assert not rules_on("cpu").no_gpu_for_any()


def test_studies_come_in_order_and_one_of_everything_before_the_second_of_anything(rules_on) -> None:
    rules = rules_on("cpu")
    stages = [rules.stage_of_round(0), CHECKS, rules.stage_of_round(1), rules.stage_of_analyses]
    first = [rules.priority("masked_loss", stage) for stage in stages]
    second = [rules.priority("giou", stage) for stage in stages]
    order = [*first, rules.priority_of_extension, *second]  # giou is the first whose variants wait for the operators
    assert order == sorted(set(order), reverse=True)
    assert order[0] < ENDING


def test_each_rank_is_a_job_of_its_own_on_a_cluster(rules_on) -> None:
    several = Wildcards("all_reduce", "ddp")
    rules = rules_on("cpu", local=False, studies=["all_reduce"])
    folder = "results/all_reduce/ddp"
    assert rules.ranks_of_variant(several) == [f"{folder}/run{k}/ranks/{rank}" for k in (0, 1) for rank in (0, 1)]
    assert rules.ranks_of_variant(Wildcards("all_reduce", "one_process")) == []
    assert rules_on("cpu", studies=["all_reduce"]).ranks_of_variant(several) == []


def test_each_file_of_an_imported_folder_is_a_job_of_its_own(rules_on, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / "job").mkdir(exist_ok=True)
        (tmp_path / "job" / f"trace{rank}.json").write_bytes(b"x" * (rank << 20))
    rules = rules_on("cpu", studies=["masked_loss"], traces=["job", {"name": "one", "path": "job/trace0.json"}])
    assert rules.ranks_of_trace(Wildcards(trace="job")) == [f"results/traces/job/ranks/{rank}" for rank in (0, 1)]
    assert rules.ranks_of_trace(Wildcards(trace="one")) == []
    small, large = (rules.mb_of_analysis(Wildcards(), [str(file)]) for file in rules.recorded(Wildcards(trace="job")))
    assert 100 < small < large
    for file in rules.recorded(Wildcards(trace="job")):
        file.unlink()
    assert len(rules.recorded(Wildcards(trace="job"))) == 2  # a workflow looks once: every rank's job asks
    rules = Rules(rules.plan, rules.machine)
    assert rules.ranks_of_trace(Wildcards(trace="job")) == []  # the analysis of the folder says what is wrong


def test_a_failure_makes_the_next_attempt_another_one(rules_on) -> None:
    rules, run = rules_on("cpu"), Wildcards("masked_loss", "where", "1")
    assert rules.training(run).startswith("--attempt 1 --device cpu --devices 1 --key ")
    key = key_of_run(rules.plan.train_digests(run.study, run.variant))
    failures = rules.plan.failures_file("masked_loss", "where", "run1")
    failures.parent.mkdir(parents=True)
    failures.write_text(json.dumps({"key": key}) + "\n")
    assert rules.training(run).startswith("--attempt 2 ")


def test_the_last_lines_of_a_failed_call_name_what_is_missing_or_broken(rules_on) -> None:
    rules = rules_on("cpu")
    words = rules.closing_lines(started=0.0)
    assert words[0].startswith(f"{len(rules.status_files)} runs were not finished")
    assert words[-1] == "the same command again runs only what failed or is missing"
    for file in rules.status_files:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("{}")
    Path("results/enforce.log").write_text("")
    write(Path("results/verdict.json"), fill(Verdict, {"gates": [{"study": "giou", "outcome": "broken"}]}))
    assert rules.closing_lines(started=0.0)[0].startswith("1 gate broken: see ")
    assert rules.closing_lines(started=Path("results/enforce.log").stat().st_mtime + 1)[0].startswith(
        "the same command"
    )


def test_the_index_keeps_the_studies_that_do_not_run_now(rules_on) -> None:
    rules = rules_on("cpu")
    Path("reports").mkdir()
    for study, page in (("memory", True), ("precision", False), ("giou", True)):
        folder = Path("results", study)
        folder.mkdir(parents=True)
        for name in ("study.json", "comparison.json"):
            (folder / name).write_text("{}")
        if page:
            Path("reports", f"{study}.html").write_text("")
    assert rules.standing() == ["results/memory/comparison.json"]
    Path("results/memory/comparison.partial.json").write_text("{}")
    assert rules.standing() == ["results/memory/comparison.partial.json"]
    assert len(comparisons_with_pages(Path("results"), Path("reports"))) == 2


def test_names_match_themselves_alone() -> None:
    assert names(["a+b", 1]) == r"a\+b|1"
    assert names([]) == "(?!)"


def test_a_byte_of_the_extensions_sources_is_another_digest(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.cu").write_text("1")
    before = extension_digests(tmp_path)
    (tmp_path / "csrc" / "a.cu").write_text("2")
    assert extension_digests(tmp_path)["code"] != before["code"]
