"""Three counts of the same syncs, joined place by place."""

from typing import Any

import pytest

from documents import fill
from steptrace.compare.agreement import agreement
from steptrace.documents.comparison import PredictedSite, SyncAgreement, UnknownPlace


def site(line: int | None = 2, *, count: float = 1, **changes: Any) -> PredictedSite:
    return fill(PredictedSite, place(line, count) | {"kind": "d2h_copy"} | changes)


def unknown(**changes: Any) -> UnknownPlace:
    return fill(UnknownPlace, place(2, 1) | changes)


def place(line: int | None, count: float) -> dict[str, Any]:
    return {
        "file": None if line is None else "lab/losses.py",
        "line": line,
        "function": "forward",
        "op": "aten::nonzero",
        "phase": "forward",
        "code": "keep = mask.nonzero()",
        "count_per_step": count,
    }


def counts(rows: list[SyncAgreement]) -> list[tuple[Any, ...]]:
    return [(row.predicted, row.warned, row.traced) for row in rows]


def test_without_a_gpu_there_is_nothing_to_hold_a_prediction_against() -> None:
    assert agreement([site()], None, None, []) == []


def test_sites_of_one_line_are_joined_despite_different_operators_and_phases() -> None:
    predicted = [site(op="aten::nonzero"), site(phase="backward"), site(kind="stream", line=7)]
    traced = [
        site(op="aten::copy_", phase="loss", file="/home/ada/lab/losses.py"),
        site(phase="backward"),
        site(kind="cudaStreamSynchronize", line=7, phase="data"),
    ]
    warned = [site(kind=None), site(kind=None, phase="backward"), site(kind=None, line=7)]
    rows = agreement(predicted, warned, traced, [])
    assert counts(rows) == [(1, 1, 1)] * 3
    assert [row.phase for row in rows] == ["forward", "backward", "forward"]
    assert not any(row.why for row in rows)


def test_several_sites_of_one_line_are_one_row_per_kind() -> None:
    rows = agreement(
        [site(), site(op="aten::item"), site(kind="h2d_copy")], None, [site(count=2), site(kind="h2d_copy")], []
    )
    assert counts(rows) == [(2, None, 2), (1, None, 1)]


def test_warned_syncs_without_a_kind_are_assigned_to_the_sites_of_their_line() -> None:
    rows = agreement([site(), site(kind="h2d_copy")], [site(kind=None, count=3)], None, [])
    assert counts(rows) == [(1, 1, None), (1, 1, None), (0, 1, None)]
    assert rows[2].kind is None


def test_a_trace_that_knows_only_the_function_is_joined_by_it() -> None:
    traced = site(1, code="def forward(self, output):", function="Loss.forward")
    (row,) = agreement([site()], None, [traced], [])
    assert (row.line, row.why) == (2, None)


@pytest.mark.parametrize(
    ("predicted", "warned", "traced", "not_judged", "words"),
    [
        ([site()], [], [site()], [], "does not see every wait"),
        ([site()], [site(kind=None)] * 2, [site()], [], "has nothing to wait for"),
        ([site()], None, [], [], "depends on the data"),
        ([], None, [site()], [], "knows of no wait here"),
        ([], None, [site(None)], [], "outside the program's own lines"),
        (
            [],
            None,
            [site()],
            [unknown(op="lib::nms", reason="custom")],
            "could not judge lib::nms: custom",
        ),
        ([], [site(kind=None)], None, [], "knows of no wait here"),
        ([], [site(kind=None)], [], [], "has nothing to wait for"),
    ],
)
def test_each_disagreement_of_predicted_warned_and_traced_syncs_has_a_reason(
    predicted: list[Any], warned: list[Any] | None, traced: list[Any] | None, not_judged: list[Any], words: str
) -> None:
    rows = agreement(predicted, warned, traced, not_judged)
    reasons = [row.why for row in rows if row.why]
    assert len(reasons) == 1
    assert words in reasons[0]
