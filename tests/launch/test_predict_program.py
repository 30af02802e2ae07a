"""`steptrace predict -- COMMAND`: the syncs of anybody's program, each with its line, without a GPU."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

import forked_python
from figures import figures_in
from steptrace.cli import main

pytestmark = pytest.mark.usefixtures("forked_programs")

FORMS = Path(__file__).with_name("forms.py")
DISTRIBUTED = Path(__file__).with_name("distributed.py")
FSDP_LINE = "train(model, lambda _, loss: loss.item())"


def predicted(capfd: pytest.CaptureFixture[str], *command: str) -> dict[str, object]:
    assert main(["predict", "--json", "--steps", "4", "--", sys.executable, *command]) == 0
    return json.loads(capfd.readouterr().out)


def places(prediction: dict[str, object]) -> dict[str, float]:
    return {site["code"]: site["count"] for site in prediction["sites"]}


def test_each_sync_of_an_unchanged_program_has_its_line(capfd) -> None:
    prediction = predicted(capfd, str(FORMS), "loader")
    assert (prediction["total"], prediction["by_step"], prediction["unknown"]) == (3, [3, 3, 3, 3], [])
    assert max(prediction["warmup_by_step"]) <= 3  # without the copies of the weights before the first step
    assert prediction["exit_code"] is None
    copies = "inputs, targets = inputs.to(device), targets.to(device)  # two syncs of one line"
    assert places(prediction) == {copies: 2, "loss.item()": 1}
    assert {Path(site["file"]).name for site in prediction["sites"]} == {"forms.py"}
    assert {site["code"]: site["phase"] for site in prediction["sites"]} == {copies: "data", "loss.item()": "other"}


def test_steps_of_several_optimizers_and_of_accumulated_batches(capfd) -> None:
    assert predicted(capfd, str(FORMS), "gan")["total"] == 0
    prediction = predicted(capfd, str(FORMS), "accumulation")
    # The scaler reads once a step whether a gradient is not finite.
    assert (prediction["total"], [site["op"] for site in prediction["sites"]]) == (1, ["aten::_local_scalar_dense"])
    assert prediction["sites"][0]["code"] == "scaler.step(optimizer)"


@pytest.mark.parametrize(("form", "total", "by_step"), [("ddp", 0.5, [1, 0, 1, 0]), ("fsdp", 1, [1, 1, 1, 1])])
def test_two_ranks_under_torchrun_that_ask_for_nccl(capfd, form: str, total: float, by_step: list[int]) -> None:
    """Gradients are reduced by kernels; the host waits in a barrier, and where it reads the loss."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    prediction = predicted(capfd, *torchrun, str(DISTRIBUTED), form)
    assert (prediction["total"], prediction["by_step"], prediction["unknown"]) == (total, by_step, [])
    assert list(places(prediction)) == (["dist.barrier()"] if form == "ddp" else [FSDP_LINE])


def test_a_program_that_starts_its_ranks_itself_gets_as_many_gpus_as_are_asked_for(capfd, tmp_path) -> None:
    program = [sys.executable, str(DISTRIBUTED), "spawned", str(forked_python.executable(tmp_path / "python"))]
    assert main(["predict", "--json", "--steps", "3", "--devices", "2", "--", *program]) == 0
    prediction = json.loads(capfd.readouterr().out)
    assert (prediction["total"], prediction["by_rank"], prediction["unknown"]) == (1, [1, 1], [])


@pytest.fixture
def logging_program(tmp_path: Path) -> str:
    """A program that reads its loss every so many steps."""
    file = tmp_path / "logs.py"
    file.write_text(
        "import sys, torch\n"
        "every = int(sys.argv[1])\n"
        "model = torch.nn.Linear(4, 4).to('cuda')\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(1000):\n"
        "    loss = model(torch.zeros(2, 4, device='cuda')).sum()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    if step % every == 0:\n"
        "        loss.item()\n"
    )
    return str(file)


@pytest.mark.parametrize(("every", "steps", "syncs"), [(10, 10, 1), (7, 7, 1), (30, 4, 0)])
def test_whole_periods_of_a_step_counter_are_followed_if_they_are_short(
    capfd, logging_program: str, every: int, steps: int, syncs: int
) -> None:
    assert main(["predict", "--json", "--", sys.executable, logging_program, str(every)]) == 0
    prediction = json.loads(capfd.readouterr().out)
    assert (len(prediction["by_step"]), sum(prediction["by_step"])) == (steps, syncs)
    assert [(branch["line"], branch["every"]) for branch in prediction["branches"]] == [(9, every)]


@pytest.mark.parametrize(
    ("every", "options", "code"),
    [
        (10, [], 1),  # one sync in ten steps is over a budget of none
        (100, [], 1),
        (100, ["--allow", "logs.py:10"], 0),
        (500, [], 1),  # not followed to the end of its period, so the budget is not known to hold
        (500, ["--allow", "logs.py:9"], 0),
        (10, ["--steps", "4"], 1),
    ],
)
def test_a_budget_rests_on_a_whole_period_of_the_program(
    capfd, logging_program: str, every: int, options: list[str], code: int
) -> None:
    command = ["--", sys.executable, logging_program, str(every)]
    assert main(["predict", "--budget", "0", *options, *command]) == code
    assert ("over budget" in capfd.readouterr().err) == bool(code)


def test_a_program_whose_scaler_skips_all_steps_is_ended_with_the_reason(capfd, tmp_path: Path) -> None:
    file = tmp_path / "skips.py"
    file.write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.full((4,), float('inf'), device='cuda'))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "while True:\n"
        "    weight.sum().square().backward()\n"
        "    if not torch.isfinite(weight.grad).all():\n"
        "        optimizer.zero_grad()\n"
        "        continue\n"
        "    optimizer.step()\n"
    )
    assert main(["predict", "--", sys.executable, str(file)]) == 2
    assert 500 in figures_in(capfd.readouterr().err)  # backward passes


def test_what_a_closure_does_is_not_the_optimizers(capfd) -> None:
    """Lightning's whole training step is one."""
    prediction = predicted(capfd, str(FORMS), "reading_closure")
    assert {(site["code"], site["label"]) for site in prediction["sites"]} == {("loss.item()", None)}
    assert 0 < prediction["operators_per_section"]["Optimizer.step#SGD.step"] < prediction["operators"] / 2


def test_a_program_that_trains_for_fewer_steps_than_asked_for_is_no_failure(capfd) -> None:
    command = ["--", sys.executable, str(FORMS), "gan", "4"]
    assert main(["predict", "--budget", "0", *command]) == 0
    (warning,) = [line for line in capfd.readouterr().err.splitlines() if "exit code" in line]
    assert figures_in(warning) == [0, 2, 24]  # exit code, steps followed, steps asked for
    assert main(["predict", "--warmup", "9", *command]) == 2
    assert "--warmup" in capfd.readouterr().err


def test_a_program_that_ends_before_a_whole_period_says_how_many_steps_were_followed(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 1).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for step in range(10):\n"
        "    loss = model(torch.ones(2, 4, device='cuda')).sum()\n    loss.backward()\n    optimizer.step()\n"
        "    if step % 20 == 19:\n        print(loss.item())\n"
    )
    assert main(["predict", "--json", "--", sys.executable, str(file)]) == 0
    output, error = capfd.readouterr()
    assert len(json.loads(output)["by_step"]) == 8
    (warning,) = [line for line in error.splitlines() if "exit code" in line]
    assert figures_in(warning) == [0, 8]  # exit code, steps followed: more than the 4 that are the least


@pytest.mark.parametrize(("form", "has_steps"), [("by_hand", False), ("raises", True)])
def test_a_program_that_cannot_be_followed(capfd, form: str, has_steps: bool) -> None:  # noqa: FBT001
    """Advice on steps that are not seen is for a program of which no step was seen."""
    assert main(["predict", "--warmup", "9", "--", sys.executable, str(FORMS), form, "8"]) == 2
    assert ("steptrace.step()" in capfd.readouterr().err) is not has_steps


def test_a_program_that_fails_partway_is_reported_with_the_steps_that_were_followed(capfd) -> None:
    """What it has begun when it ends is no step: its fifth one raises after the update."""
    options = ["--json", "--steps", "20", "--warmup", "1"]
    assert main(["predict", *options, "--", sys.executable, str(FORMS), "reads_and_raises"]) == 1
    written = capfd.readouterr()
    prediction = json.loads(written.out)
    assert (prediction["total"], prediction["by_step"]) == (1, [1, 1, 1])
    assert [site["count"] for site in prediction["sites"]] == [1]
    assert prediction["exit_code"] == 1
    assert "prediction is at fault" in written.err  # and how to tell that from a fault of the program
    assert [1, 3, 20] in [figures_in(line)[:3] for line in written.err.splitlines() if "exit code" in line]


def test_an_operation_that_cannot_be_followed_is_named_and_is_no_fault_of_the_program(tmp_path: Path, capfd) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "class Slotted(torch.Tensor):\n    __slots__ = ('kept',)\n"
        "torch.ones(2, device='cuda').as_subclass(Slotted)\n"
    )
    assert main(["predict", "--", sys.executable, str(tmp_path / "train.py")]) == 2
    (next_step,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("  next: ")]
    assert "`as_subclass()` of a tensor on the GPU" in next_step
    assert "fault" not in next_step


PRODUCER = """
import queue, threading, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = queue.Queue(2)

def produce():
    for _ in range(40):
        batches.put(torch.zeros(4, 8).to("cuda"))

threading.Thread(target=produce, daemon={daemon}).start()
for _ in range(40):
    model(batches.get()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("daemon", [True, False])
def test_what_a_thread_copies_belongs_to_the_step_that_takes_it(capfd, tmp_path, *, daemon) -> None:
    program = tmp_path / "producer.py"
    program.write_text(PRODUCER.format(daemon=daemon), encoding="utf-8")
    prediction = predicted(capfd, str(program))
    assert prediction["by_step"] == [1] * len(prediction["by_step"])
    assert places(prediction) == {'batches.put(torch.zeros(4, 8).to("cuda"))': 1}
    (site,) = prediction["sites"]
    assert site["phase"] == "data"


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_a_program_that_needs_triton_is_told_to_install_it(capfd, tmp_path) -> None:
    program = tmp_path / "kernel.py"
    program.write_text("import torch, triton\n", encoding="utf-8")
    assert main(["predict", "--", sys.executable, str(program)]) == 2
    assert "pip install triton" in capfd.readouterr().err


ACTOR = """
import threading, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def act():
    while True:
        model(torch.zeros(1, 8).to("cuda"))

threading.Thread(target=act, daemon=True).start()
for _ in range(20):
    model(torch.zeros(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_thread_that_goes_on_at_the_program_s_end_does_not_fail(capfd, tmp_path) -> None:
    program = tmp_path / "actor.py"
    program.write_text(ACTOR, encoding="utf-8")
    assert main(["predict", "--", sys.executable, str(program)]) == 0
    assert "Traceback" not in capfd.readouterr().err
