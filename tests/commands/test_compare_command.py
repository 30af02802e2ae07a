"""`steptrace compare`: several results of a study, as text, Markdown, JSON and a page."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from documents import fill
from shown import with_plain_spaces
from steptrace.cli import main
from steptrace.compare.results import change, compare_results
from steptrace.documents.base import write
from steptrace.documents.comparison import Change, Comparison
from steptrace.errors import RecordError
from steptrace.report.results import chart, column_names, headline, sections, short_names
from steptrace.words.lines import SCREEN
from steptrace.words.results import change_note_text

STEADY = (1.0, 1.004, 0.997)
ENVIRONMENT = {"host": "one", "cpu": "A CPU", "torch": "2.13.0", "python": "3.11.7", "memory_bytes": 2**30}


def variant(name: str, ms: float, spread: tuple[float, ...] = STEADY, **changes: Any) -> dict[str, Any]:
    runs = [{"repeat": k, "status": "ok", "median_ms": ms * factor} for k, factor in enumerate(spread)]
    times = {"statistic": "median", "median": ms, "low": ms * 0.99, "high": ms * 1.01, "runs": len(runs)}
    entry = {"name": name, "status": "ok", "digest": "d", "baseline": "plain", "runs": runs, "step_ms": times}
    return {**entry, "syncs": {"predicted_per_step": 0}, "equivalence": {"status": "same"}, **changes}


def study(*variants: dict[str, Any], **changes: Any) -> Comparison:
    whole = {"study": "s", "title": "A study", "scale": "cpu", "environment": ENVIRONMENT}
    return fill(Comparison, {**whole, "method": {"noise_floor": 0.01}, "variants": variants, **changes})


def _verdicts(compared: Change) -> dict[str, str | None]:
    return {variant.name: variant.ratio and variant.ratio.verdict for variant in compared.variants}


def test_which_step_times_changed_and_how_sure_that_is() -> None:
    a = study(variant("quick", 10), variant("slow", 10), variant("noisy", 10), variant("once", 10, (1.0,)))
    noisy = variant("noisy", 8, (1.0, 1.6, 0.7))
    b = study(variant("quick", 5), variant("slow", 12), noisy, variant("once", 5, (1.0,)))
    compared = change(a, b)
    assert _verdicts(compared) == {"quick": "faster", "slow": "slower", "noisy": "undecided", "once": None}
    assert compared.variants[0].ratio is not None
    ratio = compared.variants[0].ratio
    once = compared.variants[3].ratio
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 2.0 < ratio.high
    assert once is not None
    assert (once.value, once.low, once.high) == (pytest.approx(2.0), None, None)
    assert headline(compared).startswith("Faster now: `quick` (2.00×, ")


def test_means_are_compared_where_one_result_has_them() -> None:
    """In all of a series, and the step times shown are those of the ratios."""
    uneven = variant("v", 10)
    even = variant("v", 12)
    for entry, times in (uneven, 2.0), (even, 1.1):
        entry["step_ms"]["mean"] = times * entry["step_ms"]["median"]
        for run in entry["runs"]:
            run["mean_ms"] = times * run["median_ms"]
    uneven["step_ms"]["statistic"] = "mean"
    compared = compare_results([("a", study(even)), ("b", study(even)), ("c", study(uneven))])
    of = [result.step_ms["v"] for result in compared.results]
    assert [one and one.value for one in of] == pytest.approx([13.2, 13.2, 20.0])
    assert of[0] is not None
    assert of[0].low is not None
    assert of[0].low > 12.5
    assert [one.variants[0].ratio and one.variants[0].ratio.value for one in compared.changes] == pytest.approx(
        [1.0, 0.66], abs=0.01
    )
    assert "means" in {note.code for note in compared.changes[1].remarks}


def test_the_same_runs_again_are_the_same() -> None:
    a = study(variant("quick", 10, (1.0, 1.0005, 0.9995)))
    compared = change(a, a)
    assert _verdicts(compared) == {"quick": "same"}
    assert (compared.environment, compared.findings_before, compared.variants[0].differing) == ((), (), ())
    assert headline(compared).casefold() == f"{change_note_text(compared.remarks[0])}.".casefold()
    assert [note.code for note in compared.remarks] == ["same_result"]
    assert "same_result" not in {note.code for note in change(a, study(variant("quick", 10.1))).remarks}


def test_a_claim_is_corrected_for_the_number_of_variants() -> None:
    spread = (1.0, 1.05, 0.96)
    alone = [study(variant("v0", ms, spread)) for ms in (10, 9.0)]
    others = [variant(f"v{k}", 10, spread) for k in range(1, 40)]
    many = [study(variant("v0", ms, spread), *others) for ms in (10, 9.0)]
    assert _verdicts(change(*alone))["v0"] == "faster"
    assert _verdicts(change(*many))["v0"] == "undecided"


def test_no_verdict_where_steps_are_too_uneven_for_one_and_no_ratio_where_scales_differ() -> None:
    uneven = variant("v", 5, noise={"iqr_over_median": 0.26})
    for sides in ((variant("v", 10), uneven), (uneven, variant("v", 10))):
        compared = change(*map(study, sides))
        assert _verdicts(compared) == {"v": None}
        assert compared.variants[0].ratio is not None
        assert "too_uneven" in {note.code for note in compared.remarks}
    limit = variant("v", 5, noise={"iqr_over_median": 0.25})
    assert _verdicts(change(study(variant("v", 10)), study(limit))) == {"v": "faster"}
    (other,) = change(study(variant("v", 10)), study(variant("v", 5), scale="gpu")).variants
    assert other.ratio is None


def test_each_variant_without_a_verdict_has_its_reason() -> None:
    """One run on either side, uneven steps, no step time on either side: each is in exactly one note."""
    once = (1.0,)
    failed = {"status": "failed", "runs": [{"repeat": 0, "status": "failed"}], "step_ms": None}
    noise = {"noise": {"iqr_over_median": 0.3}}
    a = study(
        variant("judged", 10), variant("once", 10, once, **noise), variant("uneven", 10, **noise),
        variant("lost", 10), variant("found", 10, **failed),
    )  # fmt: skip
    b = study(
        variant("judged", 5), variant("once", 10), variant("uneven", 10), variant("lost", 10, **failed),
        variant("found", 10),
    )  # fmt: skip
    for sides, lost, found in ((a, b), "now", "before"), ((b, a), "before", "now"):
        compared = change(*sides)
        assert {name for name, verdict in _verdicts(compared).items() if verdict} == {"judged"}
        notes = {note.code: note.figures for note in compared.remarks}
        assert notes["too_few_runs"]["variants"] == ["once"]
        assert notes["too_uneven"]["variants"] == ["uneven"]
        assert notes["not_measured"] == {lost: ["lost"], found: ["found"]}
        texts = {note.code: change_note_text(note) for note in compared.remarks}
        for code, name in ("too_few_runs", "once"), ("too_uneven", "uneven"), ("not_measured", "found"):
            assert [other for other, text in texts.items() if f"`{name}`" in text] == [code]
    assert {"not_measured", "too_few_runs", "too_uneven"}.isdisjoint(
        note.code for note in change(study(variant("v", 10)), study(variant("v", 9))).remarks
    )


def test_other_figures_that_differ() -> None:
    a = variant("v", 10, syncs={"predicted_per_step": 3}, gpu_busy_pct=50.0, peak_allocated_bytes=1000)
    b = variant("v", 10, syncs={"predicted_per_step": 0}, gpu_busy_pct=52.0, peak_allocated_bytes=None)
    (compared,) = change(study(a), study(b)).variants
    assert [(f.name, f.before, f.now) for f in compared.differing] == [
        ("syncs per step, predicted", "3", "0"),
        ("peak memory", "1000 B", None),
    ]
    assert [(f.figure, f.before_value, f.now_value) for f in compared.differing] == [
        ("syncs.predicted_per_step", 3, 0),
        ("peak_allocated_bytes", 1000, None),
    ]


def test_environment_findings_and_what_is_on_one_side_only() -> None:
    finding = {"rule": "r", "variant": "v", "claim": "it waits", "source": {"file": "f.py", "line": 3}}
    a = study(variant("v", 10), variant("gone", 10), findings=[finding])
    moved = {**finding, "source": {"file": "f.py", "line": 9}}
    b = study(variant("v", 10, digest="other"), variant("new", 10), scale="gpu", findings=[moved],
              environment={**ENVIRONMENT, "torch": "2.12.0", "gpu": "A GPU", "memory_bytes": 2**31})  # fmt: skip
    compared = change(a, b)
    assert [(key.name, key.before, key.now) for key in compared.environment] == [
        ("scale", "cpu", "gpu"),
        ("memory_bytes", "1.00 GiB", "2.00 GiB"),
        ("gpu", None, "A GPU"),
        ("torch", "2.13.0", "2.12.0"),
    ]
    assert (compared.only_before, compared.only_now) == (("gone",), ("new",))
    assert (compared.findings_before, compared.findings_now) == (("v: it waits",), ("v: it waits",))
    assert {note.code for note in compared.remarks} >= {"other_scale", "reconfigured"}
    assert "no verdict" not in headline(compared)
    assert change_note_text(compared.remarks[0]).casefold() in headline(compared).casefold()


def test_a_finding_that_variants_share_stands_once() -> None:
    findings = [{"rule": "r", "variant": name, "claim": "it waits"} for name in ("v", "w")]
    compared = change(study(variant("v", 10), variant("w", 10), findings=findings), study(variant("v", 10)))
    assert compared.findings_before == ("v and w: it waits",)


def test_results_that_cannot_be_compared() -> None:
    with pytest.raises(RecordError, match="of different studies, 's' and 't'"):
        change(study(variant("v", 1)), study(variant("v", 1), study="t"))
    with pytest.raises(RecordError, match="no variant is in both"):
        change(study(variant("v", 1)), study(variant("w", 1)))


@pytest.fixture
def sides(tmp_path: Path) -> list[str]:
    hostile = "<script>alert(1)</script> | x"
    finding = {"rule": "r", "variant": "v", "claim": hostile}
    write(tmp_path / "a" / "comparison.json", study(variant("v", 10), findings=[finding]))
    b = study(variant("v", 5, syncs={}), title=hostile, environment={**ENVIRONMENT, "host": hostile})
    write(tmp_path / "b.json", b)
    return [str(tmp_path / "a"), str(tmp_path / "b.json")]


def test_text_markdown_json_and_page_say_the_same(
    sides: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["compare", *sides, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Faster now: v (2.00×, " in text
    assert text.endswith(f"{out / 'compare.html'}\n")
    assert main(["compare", *sides, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((out / "compare.json").read_text())
    markdown = (out / "compare.md").read_text()
    assert "| v | 10.0 ms | 5.00 ms | 2.00× |" in markdown
    assert "| v | syncs per step, predicted | 0 | not measured |" in markdown
    page = with_plain_spaces((out / "compare.html").read_text())
    assert "<dt>Before / now</dt>" in page  # the heading of a column is the term that is explained
    for words in ("Step times", "syncs per step, predicted", "5.00 ms", "faster"):
        assert words in page


@pytest.mark.parametrize(("scale", "columns"), [("cpu", 6), ("gpu", 3)])
def test_step_times_that_cannot_be_compared_have_no_columns_of_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: str, columns: int
) -> None:
    write(tmp_path / "a.json", study(variant("v", 10)))
    write(tmp_path / "b.json", study(variant("v", 5), scale=scale))
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    lines = (tmp_path / "out" / "compare.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| v | 10")]
    assert row.count("|") == columns + 1


def test_three_results_are_drawn_over_what_tells_them_apart() -> None:
    def result(day: int, torch: str, machine: str, *variants: dict[str, Any]) -> Comparison:
        environment = {**ENVIRONMENT, "torch": torch, "cpu": machine}
        return study(*variants, measured_at=f"2026-01-{day:02d}T10:00:00", environment=environment)

    def named(*results: Comparison) -> list[str]:
        return column_names(compare_results([(f"{n}.json", one) for n, one in enumerate(results)]))

    both = variant("v", 10), variant("w", 20)
    dates = [result(day, "2.13.0", "A CPU", *both) for day in (1, 2, 3)]
    assert named(*dates) == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert named(*(result(1, f"2.1{n}.0", "A CPU", *both) for n in (1, 2, 3)))[0] == "PyTorch 2.11.0"
    assert named(*(result(1, "2.13.0", f"CPU {n}", *both) for n in (1, 2, 3)))[2].startswith("CPU 3")
    assert named(*(result(1, "2.13.0", "A CPU", *both) for n in (1, 2, 3))) == ["0.json", "1.json", "2.json"]

    gone = {"name": "gone", "status": "failed", "baseline": "plain", "runs": [], "step_ms": None}
    three = [result(1, "2.13.0", "A", *both, gone), result(2, "2.13.0", "A", both[0], gone), dates[2]]
    compared = compare_results([(f"{n}.json", one) for n, one in enumerate(three)])
    picture = chart(compared).html
    assert picture.count("<circle") == 3 + 2  # `w` was not measured the second time
    assert "gone" not in picture
    times = next(rows for heading, _, rows in sections(compared)[0][2] if heading == "Step times")
    assert [row[0] for row in times] == ["v", "w"]


def test_of_two_results_a_picture_shows_each_ratio_beside_the_line_at_1() -> None:
    before = study(variant("v", 10), variant("w", 20), variant("once", 20))
    now = study(variant("v", 5), variant("w", 20))
    drawn = str(chart(compare_results([("a.json", before), ("b.json", now)])).html)
    marks = [float(place) for place in re.findall(r'class="mark" cx="([\d.]+)%"', drawn)]
    lines = [float(place) for place in re.findall(r'class="baseline" x1="([\d.]+)%"', drawn)]
    assert len(marks) == 2
    assert lines[0] == lines[1] == marks[1]  # `w` takes as long as before
    assert marks[0] > lines[0]


def test_no_text_of_the_results_becomes_html(sides: list[str], tmp_path: Path) -> None:
    assert main(["compare", *sides, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "<script>alert" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<script>" not in (tmp_path / "out" / "compare.md").read_text()


def test_results_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_folder = tmp_path / "results" / "s"
    write(study_folder / "comparison.json", study(variant("v", 10)))
    for files, message in (
        ([tmp_path], "expected: two or more"),
        ([tmp_path, tmp_path], f"{tmp_path}/comparison.json: file is missing"),
        ([tmp_path / "results", study_folder], f"name {study_folder}"),  # of several studies
    ):
        assert main(["compare", *map(str, files)]) == 2
        assert message in capsys.readouterr().err


def test_a_series_is_held_from_one_result_to_the_next() -> None:
    results = [(name, study(variant("v", ms))) for name, ms in (("jan", 10), ("feb", 5), ("mar", 5))]
    compared = compare_results(results)
    assert [result.file for result in compared.results] == ["jan", "feb", "mar"]
    assert [_verdicts(one)["v"] for one in compared.changes] == ["faster", "same"]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["kept/old/giou/comparison.json", "kept/new/giou/comparison.json"], ["old", "new"]),
        (["a.json", "b.json"], ["a.json", "b.json"]),
        (["a/x/c.json", "a/c.json"], ["a/x/c.json", "a/c.json"]),
        (["a/c.json", "a/c.json"], ["a/c.json", "a/c.json"]),
        (["/one/a/c.json", "two/a/c.json", "two/b/c.json"], ["/one/a", "two/a", "two/b"]),
        (["old.json", "/home/me/lab/results/giou/comparison.json"], ["old.json", "results/giou"]),
        (["/a/b/x/giou/comparison.json", "/a/c/d/x/giou/comparison.json"], ["b", "c/d"]),
    ],
)
def test_results_are_headed_by_what_tells_their_files_apart(files: list[str], names: list[str]) -> None:
    assert short_names(files) == names


@pytest.mark.parametrize(
    ("before", "now", "listed"), [(100, 90, True), (10, 11, True), (100, 91, False), (0, 0, False)]
)
def test_a_figure_that_moves_by_a_tenth_is_listed(before: float, now: float, *, listed: bool) -> None:
    compared = change(study(variant("v", 1, gpu_busy_pct=before)), study(variant("v", 1, gpu_busy_pct=now)))
    assert ("GPU busy" in [figure.name for figure in compared.variants[0].differing]) == listed


def test_the_text_is_at_most_a_screen_and_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for n in range(12):
        environment = {**ENVIRONMENT, "torch": f"2.{n}.0", "host": f"h{n}"}
        variants = [variant(f"v{k}", 10 + n, syncs={"predicted_per_step": n}) for k in range(30)]
        files.append(tmp_path / f"{n}.json")
        write(files[-1], study(*variants, environment=environment))
    for number, earlier in (2, False), (12, True):
        assert main(["compare", *map(str, files[:number])]) == 0
        lines = capsys.readouterr().out.rstrip("\n").split("\n")
        assert len(lines) <= SCREEN
        assert "v0" in "".join(lines)
        assert f"to {number - 1}" in "\n".join(lines), "the last change"
        assert "row" in lines[-1]
        assert ("earlier" in lines[-1]) == earlier
    assert main(["compare", *map(str, files[:2]), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "compare.html").read_text()
    assert all(f"v{k}<" in page for k in range(30))
