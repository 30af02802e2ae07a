"""Notes: each code has its words, and they take exactly the figures that are recorded."""

from typing import Any, get_args

import pytest

from figures import BARE_NAME
from steptrace.documents.note import NO_VERDICT, UNEVEN, NoteCode, note
from steptrace.words import notes
from steptrace.words.notes import note_text, note_texts

GROUPS = [
    {"steps": 18, "of": 20, "every": None, "least": 2, "most": 2},
    {"steps": 2, "of": 20, "every": 10, "least": 3, "most": 72},
]
#: A note of each code, and what its sentence must name.
EXAMPLES: list[tuple[NoteCode, dict[str, Any], tuple[str, ...]]] = [
    ("fewer_timed_steps", {"steps": 5, "planned": 9, "at_most_s": 2.0, "slow_step_s": None}, ("5 of 9", "2 s")),
    ("fewer_timed_steps", {"steps": 5, "planned": 9, "at_most_s": 2.0, "slow_step_s": 3.0}, ("5 of 9", "2 s", "3 s")),
    ("fewer_profiled_steps", {"steps": 1, "planned": 2, "step_s": 3.21, "at_most_s": 2.0}, ("1 of 2", "3.2 s")),
    ("compiled_without_lines", {}, ("torch.compile",)),
    ("lines_incomplete", {"error": "RuntimeError: no"}, ("RuntimeError: no",)),
    ("sync_check_left_out", {"error": "RuntimeError: no"}, ("RuntimeError: no",)),
    ("recompiled", {"graphs": 1}, ("1 graph:",)),
    ("recompiled", {"graphs": 2}, ("2 graphs:",)),
    ("nvml_unavailable", {"error": "no library"}, ("no library",)),
    ("nvml_figure_missing", {"figure": "processes", "error": "Not Supported"}, ("processes", "Not Supported")),
    ("other_processes", {"processes": 1}, ("another process",)),
    ("other_processes", {"processes": 2}, ("2 other processes",)),
    ("clocks_lowered", {"share": 0.33}, ("33 %",)),
    ("trace_fault", {"message": "disk full"}, ("disk full",)),
    ("trace_fault", {"message": None}, ("gone",)),
    ("steps_skipped", {"steps": 2}, ("2",)),
    ("ended_early", {"steps": 4, "exit_code": 3}, ("4", "3")),
    ("uneven_steps", {"iqr_over_median": 0.2, "most": 0.1}, ("20 %", "10 %")),
    ("runs_differ", {"deviation": 0.35}, ("35 %",)),
    ("drift", {"drift": 0.1}, ("rises", "10 %")),
    ("drift", {"drift": -0.1}, ("falls", "10 %")),
    ("outliers", {"outliers": 3, "steps": 40}, ("3 of 40",)),
    ("too_few_runs", {}, ("two runs",)),
    ("too_uneven", {"is_baseline": False, "iqr_over_median": 0.4, "most": 0.25}, ("40 %", "25 %")),
    ("too_uneven", {"is_baseline": True, "iqr_over_median": 0.4, "most": 0.25}, ("the baseline's", "40 %")),
    ("runs_missing", {"measured": 1, "runs": 2}, ("1 of 2",)),
    ("trace_not_analysed", {"run": 1, "reason": "file is missing"}, ("run 1", "file is missing")),
    (
        "taken_apart",
        {"apart_s": 7200.0, "order": "after", "least_effect": 0.35, "folders": ["a", "b"]},
        ("2 h", "after", "35 %", "a and b"),
    ),
    ("no_baseline", {"baseline": "base"}, ("base",)),
    ("twin_differs", {}, ("baseline",)),
    ("noise_floor_too_high", {"floor": 0.3, "most": 0.1}, ("30 %", "10 %")),
    ("within_noise_floor", {}, ("noise floor",)),
    ("lost_by_correction", {}, ("correction",)),
    ("syncs_differ_between_runs", {"per_step": [2.0, 2.5]}, ("2, 2.5",)),
    ("syncs_differ_between_steps", {"least": 1, "most": 3}, ("1 to 3",)),
    ("predicted_syncs_differ", {"groups": GROUPS, "often": 2.5}, ("18 of 20", "every 10", "3 to 72", "2.5")),
    ("early_read", {"file": "train.py", "line": 31}, ("train.py:31",)),
    ("not_predicted", {"error": "no such operator"}, ("no such operator",)),
    ("prediction_not_used", {"reason": "old"}, ("old",)),
    ("nothing_predicted", {}, ("virtual",)),
    ("trace_quality", {"check": "one_at_a_time", "wrong": 2, "of": 9, "figures": {}}, ("2 of 9",)),
    ("texts_repaired", {"texts": 4_000}, ("4,000 texts",)),
    ("parts_left_out", {"events": 1_200}, ("1,200 events",)),
    ("ranks_not_read", {"read": 2, "world_size": 4}, ("2 of 4 ranks read",)),
    ("traces_left_out", {"left_out": 2, "found": 5}, ("2 of 5",)),
    ("trace_not_read", {"file": "rank_1.json", "reason": "cut off"}, ("rank_1.json", "cut off")),
    ("unfinished_events", {"events": 2, "steps": [3]}, ("2 events", "3")),
    ("unfinished_events", {"events": 1, "steps": []}, ("1 event ",)),
    ("profiler_lost_records", {"dropped": 1_203, "stopped": True}, ("1,203 records", "buffers")),
    ("profiler_lost_records", {"dropped": 0, "stopped": True}, ("buffers",)),
    ("excerpt", {"of": "t.json", "missing": 0, "events": 40}, ("t.json", "one step")),
    ("excerpt", {"of": "t.json", "missing": 1_000, "events": 9_000}, ("t.json", "1,000 of 9,000")),
    ("ranks_repeated", {"ranks": [{"rank": 3, "traces": 2}]}, ("2 traces are of rank 3",)),
    ("impossible_events", {"events": 1, "kind": "gpu"}, ("1 event ", "gpu")),
    ("repeated_events", {"events": 2, "kind": "op"}, ("2 events ", "op")),
    (
        "events_not_read",
        {"events": 2, "phases": ["b", "e"], "categories": ["x"], "without_category": True},
        ("2 events", "phases b and e", "category x", "without a category"),
    ),
]


@pytest.mark.parametrize(("code", "figures", "named"), EXAMPLES)
def test_a_sentence_names_its_figures(code: NoteCode, figures: dict[str, Any], named: tuple[str, ...]) -> None:
    text = note_text(note(code, **figures))
    assert [part for part in named if part not in text] == []
    assert not BARE_NAME.match(text), "a page writes it with a capital letter"


def test_each_code_has_words_and_an_example() -> None:
    codes = set(get_args(NoteCode))
    assert codes == set(notes._WORDS) == {code for code, *_ in EXAMPLES}
    assert codes > NO_VERDICT
    assert codes > UNEVEN


def test_a_sentence_stands_once() -> None:
    assert len(note_texts([note("too_few_runs"), note("twin_differs"), note("too_few_runs")])) == 2
