"""Results over time: what was kept as baselines, in order, and the present ones last."""

from pathlib import Path
from typing import Any

import pytest

from documents import fill
from steptrace.documents.base import write
from steptrace.documents.comparison import Comparison
from steptrace.documents.kept import Baseline
from steptrace.errors import RecordError
from steptrace.judging.history import NOW, history, trends
from steptrace.report.index import _past

MACHINE = {"cpu": "Epyc", "cpu_count": 8, "gpu": None, "gpu_count": 0}


def kept(folder: Path, name: str, saved_at: str, medians: dict[str, float], **environment: Any) -> Path:
    times = {"p95": 1.0, "low": None, "high": None, "runs": 1, "steps": 5}
    variants = {
        variant: {"digest": None, "step_ms": {"median": median, **times}, "peak_allocated_bytes": None}
        for variant, median in medians.items()
    }
    study = {"scale": "cpu", "environment": {**MACHINE, **environment}, "variants": variants}
    document = {"schema_version": 1, "saved_at": saved_at, "studies": {"s": study}}
    return write(folder / f"{name}.json", fill(Baseline, document))


def present(median: float | None) -> Comparison:
    variants = [{"name": "a", "step_ms": None if median is None else {"median": median}}]
    return fill(Comparison, {"study": "s", "scale": "cpu", "environment": MACHINE, "variants": variants})


def test_results_are_in_the_order_of_their_dates_whatever_their_zones_and_the_present_one_is_last(
    tmp_path: Path,
) -> None:
    late = kept(tmp_path, "a_late", "2026-03-01T10:00:00+00:00", {"a": 9.0})
    early = kept(tmp_path, "z_early", "2026-03-01T11:30:00+02:00", {"a": 10.0})
    no_zone = kept(tmp_path, "no_zone", "2026-03-01T09:45:00", {"a": 9.5})
    found = history([late, no_zone, early], [present(8.0)])
    assert [result.name for result in found["s"]] == ["z_early", "no_zone", "a_late", NOW]
    assert [result.step_ms["a"].median for result in found["s"]] == [10.0, 9.5, 9.0, 8.0]


def test_machine_and_scale_part_results_and_versions_do_not(tmp_path: Path) -> None:
    files = [
        kept(tmp_path, "old", "2026-01-01", {"a": 1.0}, torch="2.11.0"),
        kept(tmp_path, "other", "2026-01-02", {"a": 1.0}, gpu="H200"),
    ]
    old, other, now = history(files, [present(1.0)])["s"]
    assert old.machine == now.machine != other.machine
    assert old.environment["torch"] == "2.11.0"


def test_the_index_says_of_the_past_what_history_says(tmp_path: Path) -> None:
    files = [
        kept(tmp_path, "first", "2026-01-01", {"a": 4.0, "b": 1.0}, torch="2.11.0"),
        kept(tmp_path, "other", "2026-01-02", {"a": 9.0}, gpu="H200"),
        kept(tmp_path, "last", "2026-01-03", {"a": 2.0}, torch="2.12.0"),
    ]
    results = history(files, [present(1.0)])["s"]
    past = _past("S", results)
    assert past is not None
    assert past["times"] == ["first, 2026-01-01", "last, 2026-01-03", NOW]
    assert past["elsewhere"] == ("other",)
    assert past["changed"][0].startswith("first to last: torch 2.11.0 → 2.12.0")
    (told,) = trends({"s": results})
    by_name = {variant["name"]: variant for variant in past["variants"]}
    assert told.results[-1].variants[0].ratio == 2.0
    assert (by_name["a"]["ratio"], by_name["a"]["first"], by_name["a"]["now"]) == ("2.00×", "4.00 ms", "1.00 ms")
    assert (by_name["b"]["ratio"], by_name["b"]["first"], by_name["b"]["now"]) == (None, "1.00 ms", "not measured")


def test_what_was_not_measured_is_not_there() -> None:
    assert history([], [present(None)])["s"][0].step_ms == {}


def test_a_date_that_cannot_be_read_is_told_with_its_file(tmp_path: Path) -> None:
    file = kept(tmp_path, "x", "yesterday", {})
    with pytest.raises(RecordError, match="saved_at") as caught:
        history([file])
    assert caught.value.where == str(file)
