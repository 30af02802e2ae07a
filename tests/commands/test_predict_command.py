"""`steptrace predict`: what it prints, the budget, and what a person can get wrong."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from documents import fill
from figures import figures_in
from steptrace.cli import main
from steptrace.commands import follow_study as following
from steptrace.commands.budget import not_allowed, syncs_over
from steptrace.commands.follow import FollowedProgram
from steptrace.commands.follow_study import follow_study, named_study
from steptrace.commands.prediction_text import kind_lines, table, text_of
from steptrace.compare.allowed import useless
from steptrace.config.study import Composed, Study
from steptrace.config.variant_kind import TRAINING
from steptrace.documents.base import convert
from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.syncs import PredictedBranch
from steptrace.errors import PredictError
from steptrace.estimate.drawn import FollowedStep
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.step import estimate_step, followed_step
from steptrace.root import ROOT
from steptrace.words.budget import over_in_words

pytestmark = pytest.mark.usefixtures("forked_programs")

#: From predictions by variant to the configs by variant and the options of each call.
Calls = list[tuple[dict[str, dict[str, Any]], Sequence[str]]]
Replace = Callable[..., Calls]

CONFIG = """
seed: 0
device: cpu
model: {_target_: torch.nn.Linear, in_features: 4, out_features: 2}
loss: {_target_: own_losses.Loss}
data: {dataset: {_target_: own_losses.Data}, batch_size: 2, num_workers: 0, pin_memory: true, non_blocking: true}
optimizer: {_target_: torch.optim.SGD, _partial_: true, lr: 0.1}
precision: {name: fp32, autocast: null, tf32: false, grad_scaler: false}
equivalence: {batch_size: 1, model: {}}
python_path: [.]
step: {accumulate: 1, set_to_none: true, channels_last: false, compile: null}
distributed: {world_size: 1, no_sync: true}
scale: {name: cpu, warmup_steps: 1, timed_steps: 1}
profile: {warmup: 0, active: 1}
"""
LOSS = """
import torch


class Data:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.ones(4), torch.ones(2)


class Loss:
    def __call__(self, output, target):
        loss = (output - target).square().mean()
        return loss
"""

SITE = {
    "kind": "d2h_copy",
    "op": "aten::nonzero",
    "file": "own.py",
    "line": 3,
    "function": "loss",
    "code": "x.nonzero()",
    "label": None,
    "phase": "backward",
    "count": 2,
    "reason": "the host must know how many there are",
}
UNKNOWN = {key: SITE[key] for key in SITE if key != "kind"} | {
    "op": "lib::nms",
    "count": 1,
    "reason": "a custom operator",
}
PREDICTION = {
    "total": 2,
    "sites": [SITE],
    "unknown": [UNKNOWN],
    "operators_per_section": {"loss": 7},
    "operators": 9,
    "batch_size": 4,
    "followed": {"steps": 1, "operator_calls": [], "queue": []},
}


def step(content: dict[str, Any]) -> PredictedStep:
    return convert(content, PredictedStep)


def test_a_study_that_is_not_there_names_every_folder_it_was_looked_for_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config" / "study").mkdir(parents=True)
    (tmp_path / "config" / "study" / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "mines"]) == 2
    message = capsys.readouterr().err
    assert str(ROOT / "config" / "study") in message
    assert str(tmp_path / "config" / "study") in message
    assert "'mine'" in message


def test_a_site_in_a_library_is_shown_and_allowed_by_the_program_s_line() -> None:
    site = SITE | {"program_file": "train.py", "program_line": 31}
    assert any("train.py:31 (in own.py:3)" in line for line in text_of("given", step(PREDICTION | {"sites": [site]})))
    followed = [FollowedProgram("train.py", step(PREDICTION | {"sites": [site]}))]
    (over,) = map(over_in_words, syncs_over(followed, 0, []))
    for part in ("train.py:31 (in own.py:3)", "loss", "`x.nonzero()`", "2 d2h copy", "backward"):
        assert part in over
    for allow, lines in (("train.py:31", 0), ("train.py", 0), ("own.py:3", 0), ("train.py:3", 1)):
        assert len(syncs_over(followed, 0, [allow])) == lines


def _study(*losses: str) -> Study:
    """A study with a variant for each loss of the module own_losses."""
    text = {name: CONFIG.replace("own_losses.Loss", f"own_losses.{name}") for name in losses}
    variants = tuple(SimpleNamespace(name=name, on_gpu=Composed(config=yaml.safe_load(text[name]))) for name in losses)
    return cast(Study, SimpleNamespace(name="own", kind=TRAINING, variants=variants, preparations={}))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a loss that makes no sync."""
    (tmp_path / "own_losses.py").write_text(LOSS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Replaces the predictions of a study by made ones, by variant; returns the configs and options asked for."""

    def replace(**by_variant: Any) -> Calls:
        calls: Calls = []

        def follow(study: Study, _scratch: Path, options: Sequence[str] = (), **_: Any) -> list[FollowedProgram]:
            calls.append(({variant.name: variant.on_gpu.config for variant in study.variants}, options))
            batch = {"batch_size": int(options[1])} if "--batch-size" in options else {}
            results = ((variant.name, by_variant.get(variant.name, PREDICTION)) for variant in study.variants)
            return [
                FollowedProgram(name, None, result)
                if isinstance(result, PredictError)
                else FollowedProgram(name, step(result | batch))
                for name, result in results
            ]

        monkeypatch.setattr(following, "follow_study", follow)
        monkeypatch.setattr(following, "named_study", lambda study, *_, **__: _planned(study))
        return calls

    return replace


@cache
def _planned(study: str) -> Study:
    """What many tests ask for alike, planned once."""
    with TemporaryDirectory() as folder:
        return named_study(study, Path(folder))


TRAIN = """
import torch

model = torch.nn.Linear(4, 2).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    loss = model(torch.ones(8, 4, device=DEVICE)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_sync_added_to_a_step_breaks_the_budget_without_a_gpu_and_names_the_line(
    own: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = TRAIN.replace("DEVICE", "'cuda'")
    (own / "train.py").write_text(text)
    command = ["--", sys.executable, "train.py"]
    assert main(["predict", "--budget", "0", "--json", *command]) == 0
    assert json.loads(capfd.readouterr().out)["total"] == 0
    (own / "train.py").write_text(f"{text}    print(loss.item())\n")
    line = len(text.splitlines()) + 1
    assert main(["predict", "--budget", "0", "--json", *command]) == 1
    output, error = capfd.readouterr()
    prediction = json.loads(output)
    assert (prediction["total"], prediction["sites"][0]["line"]) == (1, line)
    assert f"train.py:{line} in <module>, `print(loss.item())`" in error
    assert main(["predict", "--budget", "0", "--allow", f"train.py:{line}", *command]) == 0


@pytest.mark.parametrize(
    ("before", "condition", "awaits", "later"),
    [
        ("milestones = [3000, 6000]", "step in milestones", "list", True),
        ("flags = itertools.cycle([False] * 3000 + [True])", "next(flags)", "iterator", False),
    ],
)
def test_a_branch_that_does_not_come_in_the_followed_steps_is_named(
    own: Path, capfd: pytest.CaptureFixture[str], before: str, condition: str, awaits: str, *, later: bool
) -> None:
    text = TRAIN.replace("DEVICE", "'cuda'")
    loop = next(line for line in text.splitlines() if line.startswith("for "))
    text = text.replace(loop, f"import itertools\n{before}\nfor step in range(100):")
    (own / "train.py").write_text(f"{text}    if {condition}:\n        print(loss.item())\n")
    line = len(text.splitlines()) + 1
    command = ["--", sys.executable, "train.py"]
    assert main(["predict", "--budget", "0", "--json", *command]) == 0
    output, error = capfd.readouterr()
    prediction = json.loads(output)
    (branch,) = prediction["awaited"]
    followed = len(prediction["by_step"]) + len(prediction["warmup_by_step"])
    # A step ends with the optimizer's, so the condition behind it is asked in the next step, with 0 in the second one.
    in_steps = 3000 - (followed - 2) if later else None
    assert (branch["line"], branch["awaits"], branch["in_steps"]) == (line, awaits, in_steps)
    assert f"warning: python train.py: the budget does not cover this: train.py:{line} " in error.replace(
        sys.executable, "python"
    )
    assert main(["predict", "--budget", "0", "--allow", f"train.py:{line}", *command]) == 0
    output, error = capfd.readouterr()
    assert "the budget does not cover" not in error
    assert f"train.py:{line} " in output  # whether a line is allowed does not hide it


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_that_leaves_the_gpu_alone_has_no_prediction(
    own: Path, capfd: pytest.CaptureFixture[str], *, compiled: bool
) -> None:
    program = TRAIN.replace("DEVICE", "'cpu'")
    if compiled:
        program = program.replace("optimizer =", "model = torch.compile(model)\noptimizer =", 1)
    (own / "train.py").write_text(program)
    assert main(["predict", "--budget", "0", "--", sys.executable, "train.py"]) == 1
    output, error = capfd.readouterr()
    assert output.strip() == ""  # no "0 syncs per step predicted"
    assert "'cuda'" in error


def test_a_variant_that_cannot_be_followed_says_why_and_stops_no_other(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = {
        "fine": "pass",
        "raises": "sys.stdout = open(1, 'w'); print('downloaded'); raise ValueError('error: no data')",
        "killed": "os.kill(os.getpid(), 9)",
    }
    loss = "import os, sys\n" + LOSS
    for name, body in bodies.items():
        loss += f"\n\nclass {name}(Loss):\n    def __init__(self):\n        {body}\n"
    (own / "own_losses.py").write_text(loss)
    fine, raises, killed = follow_study(_study(*bodies), own / "scratch")
    assert "steptrace: 3 of 3 followed: " in capsys.readouterr().err
    assert fine.prediction is not None
    assert (fine.name, fine.prediction.syncs_per_step) == ("fine", 0)
    assert "error: no data" in str(raises.error)
    assert "config.gpu.yaml" in str(raises.error)  # the beginning of the message
    assert "downloaded" not in str(raises.error)
    assert "SIGKILL" in str(killed.error)


def test_a_program_that_hangs_is_ended_at_its_time_limit(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import time\nwhile True: time.sleep(1)"
    assert main(["predict", "--timeout-minutes", "0.05", "--", sys.executable, "-c", code]) == 2
    assert "time limit" in capfd.readouterr().err
    (own / "own_losses.py").write_text(f"import time\n{LOSS}\n\nclass hangs(Loss):\n    time.sleep(10_000)\n")
    (hangs,) = follow_study(_study("hangs"), own / "scratch", limit_s=3)
    assert hangs.prediction is None
    assert "time limit" in str(hangs.error)


def test_the_time_limit_of_a_study_is_the_command_s_or_the_workflow_s(own: Path) -> None:
    assert (following.time_limit_s(None), following.time_limit_s(0.5)) == (None, 30)
    (own / "config").mkdir(exist_ok=True)
    (own / "config" / "workflow.yaml").write_text("studies: [masked_loss]\ntimeout_minutes: 2\n")
    assert (following.time_limit_s(None), following.time_limit_s(0.5)) == (120, 30)


def test_each_variant_names_what_keeps_all_from_being_followed(own: Path) -> None:
    (own / "omegaconf.py").write_text("raise ImportError('it is damaged')")
    entries = follow_study(_study("Loss", "Data"), own / "scratch")
    assert ["it is damaged" in str(entry.error) for entry in entries] == [True, True]


def test_a_study_is_all_its_variants_as_a_gpu_would_train_them(
    followed: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = followed()
    assert main(["predict", "masked_loss"]) == 0
    ((configs, options),) = calls
    assert sorted(configs) == ["boolean_mask", "ignore_index", "second_nonzero", "sort", "where"]
    assert all(config["device"] == "cuda" for config in configs.values())
    assert options == ()
    printed = capsys.readouterr().out
    assert [figures_in(line) for line in printed.splitlines() if line.startswith("where: ")] == [[2, 4]]  # syncs, batch
    assert "  2      d2h_copy  aten::nonzero  backward  -      own.py:3  x.nonzero()\n" in printed
    assert "lib::nms at own.py:3 (1 per step): a custom operator" in printed
    assert [9] in [figures_in(line) for line in printed.splitlines() if "operators" in line]


def test_one_variant_that_cannot_be_followed_hides_no_other(
    followed: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    followed(where=PredictError("no such operator"))
    assert main(["predict", "masked_loss", "--json", "--budget", "5"]) == 2
    captured = capsys.readouterr()
    assert "error: where: no such operator" in captured.err
    document = json.loads(captured.out)
    assert document["study"] == "masked_loss"
    by_name = {variant["name"]: variant for variant in document["variants"]}
    assert by_name["where"] == {"name": "where", "error": "no such operator", "prediction": None}
    printed = by_name["sort"]["prediction"]
    assert "followed" not in printed
    assert {name: printed[name] for name in ("total", "operators", "operators_per_section", "batch_size")} == {
        "total": 2, "operators": 9, "operators_per_section": {"loss": 7}, "batch_size": 4,
    }  # fmt: skip
    assert SITE.items() <= printed["sites"][0].items()
    assert UNKNOWN.items() <= printed["unknown"][0].items()


def test_a_variant_without_a_gpu_breaks_a_budget_and_hides_no_other(
    followed: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = {**PREDICTION, "operators": 0, "total": 0, "unknown": [], "sites": []}
    followed(where=idle, sort=PredictError("no such operator"))
    assert main(["predict", "masked_loss", "--budget", "1"]) == 2
    error = capsys.readouterr().err
    assert "where: " in error
    assert "error: sort: no such operator" in error
    assert error.count("over budget:") == 3


def test_a_budget_is_for_each_variant(followed: Replace, capsys: pytest.CaptureFixture[str]) -> None:
    followed(where={**PREDICTION, "total": 0, "sites": []})
    assert main(["predict", "masked_loss", "--budget", "1"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("over budget:") == 4
    assert "where" not in errors
    for allowed in ("loss", "own.py", "own.py:3"):
        assert main(["predict", "masked_loss", "--budget", "1", "--allow", allowed]) == 0
    assert main(["predict", "masked_loss", "--budget", "1", "--allow", "own.py:4"]) == 1


def test_a_budget_that_is_kept_says_so_and_an_entry_that_allows_nothing_is_named(
    followed: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    held = "steptrace: within the budget: "
    followed()
    assert main(["predict", "masked_loss", "--budget", "2"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(held)
    assert figures_in(line) == [2, 2]  # syncs per step, at most
    assert main(["predict", "masked_loss", "--budget", "0", "--allow", "own.py:3"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert figures_in(line) == [0, 0, 2]  # and those at allowed places
    assert main(["predict", "masked_loss", "--budget", "0", "--allow", "own.py:3", "--allow", "onw.py:3"]) == 0
    warned, line = capsys.readouterr().err.splitlines()
    assert "warning: --allow onw.py:3: " in warned
    assert line.startswith(held)
    assert main(["predict", "masked_loss", "--budget", "1"]) == 1
    assert held not in capsys.readouterr().err


def test_an_entry_that_names_a_branch_alone_is_of_use() -> None:
    branch = PredictedBranch(file="/project/train.py", line=7, every=50)
    assert useless(["train.py:7", "train.py:8", "loss"], [], [branch]) == ["train.py:8", "loss"]


def test_no_advice_is_given_on_a_line_that_is_allowed() -> None:
    prediction = step(PREDICTION | {"sites": [SITE, SITE | {"line": 8}]})
    assert [sync.line for sync in not_allowed(prediction, ["own.py:3"])] == [8]


def test_the_line_with_most_syncs_stands_first(followed: Replace, capsys: pytest.CaptureFixture[str]) -> None:
    lines = {3: (1, 0.5), 8: (1,), 5: (2, 1)}
    sites = [{**SITE, "line": line, "count": count} for line, counts in lines.items() for count in counts]
    followed(where={**PREDICTION, "sites": sorted(sites, key=lambda site: -site["count"])})
    assert main(["predict", "masked_loss"]) == 0
    (_, of_where) = capsys.readouterr().out.split("where: ")
    rows = [line.split() for line in of_where.splitlines() if "own.py:" in line]
    assert [(row[0], row[5]) for row in rows[:5]] == [
        ("2", "own.py:5"), ("1", "own.py:5"), ("1", "own.py:3"), ("0.5", "own.py:3"), ("1", "own.py:8"),
    ]  # fmt: skip


def _matrix(size: int) -> dict[str, object]:
    return {"shape": [size, size], "strides": [size, 1], "dtype": "float32"}


def _product(size: int) -> dict[str, object]:
    place = {"phase": "forward", "file": "own.py", "line": 3}
    counts = {"is_view": False, "flop": 2 * size**3, "calls": 1}
    return {"name": "aten.mm.default", "inputs": [_matrix(size)] * 2, "outputs": [_matrix(size)], **counts, **place}


WITH_OPERATORS = {
    **PREDICTION,
    "followed": {"steps": 1, "operator_calls": [_product(8192)], "queue": []},
    "peak_memory_bytes": 10 * 2**30,
    "tf32": False,
    "tf32_convolutions": True,
}


def test_estimates_stand_under_the_syncs_and_in_json(followed: Replace, capsys: pytest.CaptureFixture[str]) -> None:
    variants = ("boolean_mask", "ignore_index", "second_nonzero", "sort", "where")
    calls = followed(**dict.fromkeys(variants, WITH_OPERATORS))
    assert main(["predict", "masked_loss", "--gpu", "H100,L4"]) == 0
    assert calls[0][1] == ("--gpu", "H100")  # the first, and as large as configured
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if line.split()[:1] == ["where"] and "H100" in line]
    assert "10.0 GiB, fits" in row
    assert main(["predict", "masked_loss", "--gpu", "H100,L4", "--batch", "8,2", "--json"]) == 0
    assert [options for _, options in calls[1:]] == [["--batch-size", n, "--gpu", "H100"] for n in "28"]
    first = json.loads(capsys.readouterr().out)["variants"][0]["prediction"]
    assert "followed" not in first
    rows = first["estimate"]
    assert [(row["gpu"], row["batch"]) for row in rows] == [("H100", 2), ("H100", 8), ("L4", 2), ("L4", 8)]
    assert rows[0]["step_ms"][0] < 2 * 8192**3 / (0.75 * 66.9e9) < rows[0]["step_ms"][1]
    assert (rows[0]["limited_by"], rows[0]["launches"], rows[0]["covered_pct"]) == ("arithmetic", 1, 100)


def test_variants_of_a_study_are_compared_with_its_baseline(
    followed: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = WITH_OPERATORS | {
        "followed": {"steps": 1, "operator_calls": [_product(8192), _product(2048)], "queue": []}
    }
    followed(boolean_mask=slower, ignore_index=WITH_OPERATORS, sort=slower, where=slower)
    assert main(["predict", "masked_loss", "--gpu", "H100", "--json"]) == 0
    variants = {
        one["name"]: one["prediction"]["estimate"][0] for one in json.loads(capsys.readouterr().out)["variants"]
    }
    assert variants["boolean_mask"]["difference"] is None
    saved = variants["ignore_index"]["difference"]
    assert (saved["baseline"], saved["faster_pct"]) == ("boolean_mask", 100)
    assert 0 < saved["saved_ms"][0] < 1e3 * 2 * 2048**3 / (0.5 * 66.9e12) < 2 * saved["saved_ms"][1]
    assert variants["sort"]["difference"]["saved_ms"] == [0, 0]
    assert main(["predict", "masked_loss", "--gpu", "H100"]) == 0
    text = capsys.readouterr().out
    head, *rows = text[text.index("  variant ") :].splitlines()
    column = head.index("saves against boolean_mask")
    saved_by = {row.split()[0]: row[column:].split("  ")[0] for row in rows[: rows.index("")]}
    assert saved_by["boolean_mask"] == "-"
    assert len(figures_in(saved_by["ignore_index"])) == 2  # a band
    assert saved_by["sort"] == saved_by["where"] != saved_by["ignore_index"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["maskd_loss"], "did you mean 'masked_loss'"),
        (["masked_loss", "--allow", "x.py"], "--allow needs --budget"),
        (["--batch", "2", "--", "python", "train.py"], "--batch without {batch} in the command"),
        (["--", "python", "train.py", "{batch}"], "add --batch N[,N]"),
        (["masked_loss", "--gpu", "H100,H1000"], "no GPU of the name 'H1000'"),
        (["--gpu", "L5", "--", "python", "train.py"], "RTX-3090"),
        (["masked_loss", "--devices", "2"], "--devices is for programs, not for studies"),
        (["masked_loss", "--steps", "9"], "--steps is for programs, not for studies"),
        (["--", "nosuchcmd"], "nosuchcmd: cannot be started"),
        ([__file__], f"next: steptrace predict -- python {__file__}"),
    ],
)
def test_what_a_person_can_get_wrong(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *arguments]) == 2
    assert words in capsys.readouterr().err


WITHOUT_TORCH = f"""
import sys
sys.modules["torch"] = None
from steptrace.cli import main
from steptrace.commands import follow_study as following
from steptrace.commands.follow import FollowedProgram
from steptrace.documents.base import convert
from steptrace.documents.prediction import PredictedStep
step = convert({PREDICTION!r}, PredictedStep)
following.follow_study = lambda study, *_, **__: [FollowedProgram(variant.name, step) for variant in study.variants]
sys.exit(main(["predict", "masked_loss"]))
"""


def test_the_command_line_itself_does_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    # A loaded machine takes so long to plan that it says how far it is.
    messages = [line for line in done.stderr.splitlines() if not line.startswith("steptrace: planning: ")]
    assert (done.returncode, messages) == (0, [])
    assert [figures_in(line)[0] for line in done.stdout.splitlines() if line.startswith("where: ")] == [2]


def test_nobody_is_advised_to_follow_a_quarter_of_a_million_steps():
    for every, is_advised in ((500, True), (250_000, False)):
        branch = PredictedBranch(file="buffers.py", line=281, every=every)
        last = kind_lines([2, 2, 2, 2], [2, 2], branches=[branch])[-1]
        assert f"{every:,}" in last
        assert ("--steps" in last) is is_advised


def test_steps_that_differ_are_listed_by_kind_and_a_start_is_no_kind_of_its_own() -> None:
    (line,) = kind_lines([2, 2, 2, 3, 2, 2, 2, 3], [6, 2])
    assert figures_in(line) == [6, 8, 2, 2, 8, 4, 3]  # steps of all with their syncs, twice, the second with its period
    (line,) = kind_lines([2, 2, 2, 2], [6, 2])
    assert (figures_in(line), "--steps 24" in line) == ([4, 24], True)
    (line,) = kind_lines([11, 11, 11, 11], [786, 11])
    assert (figures_in(line), "--steps 24" in line) == ([786, 24], True)


def test_where_steps_cannot_be_chosen_no_option_is_advised() -> None:
    rare = PredictedBranch(file="loop.py", line=45, every=1000)
    kinds: list[tuple[list[int], list[int]]] = [([2, 2, 2, 2], [6, 2]), ([2, 2, 3, 2], []), ([2] * 4, [786])]
    for steps, warmup in kinds:
        for branches in ([], [rare]):
            with_option = "\n".join(kind_lines(steps, warmup, "--steps", branches))
            without = "\n".join(kind_lines(steps, warmup, None, branches))
            assert "--steps" in with_option
            assert "--" not in without
            assert ("1,000" in without) == bool(branches)


def test_what_was_assumed_is_named_with_its_line() -> None:
    place = {"op": "aten::nonzero", "file": "train.py", "line": 7, "count": 1, "reason": "a size was not computed"}
    lines = text_of("train.py", fill(PredictedStep, {"assumed": [place]}))
    assert any("aten::nonzero at train.py:7" in line and place["reason"] in line for line in lines)
    assert not [line for line in text_of("train.py", fill(PredictedStep, {})) if "assumed" in line]


def test_an_estimate_of_several_ranks_says_how_many_gpus_there_are() -> None:
    estimate = estimate_step(FollowedStep([]), gpu_named("H100"))
    more = [line for line in table([estimate], ranks=2) if line not in table([estimate])]
    assert [line.split()[:4] for line in more] == [["one", "of", "2", "GPUs,"]]


def test_the_advice_stands_before_the_estimate() -> None:
    estimate = estimate_step(FollowedStep([]), gpu_named("H100"))
    lines = text_of("train.py", step(PREDICTION), [estimate], advice=["the advice"])
    assert lines.index("the advice") < lines.index(table([estimate])[0])


def test_the_table_of_estimates_leaves_out_what_has_no_figure() -> None:
    with_batch = estimate_step(followed_step(step(WITH_OPERATORS)), gpu_named("H100"))
    known = dataclasses.replace(with_batch, batch=None, samples_per_s=None)
    head, row = (line.split() for line in table([known])[1:3])
    assert not {"batch", "samples/s"} & set(head)
    assert "-" not in row
    assert "samples/s" in table([known, with_batch])[1]
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(known))
    unknown = Estimate(**nothing | {"gpu": "L4", "reason": "no rule", "not_estimated": (), "work": (), "assumed": ()})
    assert not [line for line in table([known, unknown]) if line.split()[:2] == ["L4", "not"]]
    assert [line.strip() for line in table([unknown])[1:2]] == ["L4: not estimated: no rule"]
