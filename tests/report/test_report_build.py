import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from documents import fill
from steptrace.documents.base import write
from steptrace.documents.comparison import Comparison, SyncCounts, UnknownPlace
from steptrace.documents.summary import Summary
from steptrace.errors import RecordError
from steptrace.report.index import index, load_imported, load_index
from steptrace.report.study.headline import headline
from steptrace.report.study.model import load_study, parts_kind, traced_parts
from steptrace.report.study.overview import sections_of_loss
from steptrace.report.study.reasons import answer, operators, summary, syncs, tone, why
from steptrace.report.study.step_times import load_steps

MakeStudy = Callable[[str], Path]


def rewrite(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"study": "x"}'])
def test_a_wrong_comparison_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(text)
    with pytest.raises(RecordError) as caught:
        load_study(path)
    assert caught.value.where == str(path)
    assert caught.value.next_step or caught.value.expected


def test_a_missing_comparison_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is missing") as caught:
        load_study(tmp_path / "comparison.json")
    assert "run the study" in str(caught.value)


def test_steps_are_read_beside_the_comparison_wherever_it_lies(make_study: MakeStudy, tmp_path: Path) -> None:
    moved = shutil.copytree(make_study("cpu").parent, tmp_path / "elsewhere")
    path = moved / "comparison.json"
    steps = load_steps(load_study(path), path)
    assert len(steps) == 12
    assert {run.timed.size for run in steps} == {20}
    assert {run.warmup.size for run in steps} == {5}


def test_steps_that_the_comparison_left_out_count_as_warmup(make_study: MakeStudy) -> None:
    path = make_study("cpu")
    raw: dict[str, Any] = json.loads(path.read_text())
    raw["variants"][0]["runs"][0]["warmup_left_out"] = 3
    before = load_steps(load_study(path), path)[0]
    rewrite(path, variants=raw["variants"])
    run = load_steps(load_study(path), path)[0]
    assert run.warmup.size == 8
    np.testing.assert_array_equal(run.timed, before.timed[3:])


def test_runs_without_steps_are_passed_over(make_study: MakeStudy) -> None:
    path = make_study("cpu")
    (path.parent / "where" / "run1" / "steps.parquet").unlink()
    assert len(load_steps(load_study(path), path)) == 11


def test_a_broken_steps_file_is_one_clear_error(make_study: MakeStudy) -> None:
    path = make_study("cpu")
    (path.parent / "where" / "run1" / "steps.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(RecordError, match=r"where/run1/steps\.parquet"):
        load_steps(load_study(path), path)


def test_a_steps_file_without_a_column_is_one_clear_error(make_study: MakeStudy) -> None:
    path = make_study("cpu")
    file = path.parent / "where" / "run1" / "steps.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["step_ns"]), file)
    with pytest.raises(RecordError, match=r"step times cannot be read.*step_ns"):
        load_steps(load_study(path), path)


def test_the_parts_of_a_step_are_the_gpus_where_there_is_one(make_study: MakeStudy) -> None:
    gpu, cpu = load_study(make_study("gpu")), load_study(make_study("cpu"))
    labels = [[part.label for part in traced_parts(s.variants[0], parts_kind(s))] for s in (gpu, cpu)]
    assert labels[0] == ["compute", "exposed_comm", "exposed_memory", "idle"]
    assert labels[1] == ["data", "forward", "loss", "backward", "optimizer"]


def test_labels_of_pytorch_are_no_sections_of_the_loss(make_study: MakeStudy) -> None:
    labels = [part.label for part in sections_of_loss(load_study(make_study("cpu")).variants[0].sections_ms)]
    assert labels[:2] == ["create mask", "permute"]
    assert not [label for label in labels if label.startswith("Optimizer")]
    assert "copy data" not in labels


@pytest.mark.parametrize(
    ("study", "sentence"),
    [
        (
            "cpu",
            (
                "`ignore_index` is 1.18× faster than `boolean_mask` (95 % interval 1.12 to 1.25, 3 runs); "
                "slower: `sort` (0.82×); `where`: undecided."
            ),
        ),
        (
            "gpu",
            (
                "`ignore_index` is 3.92× faster than `boolean_mask` (95 % interval 3.87 to 3.97, 3 runs), "
                "but its answer differs; `where`: undecided."
            ),
        ),
        (
            "broken",
            (
                "`ignore_index` is 1.18× faster than `boolean_mask` (95 % interval 1.02 to 1.36, 2 runs); "
                "`where` failed; `sort` ran out of memory; `never` was not run."
            ),
        ),
        ("all_failed", "No step time was measured: `boolean_mask` and `where` failed."),
    ],
)
def test_the_headline_is_made_from_the_data(make_study: MakeStudy, study: str, sentence: str) -> None:
    assert headline(load_study(make_study(study))) == sentence


def test_one_run_makes_no_claim(make_study: MakeStudy) -> None:
    text = headline(load_study(make_study("single")))
    assert text.startswith("One run each, so no verdict")
    assert "faster" not in text


def test_many_variants_are_counted_rather_than_listed(make_study: MakeStudy) -> None:
    text = headline(load_study(make_study("matrix")))
    assert text.endswith("; 2 more are faster; 3 are slower; 3 are the same (within 1 %).")


def test_a_slower_variant_is_told_by_how_much_it_is_slower(study_builder: Any) -> None:
    study_builder.add("boolean_mask", [10.0, 10.1], ratio={"value": 1.0, "verdict": "baseline"})
    study_builder.add("sort", [20.0, 20.1], ratio={"value": 0.5, "low": 0.4, "high": 0.625, "verdict": "slower"})
    text = headline(load_study(study_builder.write()))
    assert text == (
        "No variant is shown to be faster than `boolean_mask`; "
        "`sort` is 2.00× slower than `boolean_mask` (95 % interval 1.60 to 2.50, 2 runs)."
    )


def test_without_its_baseline_a_study_compares_nothing(study_builder: Any) -> None:
    study_builder.fail("boolean_mask", "oom", {"error": "out of memory", "log_tail": []})
    study_builder.add("where", [10.0, 10.1])
    text = headline(load_study(study_builder.write()))
    assert text.startswith("The baseline `boolean_mask` has no step time, so nothing is compared")
    assert text.endswith("`boolean_mask` ran out of memory.")


@pytest.mark.parametrize(
    ("study", "expected"), [("cpu", "good"), ("gpu", "care"), ("all_failed", "bad"), ("single", "neutral")]
)
def test_the_tone_follows_the_result(make_study: MakeStudy, study: str, expected: str) -> None:
    assert tone(load_study(make_study(study))) == expected


def test_the_index_tells_what_each_study_found(make_study: MakeStudy) -> None:
    whole, broken = load_index([make_study("cpu"), make_study("broken")])
    assert (whole.href, whole.problems, whole.scale) == ("masked_loss.html", (), "cpu")
    assert whole.machine == "Intel Xeon Platinum 8488C, no GPU"
    assert (broken.problems, broken.detail) == (("incomplete",), "5 variants, 5 of 12 runs ok")


GATE = {"study": "s", "variant": "a", "key": "status", "limits": {"equals": "ok"}, "value": None, "text": ""}
BROKEN, HELD = {**GATE, "outcome": "broken"}, {**GATE, "outcome": "held"}


def test_the_index_calls_no_study_ok_that_has_a_broken_gate_or_another_answer(study_builder: Any) -> None:
    study_builder.add("boolean_mask", [10.0], equivalence={"status": "failed"})
    study_builder.add("where", [10.0], equivalence={"status": "differs"})
    study_builder.comparison["gates"] = [BROKEN, BROKEN, HELD]
    (entry,) = load_index([study_builder.write()])
    assert entry.problems == ("gates broken", "answer differs", "answer not checked")
    assert entry.detail == "2 variants, 2 of 2 runs ok, 2 of 3 gates broken"
    shown = str(index([entry], []))
    assert '<span class="badge bad">gates broken</span>' in shown
    assert ">ok<" not in shown
    assert "2 gates are broken." in entry.headline


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (("same", "same"), "All variants compute the same."),
        (("same", "differs"), "`v1` computes a different result from the reference."),
        (("differs", "differs"), "All variants compute a different result from the reference."),
        (
            ("same", "same", "failed"),
            "All variants that were checked compute the same. The check of the answer failed for `v2`.",
        ),
        (
            ("differs", "not measured"),
            "`v0` computes a different result from the reference. The answer was not checked for `v1`.",
        ),
        (("not measured", "not measured"), "Whether the variants compute the same was not checked."),
        (("differs",) * 9 + ("same",), "9 variants compute a different result from the reference."),
    ],
)
def test_the_headline_says_whether_the_answer_is_the_same(
    study_builder: Any, statuses: tuple[str, ...], said: str
) -> None:
    for number, status in enumerate(statuses):
        study_builder.add(f"v{number}", [10.0], equivalence={"status": status})
    study = load_study(study_builder.write())
    assert answer(study) == said
    assert said in summary(study)


@pytest.mark.parametrize(("count", "said"), [(8, "`v3` 13.00 ms, `v4` 14.00 ms,"), (9, "the longest 18.00 ms (`v8`)")])
def test_the_headline_of_single_runs_names_all_or_the_ends(study_builder: Any, count: int, said: str) -> None:
    study_builder.comparison["baseline"] = "v0"
    for number in range(count):
        variant = study_builder.add(f"v{number}", [10.0])
        variant["step_ms"]["median"] = 10.0 + number
    assert said in headline(load_study(study_builder.write()))


def test_the_index_links_to_the_page_of_an_imported_trace(tmp_path: Path) -> None:
    summary = tmp_path / "results" / "traces" / "mine" / "summary.json"
    summary.parent.mkdir(parents=True)
    write(summary, fill(Summary, {"traces": [{"gpu_busy_pct": 24.2, "syncs": {"per_step": 8.0}}]}))
    (entry,) = load_imported([summary], tmp_path / "reports")
    assert entry.href == "../results/traces/mine/report.html"
    assert entry.headline == "GPU busy 24 %, syncs per step 8."


def test_the_syncs_are_told_as_measured_or_as_predicted(make_study: MakeStudy):
    measured, laptop = load_study(make_study("gpu")), load_study(make_study("cpu"))
    assert syncs(measured).startswith("Syncs per step, measured: ")

    def with_predicted(*counts: int | None) -> Comparison:
        variants = [
            replace(v, syncs=fill(SyncCounts, {"predicted_per_step": n}))
            for v, n in zip(laptop.variants, counts, strict=True)
        ]
        return replace(laptop, variants=tuple(variants))

    told = syncs(with_predicted(6, 4, 3, 0))
    assert told.startswith("Syncs per step on a GPU, predicted: ")
    assert f"`{laptop.variants[0].name}` 6" in told
    none = with_predicted(0, 0, 0, 0)
    assert syncs(none) == "No syncs in any variant (predicted)."
    first, second, *rest = none.variants
    open_ = replace(second, predicted_unknown=(fill(UnknownPlace, {}),))
    told = syncs(replace(none, variants=(first, open_, *rest)))
    assert told == "No syncs in any variant (predicted; parts of `where` were not judged)."
    assert syncs(with_predicted(None, None, None, None)) == "Syncs were neither measured nor predicted."


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"loss": -3.0, "forward": -1.0, "data": -0.5, "residual": 0.1},
            "loss 3.00 ms, forward 1.00 ms, data 500 µs; other parts take 500 µs more.",
        ),
        ({"idle_sync": -4.0, "compute": 0.2}, "idle time (held up by a sync) 4.00 ms."),
        ({"loss": -4.0, "residual": -4.4}, None),
        ({"loss": 1.0}, None),
    ],
)
def test_the_parts_by_which_the_fastest_is_faster_are_named(
    study_builder: Any, parts: dict[str, float], said: str | None
) -> None:
    def part(delta: float) -> dict[str, Any]:
        return {"baseline_ns": 1, "variant_ns": 1, "delta_ms": delta, "low": None, "high": None}

    waterfall = [{"category": name, **part(delta)} for name, delta in parts.items()]
    faster = {"value": 1.4, "low": 1.3, "high": 1.5, "verdict": "faster"}
    study_builder.add("boolean_mask", [14.0, 14.1])
    study_builder.add("fast", [10.0, 10.1], ratio=faster, waterfall=waterfall, step_difference=part(-4.0))
    assert why(load_study(study_builder.write())) == ("" if said is None else f"Saved, by profiled steps: {said}")


@pytest.mark.parametrize(("calls", "said"), [(100, "Operators per step: 4,301 before, 100 in `fast`."), (4000, "")])
def test_many_times_fewer_operators_are_named_as_a_reason(study_builder: Any, calls: int, said: str) -> None:
    faster = {"value": 1.4, "low": 1.3, "high": 1.5, "verdict": "faster"}
    study_builder.add("boolean_mask", [14.0, 14.1], operators_per_step=4301)
    study_builder.add("fast", [10.0, 10.1], ratio=faster, operators_per_step=calls)
    assert operators(load_study(study_builder.write())) == said


def test_undecided_variants_of_uneven_runs_are_explained(study_builder: Any) -> None:
    study_builder.add("boolean_mask", [14.0, 20.0], noise={"between_runs": 0.43, "warnings": []})
    undecided = {"value": 1.1, "low": 0.5, "high": 2.0, "verdict": "undecided"}
    study_builder.add("other", [13.0, 19.0], ratio=undecided)
    assert "undecided (runs of one variant differ by up to 43 %)" in headline(load_study(study_builder.write()))
