"""What the rules ask of the plan and the machine, without running Snakemake."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from documents import fill
from steptrace.config.digest import extension_digest
from steptrace.config.plan import make_plan
from steptrace.documents.base import version_of
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import Status
from steptrace.record import write_document
from steptrace.workflow import rules as asked
from steptrace.workflow.rules import ALL_CORES, CHECKS, ENDING, LOCK, Rules, before_the_first_job, names

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Wildcards:
    study: str = ""
    variant: str = ""
    repeat: str = "0"


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
    monkeypatch.setattr("os.cpu_count", lambda: 16)

    def make(scale: str, *, gpus: int = 0, **settings: object) -> Rules:
        monkeypatch.setattr(asked, "visible_gpus", lambda: [*map(str, range(gpus))])
        overrides = {"studies": ["masked_loss", "giou"], "scale": scale, "repeats": 2, **settings}
        return Rules(make_plan(ROOT, tmp_path, overrides))

    return make


def test_files_of_every_run(rules_on) -> None:
    rules = rules_on("cpu")
    assert len(rules.runs("status.json")) == 2 * len(rules.plan.variants)
    chosen = rules.runs("summary.json", "giou")
    assert "results/giou/loop/run1/summary.json" in chosen
    assert all(file.startswith("results/giou/") for file in chosen)


def test_only_a_variant_that_calls_the_operators_waits_for_them(rules_on) -> None:
    rules = rules_on("cpu")
    assert rules.extension(Wildcards("giou", "fused")) == ["results/extension/status.json"]
    assert rules.extension(Wildcards("giou")) == ["results/extension/status.json"]  # a check of all variants
    assert rules.extension(Wildcards("masked_loss", "where")) == []
    assert rules.extension() == ["results/extension/status.json"]
    assert rules_on("cpu", studies=["masked_loss"]).extension() == []


@pytest.mark.parametrize(
    ("scale", "gpus", "expected"),
    [
        ("cpu", 0, (0, ALL_CORES, "--cpu")),
        ("gpu", 1, (1, 16, "--gpus 1")),
        ("gpu", 4, (1, 4, "--gpus 1")),  # a share of the cores
    ],
)
def test_what_a_training_takes_of_the_machine(rules_on, scale, gpus, expected) -> None:
    rules, training = rules_on(scale, gpus=gpus), Wildcards("masked_loss", "where")
    assert (rules.gpus(training), rules.threads(training), rules.takes(training)) == expected


def test_a_training_of_several_ranks_is_started_by_torchrun(rules_on) -> None:
    rules = rules_on("cpu", studies=["all_reduce"])
    assert rules.trains(Wildcards("all_reduce", "one_process")) == "-m steptrace.train"
    started = rules.trains(Wildcards("all_reduce", "ddp"))
    assert started.startswith("-m steptrace.train.torchrun --standalone")
    assert started.endswith("--nproc-per-node 2 -m steptrace.train")


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
    keys = dict(pair.split("=", 1) for pair in rules.keys("prediction")(Wildcards("masked_loss")))
    assert list(keys) == ["boolean_mask", "where", "sort", "ignore_index"]
    assert len(set(keys.values())) == 4
    assert keys != dict(pair.split("=", 1) for pair in rules.keys("equivalence")(Wildcards("masked_loss")))


RUN, EQUIVALENCE, PREDICTION = (f"results/giou/loop/{name}" for name in ("run0", "equivalence", "prediction"))


@pytest.mark.parametrize(
    ("folder", "ending", "left", "result", "again"),
    [
        (RUN, ("ok", 0), f"{RUN}/run.json", f"{RUN}/status.json", False),
        (RUN, ("ok", 0), None, f"{RUN}/status.json", True),  # removed by hand
        (RUN, ("killed", None), None, f"{RUN}/status.json", True),
        (RUN, ("out of memory", 1), None, f"{RUN}/status.json", True),
        (RUN, None, f"{RUN}/run.json", f"{RUN}/status.json", True),  # of another version, or damaged
        (EQUIVALENCE, ("failed", 2), None, "results/giou/equivalence.json", True),
        (EQUIVALENCE, ("ok", 0), None, "results/giou/equivalence.json", True),
        (EQUIVALENCE, ("ok", 0), f"{EQUIVALENCE}/equivalence.json", "results/giou/equivalence.json", False),
        (PREDICTION, ("failed", 1), None, "results/giou/prediction.json", True),
        (PREDICTION, ("failed", 2), f"{RUN}/run.json", "results/giou/prediction.json", False),  # and never can be
        (PREDICTION, ("failed", 2), None, "results/giou/prediction.json", True),  # nor does it train: for want of data?
        ("results/extension", ("failed", 1), None, "results/extension/status.json", True),
        ("results/extension", ("ok", 0), "results/extension/build.json", "results/extension/status.json", False),
        ("results/memory/bf16/run0", ("failed", 1), None, "results/memory/bf16/run0/status.json", False),  # no part
    ],
)
def test_what_failed_or_lost_its_result_is_tried_again(
    rules_on, folder: str, ending, left: str | None, result: str, again
) -> None:
    rules, ok = rules_on("cpu"), fill(Status, {"status": "ok", "exit_code": 0})
    for study, variant in rules.plan.variants:
        for check in ("equivalence", "prediction"):
            write_document(Path("results", study, variant, check), ok)
        Path("results", study, variant, "equivalence", "equivalence.json").touch()
        Path("results", study, variant, "prediction.json").touch()
    Path(EQUIVALENCE, "equivalence.json").unlink()
    write_document(Path(RUN), ok)
    Path(folder).mkdir(parents=True, exist_ok=True)
    if ending is None:
        Path(folder, "status.json").write_text("{")
    else:
        write_document(Path(folder), fill(Status, {"status": ending[0], "exit_code": ending[1]}))
    Path(folder, "train.log").touch()
    for file in filter(None, (left, result)):
        Path(file).touch()
    rules.remove_failed()
    assert Path(result).exists() != again
    assert Path(folder, "status.json").exists() != again  # a check's, too: it would be taken for done
    assert Path(folder, "train.log").exists()


def test_nothing_is_removed_beside_a_running_call(rules_on) -> None:
    """Its own jobs on a cluster read the Snakefile, too."""
    rules, folder = rules_on("cpu"), Path(RUN)
    write_document(folder, fill(Status, {"status": "failed", "exit_code": 1}))
    with FileLock(LOCK.lock_file):
        rules.remove_failed()
    assert (folder / "status.json").exists()


def test_results_that_cannot_be_written_are_named(rules_on, monkeypatch, capsys) -> None:
    rules = rules_on("cpu")
    Path("results/.cache").unlink()
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


def test_a_byte_of_the_extensions_sources_is_another_digest(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.cu").write_text("1")
    before = extension_digest(tmp_path)
    (tmp_path / "csrc" / "a.cu").write_text("2")
    assert extension_digest(tmp_path) != before


def test_an_earlier_result_that_a_gate_names_is_an_input_if_it_is_there(rules_on) -> None:
    limits = {"at_most_ratio": 1.1, "baseline": "kept.json"}
    rules = rules_on("cpu", gates={"giou": {"*": {"step_ms.median": limits}}})
    assert rules.baselines == []
    Path("kept.json").touch()
    assert rules.baselines == ["kept.json"]
