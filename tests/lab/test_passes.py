"""The passes of a study between its timed and profiled steps: sections, parts of loading."""

from collections import namedtuple

import pandas as pd
import pytest
import torch

from documents import fill
from steptrace.compare.explain import figures as figures_of
from steptrace.compare.load import VariantRuns, load_run
from steptrace.documents.run import InputOfRun, PlannedVariant, SectionOfRun, Status
from steptrace.engine.clock import Clock
from steptrace.engine.memory import tensors_of
from steptrace.lab import passes
from steptrace.lab.loop import to_device, train_step
from steptrace.lab.passes import PartTimer, batch_bytes, left_out, measure_input, measure_sections
from steptrace.lab.setup import build_loader, training
from steptrace.run_folder import read_rows, read_run, read_steps, write_document, write_rows
from steptrace.workloads.giou_data import ConcatenatedBoxes

NAMES = ["copy data", "forward", "calc loss", "backward", "optimizer"]


def giou(form, loss):
    model = {"_target_": "steptrace.workloads.giou_network.GIoUNet", "image_size": 32, "hidden": 4, "boxes": 8}
    data = {"_target_": "steptrace.workloads.giou_data.RandomBoxes", "length": 32, "image_size": 32}
    data |= {"max_boxes": 8, "form": form, "seed": 0}
    loss = {"_target_": f"steptrace.workloads.giou_losses.{loss}"}
    return {"model": model, "data.dataset": data, "data.batch_size": 8, "loss": loss}


def test_every_step_gives_its_five_sections_in_order(make_config):
    with training(make_config(), 7) as parts:
        rows = measure_sections(parts, 3)
    assert [row.step for row in rows] == [step for step in range(3) for _ in NAMES]
    assert [row.section for row in rows] == 3 * NAMES
    assert all(row.section_ns > 0 for row in rows)


def test_the_device_is_without_work_before_and_after_each_section(monkeypatch):
    clock = iter(range(1000))
    events = []
    monkeypatch.setattr(Clock, "synchronize", lambda _: events.append("synchronize"))
    monkeypatch.setattr(passes.time, "perf_counter_ns", lambda: (events.append("clock"), next(clock))[1])
    timer = PartTimer(["forward"])
    with timer("forward"):
        events.append("work")
    assert events == ["synchronize", "clock", "work", "synchronize", "clock"]
    assert timer.times == [("forward", 1)]
    with timer("data"):  # the loader's time is no section
        pass
    assert timer.times == [("forward", 1)]


def test_a_step_trains_in_the_same_way_while_its_sections_are_timed(make_config):
    def weights(step):
        with training(make_config(), 7) as parts:
            for _ in range(2):
                step(parts)
            return [p.detach().clone() for p in parts.model.parameters()]

    plain = weights(train_step)
    timed = weights(lambda parts: measure_sections(parts, 1))
    assert all(torch.equal(a, b) for a, b in zip(plain, timed, strict=True))


def test_a_run_with_section_steps_leaves_them_and_the_batch_s_bytes(trained):
    out = trained({**giou("padded", "PaddedLoss"), "scale.section_steps": 3})
    assert len(read_rows(out, SectionOfRun)) == 3 * len(NAMES)
    assert read_run(out).batch_bytes == {"inputs": 8 * 32 * 32, "targets": 8 * 8 * 4}
    assert read_steps(out)["phase"].tolist() == 2 * ["warmup"] + 4 * ["timed"] + 2 * ["profiled"]


@pytest.mark.parametrize(
    ("form", "loss"), [("list", "LoopLoss"), ("concatenated", "ConcatLoss"), ("padded", "PaddedLoss")]
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_batches_of_every_form_pass_through_the_loop(make_config, form, loss):
    with training(make_config({**giou(form, loss), "data.num_workers": 1}), 7) as parts:
        losses = [train_step(parts)[0].item() for _ in range(3)]
        taken = batch_bytes(parts)
    with training(make_config(giou("padded", "PaddedLoss")), 7) as parts:
        assert losses == pytest.approx([train_step(parts)[0].item() for _ in range(3)], rel=1e-5)
        padded = batch_bytes(parts)
    assert taken["inputs"] == padded["inputs"]
    assert taken["targets"] == padded["targets"] if form == "padded" else taken["targets"] < padded["targets"]


def test_whatever_holds_tensors_is_copied_and_counted():
    Pair = namedtuple("Pair", ["boxes", "number"])
    tensors = [torch.zeros(2, 4) for _ in range(5)]
    batch = {
        "list": tensors[:2],
        "pair": Pair(tensors[2], 3),
        "plain": (tensors[3], "name"),
        "own": ConcatenatedBoxes(tensors[4], (1, 1)),
        "nothing": None,
        "again": tensors[0],
    }
    assert {id(tensor) for tensor in tensors_of(batch)} == {id(tensor) for tensor in tensors}
    assert len(list(tensors_of(batch))) == len(tensors)
    copied = to_device(batch, torch.device("meta"))
    parts = [*copied["list"], copied["pair"].boxes, copied["plain"][0], copied["own"].boxes]
    assert [part.device.type for part in parts] == 5 * ["meta"]
    assert type(copied["pair"]) is Pair
    assert (copied["pair"].number, copied["plain"][1], copied["own"].counts) == (3, "name", (1, 1))
    assert copied["nothing"] is None


def test_a_comparison_reads_the_sections_of_a_run(trained, tmp_path):
    for repeat in range(2):
        out = trained({"scale.section_steps": 1}, to=f"run{repeat}", repeat=repeat)
        write_document(out, fill(Status, {"status": "ok", "started_at": "2026-01-01T00:00:00+00:00"}))
        times = {"forward": [1_000_000, 3_000_000, 9_000_000 + 2_000_000 * repeat], "calc loss": [500_000] * 3}
        rows = [(step, name, ns[step]) for name, ns in times.items() for step in range(3)]
        write_rows(out, SectionOfRun, pd.DataFrame(rows, columns=["step", "section", "section_ns"]))
    runs = tuple(load_run(tmp_path / f"run{repeat}", repeat, None) for repeat in range(2))
    variant = VariantRuns(fill(PlannedVariant, {"name": "v", "baseline": "v"}), tmp_path, runs)
    figures = figures_of(variant, None)
    assert figures["synced_sections_ms"] == {"forward": 3.0, "calc loss": 0.5}
    assert set(figures["batch_bytes"]) == {"inputs", "targets"}
    (tmp_path / "run0" / "sections.parquet").write_text("not a table")
    assert load_run(tmp_path / "run0", 0, None).status == "failed"


@pytest.mark.parametrize(("workers", "accumulate"), [(0, 1), (2, 1), (0, 2)])
def test_a_row_for_each_batch_of_the_steps_asked_for(make_config, workers, accumulate):
    config = make_config({"data.num_workers": workers, "step.accumulate": accumulate})
    with training(config, seed=1) as parts:
        loader = build_loader(config, parts.device, 1)
        assert left_out(loader) == 1 + workers
        rows = measure_input(parts, loader, 4)
    assert len(rows) == 4 * accumulate
    assert all(min(row.wait_ns, row.fetch_ns, row.collate_ns) > 0 for row in rows)
    assert {row.worker for row in rows} == (set(range(workers)) or {None})
    if workers == 0:
        assert all(row.wait_ns >= row.fetch_ns + row.collate_ns for row in rows)
    # Nothing is pinned, and on a CPU nothing is copied.
    assert {(row.pin_ns, row.copy_ns) for row in rows} == {(None, None)}


def test_a_run_leaves_the_table_and_the_same_timed_steps(trained):
    without, with_pass = (trained({"scale.input_steps": steps}, to=str(steps)) for steps in (0, 3))
    assert len(read_rows(with_pass, InputOfRun)) == 3
    assert not (without / "input.parquet").exists()
    losses = [read_steps(out)["loss"].tolist()[:6] for out in (without, with_pass)]
    assert losses[0] == losses[1]
