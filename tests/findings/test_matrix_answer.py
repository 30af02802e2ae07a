"""The answer of a matrix: each cell against its own baseline, and blocked time against what its removal saves."""

from typing import Any

import msgspec
import pytest

from documents import an_estimate, fill
from steptrace.documents.comparison import Comparison
from steptrace.findings.answer import answer_of
from steptrace.findings.verdict import verdict_of


def difference(low: float, high: float, saved: tuple[float, float]) -> dict[str, Any]:
    return {"baseline": "plain", "saved_ms": list(saved), "times_as_fast": [low, high], "faster_pct": 99}


def matrix(*cells: dict[str, Any], gpu: str | None = None) -> Comparison:
    """A study of `plain` and `fast` over batches; each cell says how `fast` and `plain` differ from the usual."""
    variants = [
        {"name": f"{entry}__batch-{2**number}", "baseline": f"plain__batch-{2**number}", "entry": entry}
        | {"cell": {"data.batch": str(2**number), "precision": "bf16"}, "status": "ok"}
        | {"equivalence": {"status": "same"}, **cell[entry]}
        for number, cell in enumerate(cells)
        for entry in ("plain", "fast")
    ]
    content = {"study": "s", "baseline": "plain__batch-1", "variants": variants, "method": {"noise_floor": 0.01}}
    return fill(Comparison, content | ({} if gpu is None else {"environment": {"gpu": gpu, "gpu_count": 1}}))


def measured(ms: float, ratio: float, verdict: str | None) -> dict[str, Any]:
    times = {"statistic": "median", "median": ms, "runs": 3, "steps": 60}
    return {"step_ms": times, "ratio": {"value": ratio, "low": ratio, "high": ratio, "verdict": verdict}}


def test_a_measured_matrix_counts_the_cells_in_which_a_variant_is_faster():
    speeds = [(2.0, "faster"), (1.2, "faster"), (0.5, "slower"), (1.0, "same")]
    cells = [
        {"plain": measured(10.0, 1.0, "baseline"), "fast": measured(10.0 / ratio, ratio, verdict)}
        for ratio, verdict in speeds
    ]
    (speed,) = answer_of(matrix(*cells, gpu="NVIDIA H100")).matrix
    assert (speed.entry, speed.baseline, speed.keys) == ("fast", "plain", ("data.batch",))
    assert (speed.cells, speed.faster, speed.slower, speed.not_compared) == (4, 2, 1, 0)
    assert speed.least is not None
    assert speed.most is not None
    assert (speed.least.cell, speed.most.cell) == ({"data.batch": "4"}, {"data.batch": "1"})


def test_a_cell_of_other_samples_is_not_compared_and_a_missing_baseline_costs_no_other_cell():
    plain, fast = measured(10.0, 1.0, "baseline"), measured(5.0, 2.0, "faster")
    half = {"plain": plain | {"samples_per_step": 8}, "fast": fast | {"samples_per_step": 4}}
    study = matrix({"plain": plain, "fast": measured(5.0, 2.0, None)}, {"plain": plain, "fast": fast}, half, gpu="H100")
    study = msgspec.structs.replace(study, variants=study.variants[1:])
    (speed,) = answer_of(study).matrix
    assert (speed.baseline, speed.cells, speed.faster, speed.not_compared) == ("plain", 1, 1, 2)


def test_steps_of_two_cells_are_never_compared_by_estimates():
    """The step of the smallest batch is the shortest of all, and says nothing of what is faster in the others."""
    cells = []
    for number, times_as_fast in enumerate(((0.8, 0.9), (2.0, 3.0))):
        before, now = an_estimate(10.0**number, 1.1 * 10.0**number), an_estimate(10.0**number, 1.1 * 10.0**number)
        saved = (-2.0, -1.0) if times_as_fast[1] < 1 else (1.0, 2.0)
        now["difference"] = difference(*times_as_fast, saved)
        cells.append({"plain": {"estimates": [before]}, "fast": {"estimates": [now]}})
    answer = answer_of(matrix(*cells))
    assert [(row.name, row.alike) for row in answer.estimated] == [("fast__batch-2", ())]
    (speed,) = answer.matrix
    assert (speed.gpu, speed.cells, speed.faster, speed.slower) == ("H100", 2, 1, 1)


def estimates_of_syncs(launches: float, syncs: float, blocked: tuple[float, float]) -> dict[str, Any]:
    estimate = an_estimate(10.0, 20.0)
    return estimate | {"launches": launches, "syncs": syncs, "blocked_ms": list(blocked)}


def only_syncs(launches: float) -> Comparison:
    """Two cells: a sync that blocks the host for long and costs little, and one of which the opposite is true."""
    cells = []
    for blocked, saved in (((9.0, 18.0), (0.01, 0.02)), ((0.5, 1.0), (0.5, 1.0))):
        now = estimates_of_syncs(launches, 0, (0, 0)) | {"difference": difference(1.01, 1.2, saved)}
        cells.append({"plain": {"estimates": [estimates_of_syncs(200, 1, blocked)]}, "fast": {"estimates": [now]}})
    return matrix(*cells)


def test_variants_that_differ_in_syncs_alone_show_blocked_time_against_what_its_removal_saves_in_each_cell():
    study = only_syncs(launches=199)
    rows = answer_of(study).removals
    assert [(row.entry, row.cell["data.batch"]) for row in rows] == [("fast", "1"), ("fast", "2")]
    assert [(row.baseline_blocked_ms, row.saved_ms) for row in rows] == [
        ((9.0, 18.0), (0.01, 0.02)),
        ((0.5, 1.0), (0.5, 1.0)),
    ]
    verdict = verdict_of(study)
    assert [cell in verdict.sentences[0] for cell in ("batch 1", "batch 2")] == [True, True]


@pytest.mark.parametrize("launches", [150, 230])
def test_a_variant_that_launches_something_else_shows_no_cost_of_syncs(launches):
    assert answer_of(only_syncs(launches)).removals == ()


@pytest.mark.parametrize("fewer", [{"batch": 4}, {"devices": 1}], ids=["half a batch", "one of two GPUs"])
def test_a_step_of_fewer_samples_is_not_the_fastest_and_peaks_that_differ_are_named(fewer):
    """Half the samples take half the time, which is no gain."""
    half = an_estimate(5.0, 6.0) | {
        "peak_memory_bytes": 2**29,
        "difference": difference(1.8, 2.2, (5.0, 6.0)),
    }
    fast = an_estimate(8.0, 9.0) | {"difference": difference(1.1, 1.3, (2.0, 3.0))}
    estimates = {"plain": an_estimate(10.0, 11.0), "half": half, "fast": fast}
    estimates = {name: estimate | {"devices": 2} for name, estimate in estimates.items()}
    estimates["half"] |= fewer
    variants = [
        {"name": name, "status": "ok", "baseline": "plain", "equivalence": {"status": "same"}, "estimates": [estimate]}
        for name, estimate in estimates.items()
    ]
    answer = answer_of(fill(Comparison, {"study": "s", "baseline": "plain", "variants": variants}))
    assert [(row.name, row.alike, row.is_alone) for row in answer.estimated] == [("fast", (), False)]
    assert answer.memory is not None
    assert (answer.memory.least.name, answer.memory.most.peak_bytes) == ("half", 2**30)


def test_where_all_variants_have_other_batches_no_speed_is_claimed():
    half = an_estimate(5.0, 6.0) | {"batch": 4, "difference": difference(1.8, 2.2, (5.0, 6.0))}
    variants = [
        {"name": name, "status": "ok", "baseline": "plain", "equivalence": {"status": "same"}, "estimates": [estimate]}
        for name, estimate in (("plain", an_estimate(10.0, 11.0)), ("half", half))
    ]
    answer = answer_of(fill(Comparison, {"study": "s", "baseline": "plain", "variants": variants}))
    assert [row.outcome for row in answer.estimated] == ["other_batches"]
    assert answer.use != "half"
