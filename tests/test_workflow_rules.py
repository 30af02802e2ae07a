"""What the rules ask of the plan and the machine, without running Snakemake."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from documents import fill
from steptrace.config.digest import extension_digest
from steptrace.config.plan import make_plan
from steptrace.documents.base import version_of
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import Status
from steptrace.record import write_status
from steptrace.workflow import rules as asked
from steptrace.workflow.rules import ALL_CORES, CHECKS, ENDING, Rules, key_of_try, names

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
        return Rules(make_plan(ROOT, tmp_path, overrides, write=False))

    return make


def test_files_of_every_run(rules_on) -> None:
    rules = rules_on("cpu")
    assert len(rules.runs("status.json")) == 2 * len(rules.plan.pairs)
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
    assert started.startswith("-m torch.distributed.run --standalone")
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


@pytest.mark.parametrize(
    ("folder", "ending", "again"),
    [
        ("run0", ("ok", 0), False),
        ("run0", ("killed", None), True),
        ("run0", ("out of memory", 1), True),
        ("equivalence", ("failed", 2), True),
        ("prediction", ("failed", 1), True),
        ("prediction", ("failed", 2), False),  # a step that cannot be followed never can
    ],
)
def test_a_failure_is_tried_again_and_what_ended_well_is_not(tmp_path, folder, ending, again) -> None:
    def end(key: str, ending: tuple[str, int | None], at: str) -> None:
        fields = {"status": ending[0], "exit_code": ending[1], "started_at": at, "wall_s": 1.0, "key": key}
        write_status(tmp_path / folder, fill(Status, fields))
        (tmp_path / folder / "result").touch()

    key = "digest torch==2"
    assert key_of_try(tmp_path / folder, key, "result") == key  # no try yet
    end(key, ending, "9:00")
    second = key_of_try(tmp_path / folder, key, "result")
    assert (second != key) == again
    end(second, ending, "9:05")
    assert (key_of_try(tmp_path / folder, key, "result") != second) == again
    end(second, ("ok", 0), "9:10")
    assert key_of_try(tmp_path / folder, key, "result") == second
    assert key_of_try(tmp_path / folder, "edited torch==2", "result") == "edited torch==2"
    (tmp_path / folder / "status.json").write_text("no status")
    assert key_of_try(tmp_path / folder, key, "result") != key


def test_what_was_removed_is_made_again(tmp_path) -> None:
    """By hand: a result, or a check's folder; of checks Snakemake knows only the file written after the last one."""
    folder, key, of_all = tmp_path / "prediction", "digest", tmp_path / "prediction.json"
    fields = {"status": "ok", "exit_code": 0, "started_at": "9:00", "wall_s": 1.0, "key": key}
    write_status(folder, fill(Status, fields))
    (folder / "result").touch()
    of_all.touch()
    assert key_of_try(folder, key, "result", of_all) == key
    (folder / "result").unlink()
    again = key_of_try(folder, key, "result", of_all)
    assert again != key
    write_status(folder, fill(Status, fields | {"key": again, "started_at": "9:05"}))
    (folder / "result").touch()
    assert key_of_try(folder, key, "result", of_all) == again
    shutil.rmtree(folder)
    assert key_of_try(folder, key, "result", of_all) not in (key, again)
    of_all.unlink()
    assert key_of_try(folder, key, "result", of_all) == key


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
